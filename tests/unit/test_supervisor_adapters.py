"""Adapters that are loaded while the pod serves are warmed; those of the warm-up are left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sidecar.engines.vllm import VllmEngine
from sidecar.engines.watcher import Observation
from sidecar.supervisor.adapters import AT_MOST, TOGETHER, AdapterWatch
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.serving import count_late, publish_while_serving
from sidecar.warmup.evidence import Evidence
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.supervised import make_pod, told


@asynccontextmanager
async def serving(root: Path, *adapters: str) -> AsyncIterator[tuple[Pod, FakeEngine]]:
    """Serve with these adapters, which the warm-up has seen."""
    async with FakeEngine(Script(adapters=list(adapters))) as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(root, client)
        pod.board.engine = {"limits": {"adapters": list(adapters)}}
        try:
            yield pod, fake
        finally:
            await client.close()


async def test_an_adapter_loaded_at_run_time_is_warmed_once_alone_and_together(tmp_path: Path) -> None:
    async with serving(tmp_path, "first") as (pod, fake):
        watch = AdapterWatch(pod)
        assert await watch.look() == ()
        fake.script.adapters.append("second")
        assert await watch.look() == ("second",)
        assert await watch.look() == ()
        assert [request["model"] for request in fake.requests] == ["second"] * (1 + TOGETHER)
        assert len({request["cache_salt"] for request in fake.requests}) == 1 + TOGETHER
        assert "Adapter second was loaded while serving and is warmed now" in told(pod)


async def test_nothing_is_sent_to_an_engine_that_sleeps(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.adapters.append("new")
        watch = AdapterWatch(pod)
        pod.observation = Observation("asleep", "process:1", "")
        assert await watch.look() == ()
        assert fake.requests == []
        pod.observation = None
        assert await watch.look() == ("new",)


async def test_an_engine_that_fell_asleep_since_the_watcher_saw_it_is_left_alone_and_its_adapter_warmed_later(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.adapters.append("new")
        watch = AdapterWatch(pod)
        pod.observation = Observation("up", "process:1", "")
        fake.script.asleep = True
        assert await watch.look() == ()
        assert fake.counters.while_asleep == 0
        fake.script.asleep = False
        assert await watch.look() == ("new",)


async def test_an_engine_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        await fake.kill()
        assert await AdapterWatch(pod).look() == ()


async def test_an_adapter_that_does_not_answer_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.adapters.append("broken")
        fake.script.generation = "500"
        assert await AdapterWatch(pod).look() == ("broken",)
        assert "it does not answer" in told(pod)


async def test_an_engine_that_is_given_adapters_by_the_hundred_is_not_flooded(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, fake):
        fake.script.adapters.extend(f"a{number}" for number in range(AT_MOST + 5))
        assert len(await AdapterWatch(pod).look()) == AT_MOST


async def test_what_an_adapters_warm_up_compiled_is_no_shape_that_the_profile_lacks(tmp_path: Path) -> None:
    async with serving(tmp_path) as (pod, _):
        announced: list[str] = []
        pod.announce = lambda _, sentence: announced.append(sentence)
        found = Evidence(kernels={"triton": 2}, names=("triton/a", "triton/b"))
        count_late(pod, found, ("second",))
        assert "2 kernels were compiled while adapter second was warmed" in told(pod)
        assert announced == []
        count_late(pod, found)
        assert len(announced) == 1
        assert pod.kernels_after == {"triton": 4}


async def test_adapters_are_warmed_where_the_live_cache_cannot_be_used_as_well(tmp_path: Path) -> None:
    async with serving(tmp_path, "first") as (pod, fake):
        pod.live_cache = ""
        pod.board.engine = {"limits": {"adapters": []}}
        task = asyncio.create_task(publish_while_serving(pod))
        async with asyncio.timeout(20):
            while len(fake.requests) < 1 + TOGETHER:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert pod.board.publish["outcome"] == "disabled"
