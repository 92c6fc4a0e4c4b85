"""The watch over processes and disks: what hangs holds nobody, and what can't be read has no numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from sidecar.supervisor import usage
from sidecar.supervisor.aside import Aside
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


@pytest.mark.parametrize("store", ["", "s3://bucket/prefix"])
async def test_a_store_that_is_no_directory_is_not_looked_for(tmp_path: Path, store: str) -> None:
    pod = make_pod([0.0])
    pod.live_cache, pod.store = str(tmp_path), store
    await UsageWatch(pod).look_at_disks()
    assert pod.metrics.value("source_missing", source="store") == 0


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
