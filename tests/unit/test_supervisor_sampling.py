"""Samples of the output while serving: only where there is room, and only two bad ones in a row say anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar import lifecycle
from sidecar.engines.protocol import EngineStats
from sidecar.engines.vllm import VllmEngine
from sidecar.engines.watcher import Observation
from sidecar.lifecycle import Phase
from sidecar.supervisor import sampling
from sidecar.supervisor.pod import Pod
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.supervised import make_pod, observe


@asynccontextmanager
async def serving(root: Path, **settings: Any) -> AsyncIterator[tuple[Pod, FakeEngine]]:
    async with FakeEngine(Script()) as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(root, client, **settings)
        pod.board.enter(Phase.READY)
        observe(pod, running=1.0, waiting=0.0, kv_cache_usage=0.2)
        try:
            yield pod, fake
        finally:
            await client.close()


async def test_good_output_is_no_news(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        assert await sampling.sample(pod) == ""
        assert fake.counters.texts == 1
        assert pod.metrics.value("output_samples_total", outcome="passed") == 1


@pytest.mark.parametrize(
    "seen",
    [
        Observation("up", "process:1", "", EngineStats(waiting=3.0, kv_cache_usage=0.1)),
        Observation("up", "process:1", "", EngineStats(waiting=0.0, kv_cache_usage=0.95)),
        Observation("busy", "process:1", "", EngineStats(waiting=0.0)),
        Observation("asleep", "process:1", "", EngineStats(waiting=0.0, asleep=True)),
        Observation("up", "process:1", "", None),
        None,
    ],
    ids=["requests wait", "cache full", "busy", "asleep", "nothing known", "not seen"],
)
async def test_an_engine_without_room_is_left_alone(tmp_path: Path, seen: Observation | None) -> None:
    async with serving(tmp_path) as (pod, fake):
        pod.observation = seen
        assert await sampling.sample(pod) is None
        assert fake.counters.texts == 0


async def test_an_engine_that_fell_asleep_since_the_last_look_is_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.asleep = True
        assert await sampling.sample(pod) is None
        assert fake.counters.texts == 0


async def test_nothing_is_sent_while_the_pod_is_not_ready(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        pod.board.enter(Phase.SUSPENDED)
        assert await sampling.sample(pod) is None
        assert fake.counters.texts == 0


@pytest.mark.parametrize(("generation", "says"), [("repeat", "repeats"), ("500", "does not answer")])
async def test_two_bad_samples_in_a_row_are_told_to_the_state_machine(
    tmp_path: Path, monkeypatch: Any, generation: str, says: str
) -> None:
    monkeypatch.setattr(sampling, "AGAIN_S", 0.01)
    posted: list[lifecycle.Event] = []
    async with serving(tmp_path, sample_output_s=0.01) as (pod, fake):
        fake.script.generation = generation
        watching = asyncio.create_task(sampling.watch(pod, posted.append))
        async with asyncio.timeout(30):
            while not posted:
                await asyncio.sleep(0.01)
        watching.cancel()
        assert isinstance(posted[0], lifecycle.CheckAsked)
        assert says in posted[0].suspicion
        # Each degenerate sample was asked for twice, with another seed.
        assert (4 if generation == "repeat" else 2) <= fake.counters.texts <= 8


async def test_an_engine_that_is_overloaded_is_not_taken_for_a_bad_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.generation = "503"
        assert await sampling.sample(pod) is None
        assert fake.counters.texts == 1


async def test_errors_of_an_engine_whose_load_is_not_known_say_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.generation, fake.script.no_metrics = "500", True
        assert await sampling.sample(pod) is None
        fake.script.generation = "repeat"
        assert "repeats" in str(await sampling.sample(pod))


async def test_a_sample_that_is_not_taken_to_be_the_engines_fault_says_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.api_key = "another"
        assert await sampling.sample(pod) is None


async def test_by_default_no_sample_is_ever_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake), asyncio.timeout(30):
        await sampling.watch(pod, lambda _event: None)
        assert fake.counters.texts == 0
