"""Warm-up and output check against the scripted engine: real HTTP, kernels in real directories."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.families import stored_families
from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.engines.vllm import VllmEngine
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.bursts import Ask, Burst
from sidecar.warmup.evidence import EvidenceWatcher
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import Profile, load_profile
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.results import VerifyResult, WarmResult
from sidecar.warmup.runner import WarmupRunner
from sidecar.warmup.traffic import Traffic
from sidecar.warmup.verify import canary, verify
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.warmup_engine import profile

SMALL = ({"kind": "prefill", "tokens": [1, 16, 17, 600, 1200]}, {"kind": "logprobs", "values": [0, 5]})


@asynccontextmanager
async def _engine(live: Path, **script: Any) -> AsyncIterator[tuple[FakeEngine, VllmEngine]]:
    async with FakeEngine(Script(**script), triton=live / "triton", inductor=live / "inductor") as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        try:
            yield fake, client
        finally:
            await client.close()


async def _warm(client: VllmEngine, live: Path, what: Profile, **policy: float) -> WarmResult:
    plan = make_plan(what, await client.facts())
    policy_ = WarmPolicy(**{"retry_pause_s": 0.01, **policy})  # type: ignore[arg-type]
    witness = EvidenceWatcher(live, stored_families())
    return await WarmupRunner(client, plan, witness, policy_, time.monotonic, random.Random(1)).run()


async def test_a_cold_engine_is_warm_after_the_kernels_of_the_profile_were_compiled(tmp_path):
    async with _engine(tmp_path) as (fake, client):
        cold = await _warm(client, tmp_path, profile(*SMALL))
        warm = await _warm(client, tmp_path, profile(*SMALL))
    assert (cold.outcome, cold.kernels) == ("converged", {"triton": 3, "inductor": 2})
    assert len(fake.kernels.compiled) == 5
    assert (warm.outcome, warm.rounds, warm.kernels) == ("converged", 1, {})


async def test_the_cpu_profile_runs_through_on_a_real_server(tmp_path):
    async with _engine(tmp_path, max_model_len=4096) as (_, client):
        result = await _warm(client, tmp_path, load_profile("cpu"))
    assert result.outcome == "converged", result.sentence
    assert result.unsupported == ()
    assert {step.state for step in result.steps} == {"done"}


async def test_prefills_reach_the_server_while_its_decodes_run(tmp_path):
    async with _engine(tmp_path, token_seconds=0.01) as (fake, client):
        traffic = Traffic(client, PromptSource(random.Random(1), 32000), time.monotonic, lambda: False)
        sent = await traffic.send(Burst("x", ((Ask(2, 8, 40),), (Ask(1, 100, 2),)), "after_first_token"), 30)
    assert sent.overlapped
    assert [request["prompt_tokens"] for request in fake.requests] == [8, 8, 100]


async def test_an_engine_that_dies_of_a_mixed_batch_is_gone_by_that_step(tmp_path):
    mixed = {"kind": "mixed", "decodes": 2, "prefill_tokens": [100]}
    async with _engine(tmp_path, token_seconds=0.01, die_on_mixed=True) as (_, client):
        result = await _warm(client, tmp_path, profile({"kind": "prefill", "tokens": [16]}, mixed))
    assert result.outcome == "engine_gone"
    assert result.killers == ("mixed/2 + 100",)


async def test_an_engine_that_dies_of_long_prompts_is_gone_by_the_smallest_of_them(tmp_path):
    async with _engine(tmp_path, die_on_tokens=500) as (_, client):
        result = await _warm(client, tmp_path, profile({"kind": "prefill", "tokens": [2000, 16, 400, 600]}))
    assert (result.outcome, result.killers) == ("engine_gone", ("prefill/600",))


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        ("500", "warmup_http_500"),
        ("503", "warmup_http_503"),
        ("error_in_stream", "warmup_broken_answer"),
        ("truncated", "warmup_broken_answer"),
        ("not_json", "warmup_bad_answer"),
        ("non_utf8", "warmup_bad_answer"),
    ],
)
async def test_answers_that_are_no_answers_fail_the_warm_up_with_their_reason(tmp_path, generation, reason):
    async with _engine(tmp_path, generation=generation) as (_, client):
        result = await _warm(client, tmp_path, profile(*SMALL), unavailable_s=0.02)
        assert (result.outcome, result.reason) == ("failed", reason)
        assert (await verify(client, await client.facts(), 0.5)).outcome == "failed"


@pytest.mark.parametrize("generation", ["repeat", "nan", "empty"])
async def test_degenerate_output_is_found_through_http(tmp_path, generation):
    async with _engine(tmp_path, generation=generation) as (_, client):
        facts = await client.facts()
        results: list[VerifyResult] = [await verify(client, facts), await canary(client, facts)]
    assert [each.outcome for each in results] == ["degenerate", "degenerate"]


async def test_a_server_that_keeps_to_openais_fields_is_warmed_and_that_is_told(tmp_path):
    async with _engine(tmp_path, extensions=False) as (fake, client):
        result = await _warm(client, tmp_path, profile(*SMALL, {"kind": "sampling", "features": ["stop"]}))
    assert (result.outcome, result.unsupported, len(fake.kernels.compiled)) == ("converged", (), 5)
    assert "The engine does not support: cache_salt, ignore_eos." in result.sentence
    assert any("Answers may end before their number of tokens is reached" in note for note in result.notes)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_queues_one_request_is_warmed_and_checked_and_that_is_told(tmp_path, status):
    batches = {"kind": "decode", "batch": [8], "output_tokens": 4}
    async with _engine(tmp_path, token_seconds=0.002, at_most=2, full_status=status) as (fake, client):
        result = await _warm(client, tmp_path, profile({"kind": "prefill", "tokens": [16]}, batches))
        assert (await verify(client, await client.facts())).outcome == "passed"
    assert result.outcome == "converged", result.sentence
    assert result.steps[1].requests == 8 * result.rounds
    assert "put off" in result.steps[1].detail
    assert fake.counters.refused > 0


async def test_an_engine_that_falls_asleep_in_the_middle_of_a_warm_up_gets_no_further_burst(tmp_path):
    async with _engine(tmp_path) as (fake, client):
        fake.script.asleep_from_text = 2
        result = await _warm(client, tmp_path, profile(*SMALL))
    assert (result.outcome, result.reason) == ("failed", "engine_asleep")
    # The one during which it fell asleep.
    assert fake.counters.while_asleep == 1


async def test_a_good_engine_passes_the_check_through_http(tmp_path):
    async with _engine(tmp_path) as (_, client):
        facts = await client.facts()
        assert (await verify(client, facts)).outcome == "passed"
        assert (await canary(client, facts)).outcome == "passed"


async def test_the_first_token_is_reported_before_the_answer_ends(tmp_path):
    seen: list[float] = []
    async with _engine(tmp_path, token_seconds=0.02) as (_, client):
        request = CompletionRequest(
            prompt=(5, 6, 7), max_tokens=10, on_first_token=lambda: seen.append(time.monotonic())
        )
        answer: Completion = await client.complete(request)
        ended = time.monotonic()
    assert answer.ok
    assert len(seen) == 1
    assert seen[0] < ended
