"""What killed the engine of one pod is not sent to the engines of others: reports through a real store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar import lifecycle
from sidecar.caches.store import open_store
from sidecar.engines.vllm import VllmEngine
from sidecar.lifecycle import Mode
from sidecar.supervisor import deaths, warming
from sidecar.supervisor.pod import Pod
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.supervised import make_pod, restored, told

PROFILE = """
description: A few requests.
steps:
  - {kind: prefill, tokens: [64, 300], output_tokens: 1}
search: {enabled: false}
converge: {random_draws: 2, tolerance: 100, floor_s: 10}
mix: {prompt_tokens: {from: 8, to: 64}, output_tokens: {from: 1, to: 2}, concurrency: {from: 1, to: 1}}
policy: {killers: %s}
"""
KEY = "e" * 16


async def _warm(pod: Pod, script: Script, root: Path, policy: str = "leave_out") -> tuple[lifecycle.Event, list[int]]:
    """Warm a new engine up in this pod; give how that ended, and how long the prompts were that reached it."""
    (root / "few.yaml").write_text(PROFILE % policy)
    async with FakeEngine(script, triton=Path(pod.live_cache) / "triton") as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod.engine, pod.clock = client, time.monotonic
        try:
            ended = await warming.warm(pod, lifecycle.Warm(1))
        finally:
            await client.close()
        return ended, [request["prompt_tokens"] for request in fake.requests]


def _pod(root: Path, boot: str, **given: Any) -> Pod:
    own = root / boot
    own.mkdir()
    pod = make_pod(own, profile=str(root / "few.yaml"), **given)
    (root / "store").mkdir(exist_ok=True)
    pod.boot, pod.store = boot, str(root / "store")
    restored(pod, "miss")
    return pod


def _reports(root: Path) -> list[dict[str, Any]]:
    return open_store(str(root / "store"), "read-only", lambda _: None).deaths("exact", KEY)


async def _died(root: Path, boot: str = "a" * 16, last_end: str = "crash", **given: Any) -> Pod:
    """Let the engine of a pod die of the long prompt, and the next one of the same pod be warmed without it."""
    pod = _pod(root, boot, **given)
    ended, _ = await _warm(pod, Script(die_on_tokens=200), root)
    assert isinstance(ended, lifecycle.WarmEnded)
    assert ended.outcome == "engine_gone"
    pod.last_end = last_end
    await _warm(pod, Script(), root)
    return pod


async def test_what_killed_the_engine_of_one_pod_is_not_sent_to_another_pods_engine(tmp_path: Path) -> None:
    await _died(tmp_path)
    other = _pod(tmp_path, "b" * 16)
    ended, sent = await _warm(other, Script(die_on_tokens=200), tmp_path)
    assert isinstance(ended, lifecycle.WarmEnded)
    assert ended.outcome == "exhausted"
    assert sent
    assert max(sent) < 200
    assert "prefill/300 (1 pod)" in told(other)
    assert "prefill/300" in other.board.warmup["killers"]


async def test_a_profile_that_sends_killers_again_does_so_whoever_reported_them(tmp_path: Path) -> None:
    await _died(tmp_path)
    _, sent = await _warm(_pod(tmp_path, "b" * 16), Script(), tmp_path, "send_again")
    assert 300 in sent


async def test_reports_that_were_forgotten_leave_nothing_out(tmp_path: Path) -> None:
    await _died(tmp_path)
    assert open_store(str(tmp_path / "store"), "read-write", lambda _: None).forget_deaths("exact", KEY) == 1
    ended, sent = await _warm(_pod(tmp_path, "b" * 16), Script(), tmp_path)
    assert 300 in sent
    assert isinstance(ended, lifecycle.WarmEnded)
    assert ended.outcome == "converged"


@pytest.mark.parametrize("end", ["killed", "terminated", "restart", "compile_stall"])
async def test_an_end_that_says_nothing_against_the_burst_is_not_reported(tmp_path: Path, end: str) -> None:
    await _died(tmp_path, last_end=end)
    assert _reports(tmp_path) == []


async def test_without_a_launcher_nothing_is_reported_because_nobody_knows_why_the_engine_ended(tmp_path: Path) -> None:
    await _died(tmp_path, mode=Mode.BESIDE)
    assert _reports(tmp_path) == []


async def test_a_store_that_is_read_only_is_not_written(tmp_path: Path) -> None:
    await _died(tmp_path, store_mode="read-only")
    assert not (tmp_path / "store" / "v1").exists()


async def test_a_death_is_reported_once_by_a_pod(tmp_path: Path) -> None:
    pod = await _died(tmp_path)
    written: list[Any] = []
    pod.caches.record = lambda *given: written.append(given)  # type: ignore[method-assign,assignment,return-value]
    await deaths.share(pod, pod.killers, "p")
    assert written == []
    assert [each["killers"] for each in _reports(tmp_path)] == [["prefill/300"]]


async def test_only_the_newest_reports_are_kept_and_the_records_of_boots_beside_them(tmp_path: Path) -> None:
    from sidecar.caches.client import RecordRequest
    from sidecar.caches.worker import KILLER_RECORDS, record

    (tmp_path / "store").mkdir()
    for number in range(KILLER_RECORDS + 3):
        name = f"none.killer.{number:012d}-aaaaaaaa"
        request = RecordRequest(
            store=str(tmp_path / "store"), scope="exact", key=KEY, generation="", kind="boot", name=name,
            record={"outcome": "killer", "at": number},
        )  # fmt: skip
        assert record(request).trouble == ""
        if not number:
            assert record(RecordRequest(**{**vars_of(request), "name": "g.ready.x", "record": {"outcome": "ready"}}))
    store = open_store(str(tmp_path / "store"), "read-only", lambda _: None)
    assert [each["at"] for each in store.deaths("exact", KEY)] == list(range(3, KILLER_RECORDS + 3))
    assert len(store.boots("exact", KEY)) == KILLER_RECORDS + 1


def vars_of(request: Any) -> dict[str, Any]:
    """Give the fields of a request."""
    return dict(json.loads(json.dumps(request.to_json())))


class Slow:
    """A store whose records come when they are let go."""

    async def boots(self, *_: Any) -> tuple[Mapping[str, Any], ...]:
        await asyncio.Event().wait()
        return ()


@pytest.mark.looptime
async def test_a_store_that_hangs_is_waited_for_a_few_seconds_only(tmp_path: Path) -> None:
    pod = _pod(tmp_path, "b" * 16)
    began = asyncio.get_running_loop().time()
    records = asyncio.create_task(Slow().boots())
    assert await deaths.of_others(pod, records, "p") == frozenset()
    assert asyncio.get_running_loop().time() - began == deaths.PATIENCE_S
    records.cancel()
