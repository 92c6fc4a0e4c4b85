"""Warm-up as the supervisor's activity, against the scripted engine over HTTP: what goes on around the traffic itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sidecar import lifecycle
from sidecar.engines.vllm import VllmEngine
from sidecar.supervisor import warming
from sidecar.supervisor.pod import Pod
from sidecar.warmup.recorded import Distribution, RecordedMix, mix_path
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.supervised import make_pod, restored, told

PROFILE = """
description: A few requests.
steps:
  - {kind: prefill, tokens: [64, 300], output_tokens: 1}
search: {enabled: false}
converge: {random_draws: 3, tolerance: 100, floor_s: 10}
"""
TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_producer"})


@asynccontextmanager
async def warmed(
    root: Path,
    argv: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    script: Any = None,
    caches: Any = None,
    **settings: Any,
) -> AsyncIterator[tuple[Pod, lifecycle.Event, FakeEngine]]:
    """Warm a scripted engine up once; give the pod and how that ended."""
    (root / "few.yaml").write_text(PROFILE)
    async with FakeEngine(script or Script(), triton=root / "live" / "triton") as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(root, client, profile=str(root / "few.yaml"), **settings)
        pod.clock = time.monotonic
        pod.caches = caches or pod.caches
        restored(pod, "miss")
        pod.facts = {"argv": ["vllm", "serve", "m", *argv], "environment": dict(environment or {})}
        try:
            yield pod, await warming.warm(pod, lifecycle.Warm(1)), fake
        finally:
            await client.close()


async def test_kv_cache_of_a_prefill_engine_is_waited_for_before_the_warm_up_counts(tmp_path: Path) -> None:
    script = Script(pin_seconds=0.3)
    began = time.monotonic()
    async with warmed(tmp_path, ("--kv-transfer-config", TRANSFER), script=script) as (pod, ended, fake):
        assert ended.outcome == "converged", ended.sentence
        # What is left is less than the block or two that may come and go.
        assert fake.counters.tokens_held <= 32
        assert time.monotonic() - began >= 0.3
        assert pod.board.warmup["outcome"] == "converged"


async def test_kv_cache_that_stays_pinned_leaves_the_pod_flagged_with_a_sentence(tmp_path: Path) -> None:
    script = Script(pin_seconds=60)
    async with warmed(tmp_path, ("--kv-transfer-config", TRANSFER), script=script, kv_release_s=0.2) as (pod, ended, _):
        assert ended.outcome == "exhausted"
        assert "blocks of requests that no peer fetched are pinned" in ended.sentence
        assert pod.board.warmup["reason"] == "kv_pinned"


async def test_an_engine_of_both_roles_is_not_waited_for(tmp_path: Path) -> None:
    async with warmed(tmp_path, script=Script(pin_seconds=60)) as (_, ended, fake):
        assert ended.outcome == "converged"
        assert fake.counters.tokens_held > 0


async def test_a_request_may_take_longer_than_the_engine_bears_with_one_step(tmp_path: Path) -> None:
    environment = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"}
    async with warmed(tmp_path, environment=environment) as (pod, _, _):
        assert "A warm-up request may take 1860 s" in told(pod)
        assert pod.board.engine["limits"]["step_timeout_s"] == 1800


async def test_the_kv_caches_size_is_shown_with_the_boot(tmp_path: Path) -> None:
    async with warmed(tmp_path, script=Script(kv_blocks=3000)) as (pod, _, _):
        assert pod.board.engine["kv_cache"]["tokens"] == 48_000
        assert pod.room is not None
        assert pod.room.cold


async def test_traffic_that_earlier_pods_recorded_is_drawn_from(tmp_path: Path) -> None:
    long = Distribution((1900, 2000), (0.0, 400.0))
    RecordedMix(long, Distribution((2,), (400.0,)), Distribution((1,), (9.0,)), 400.0).save(mix_path(tmp_path / "live"))
    async with warmed(tmp_path) as (pod, ended, fake):
        assert ended.outcome == "converged"
        assert "that earlier pods recorded" in ended.sentence
        assert "Random draws follow what users sent to 1 pod" in told(pod)
        assert max(request["prompt_tokens"] for request in fake.requests) > 300


async def test_a_record_that_is_damaged_costs_a_sentence_and_no_warmth(tmp_path: Path) -> None:
    path = mix_path(tmp_path / "live")
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 1}')
    async with warmed(tmp_path) as (pod, ended, _):
        assert ended.outcome == "converged"
        assert "can't be used, so the profile's mix counts" in told(pod)


class HangingStore:
    """A store that never answers."""

    async def boots(self, *_: Any) -> tuple[Mapping[str, Any], ...]:
        await asyncio.Event().wait()
        return ()


async def test_the_burst_that_killed_the_engine_is_known_at_once_whatever_the_store_does(tmp_path: Path) -> None:
    async with asyncio.timeout(20), warmed(tmp_path, script=Script(die_on_tokens=200), caches=HangingStore()) as found:
        pod, ended, _ = found
        assert ended.outcome == "engine_gone"
        assert pod.suspected_last == ("prefill/300",)
        assert ". (" not in ended.sentence


async def _cancelled_in_flight(root: Path, *, ended: bool) -> Pod:
    """Cancel a warm-up while a request hangs; `ended`: because the launcher told of the engine's end."""
    (root / "few.yaml").write_text(PROFILE)
    async with FakeEngine(Script(generation="hang"), triton=root / "live" / "triton") as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(root, client, profile=str(root / "few.yaml"))
        pod.clock, pod.store = time.monotonic, ""
        restored(pod, "miss")
        warm = asyncio.create_task(warming.warm(pod, lifecycle.Warm(1)))
        async with asyncio.timeout(20):
            while not fake.requests:
                await asyncio.sleep(0.01)
        if ended:
            pod.board.engine = {**pod.board.engine, "restarts": 1}
        warm.cancel()
        await asyncio.wait({warm})
        await client.close()
    return pod


async def test_a_death_that_the_launcher_tells_first_is_laid_to_the_burst_that_was_in_flight(tmp_path: Path) -> None:
    pod = await _cancelled_in_flight(tmp_path, ended=True)
    assert pod.suspected_last == ("prefill/64",)


async def test_a_warm_up_that_is_cancelled_while_its_engine_lives_suspects_nothing(tmp_path: Path) -> None:
    pod = await _cancelled_in_flight(tmp_path, ended=False)
    assert pod.suspected_last == ()
    assert not pod.suspects


def test_a_check_of_a_slow_engine_may_take_as_long_as_all_its_answers() -> None:
    from sidecar.config import Settings

    for timeout in (1.0, 60.0, 120.0, 900.0):
        one = min(warming.CHECK_DEADLINE_S, timeout)
        assert warming.check_deadline_s(Settings(request_timeout_s=timeout)) >= 8 * one + 60
