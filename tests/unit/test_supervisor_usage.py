"""The watch over processes and disks: what hangs holds nobody, and what can't be read has no numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from sidecar.aside import Aside, beside
from sidecar.caches.client import CacheClient, ReachRequest
from sidecar.engines.processes import Usage
from sidecar.supervisor import usage
from sidecar.supervisor.usage import UsageWatch, room
from tests.unit.test_supervisor_observers import make_pod


async def test_work_that_hangs_is_given_up_and_none_is_begun_beside_it() -> None:
    released = threading.Event()
    begun = []
    aside = Aside[int]("test", deadline_s=0.05)

    def hang() -> int:
        begun.append(1)
        released.wait(20)
        return 1

    assert await aside.do(hang) is None
    assert await aside.do(hang) is None
    assert len(begun) == 1
    thread = next(each for each in threading.enumerate() if each.name == "test")
    released.set()
    await asyncio.to_thread(thread.join, 20)
    assert await Aside.do(aside, lambda: 2) == 2


async def test_work_aside_gives_its_error_to_whoever_asked() -> None:
    def fail() -> int:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await Aside[int]("test", deadline_s=20).do(fail)


async def test_work_beside_that_is_late_is_an_error_of_the_disk_that_says_how_late() -> None:
    released = threading.Event()
    with pytest.raises(OSError, match=r"no answer within 0\.05 s"):
        await beside("test", 0.05, released.wait, 20)
    released.set()
    assert await beside("test", 20, max, 1, 2) == 2


async def test_the_loop_turns_while_work_hangs() -> None:
    released = threading.Event()
    waiting = asyncio.ensure_future(Aside[bool]("test", deadline_s=20).do(lambda: released.wait(20)))
    began = time.perf_counter()
    for _ in range(50):
        await asyncio.sleep(0)
    turned = time.perf_counter() - began
    released.set()
    assert await waiting is True
    assert turned < 5


async def test_room_on_both_disks_is_told(tmp_path: Path) -> None:
    pod = make_pod([0.0])
    pod.live_cache, pod.store = str(tmp_path), str(tmp_path)
    await UsageWatch(pod).look_at_disks()
    size = pod.metrics.value("disk_size_bytes", disk="store")
    assert size == room(str(tmp_path))["size"]
    assert 0 < (pod.metrics.value("disk_free_bytes", disk="live_cache") or 0) <= (size or 0)
    assert pod.metrics.value("source_missing", source="store") == 0


async def test_a_store_that_hangs_has_no_numbers_and_the_live_cache_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = make_pod([0.0])
    pod.live_cache, pod.store = str(tmp_path), "/the/hanging/store"
    released = threading.Event()

    def hangs(path: str) -> dict[str, int]:
        if path == pod.store:
            released.wait(20)
        return room(str(tmp_path))

    monkeypatch.setattr(usage, "room", hangs)
    monkeypatch.setattr(usage, "DEADLINE_S", 0.05)
    await UsageWatch(pod).look_at_disks()
    released.set()
    assert pod.metrics.value("disk_free_bytes", disk="store") is None
    assert pod.metrics.value("source_missing", source="store") == 1
    assert pod.metrics.value("disk_free_bytes", disk="live_cache")


async def test_without_a_store_none_is_missed(tmp_path: Path) -> None:
    pod = make_pod([0.0])
    pod.live_cache, pod.store = str(tmp_path), ""
    await UsageWatch(pod).look_at_disks()
    assert pod.metrics.value("source_missing", source="store") == 0


async def test_a_bucket_that_cant_be_reached_is_missed_and_told_once_and_again_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = make_pod([0.0])
    pod.live_cache, pod.store = str(tmp_path), "s3://bucket/prefix"
    troubles = ["The bucket is away.", "The bucket is away.", ""]
    asked: list[str] = []

    async def reach(_self: object, request: ReachRequest, _deadline_s: float) -> str:
        asked.append(request.store)
        return troubles[len(asked) - 1]

    monkeypatch.setattr(CacheClient, "reach", reach)
    watch = UsageWatch(pod)
    seen = []
    for _ in range(usage.BUCKET_EVERY * 2 + 1):
        await watch.look_at_disks()
        seen.append(pod.metrics.value("source_missing", source="store"))
    assert seen == [1] * usage.BUCKET_EVERY * 2 + [0]
    assert asked == ["s3://bucket/prefix"] * 3
    told = [event["text"] for event in pod.board.to_json()["events"] if "reached" in event["text"]]
    assert len(told) == 2
    assert "The bucket is away." in told[0]


async def test_a_store_can_be_reached_for_in_the_worker(tmp_path: Path) -> None:
    client = CacheClient(time.monotonic)
    assert await client.reach(ReachRequest(store=str(tmp_path)), 60) == ""
    assert "nowhere" in await client.reach(ReachRequest(store=str(tmp_path / "nowhere")), 60)


async def test_the_room_of_a_live_cache_ends_where_the_kubelet_evicts(tmp_path: Path) -> None:
    pod = make_pod([0.0], live_cache_limit_bytes=1_000_000)
    pod.live_cache = str(tmp_path)
    pod.board.cache = {"bytes": 900_000}
    await UsageWatch(pod).look_at_disks()
    assert pod.metrics.value("disk_size_bytes", disk="live_cache") == 1_000_000
    assert pod.metrics.value("disk_free_bytes", disk="live_cache") == 100_000
    pod.board.cache = {"bytes": 2_000_000}
    await UsageWatch(pod).look_at_disks()
    assert pod.metrics.value("disk_free_bytes", disk="live_cache") == 0


async def test_cpu_seconds_never_go_down_while_the_engine_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = make_pod([0.0])
    pod.engine_pid = 7
    readings = iter([5.0, 4.6, 5.2])
    monkeypatch.setattr(usage.processes, "find", lambda _pid: object())
    monkeypatch.setattr(usage.processes, "usage", lambda _first: Usage(2, 10, next(readings), 3))
    watch, seen = UsageWatch(pod), []
    for _ in range(3):
        await watch.look_at_processes()
        seen.append(pod.metrics.value("engine_cpu_seconds_total"))
    assert seen == [5.0, 5.0, 5.2]


async def test_a_store_that_is_gone_is_missing(tmp_path: Path) -> None:
    pod = make_pod([0.0])
    pod.store = str(tmp_path / "gone")
    await UsageWatch(pod).look_at_disks()
    assert pod.metrics.value("source_missing", source="store") == 1


async def test_an_engine_whose_processes_are_in_another_container_is_said_to_be_missing() -> None:
    pod = make_pod([0.0])
    pod.engine_pid = 1
    await UsageWatch(pod).look_at_processes()
    assert pod.metrics.value("source_missing", source="engine_processes") == 1
    assert "engine_resident" not in pod.metrics.render().decode()
