"""Recordings and pictures against the scripted engine over HTTP: as strict as vLLM, and every way in which they can end."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.families import stored_families
from sidecar.engines.vllm import VllmEngine
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.evidence import EvidenceWatcher
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import Profile, load_profile
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from sidecar.warmup.verify import verify
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.warmup_engine import profile

TRANSCRIBES = {"tasks": ["transcription"]}
RECORDINGS = {"kind": "transcription", "seconds": [0.2, 0.4]}
PICTURES = {"kind": "image", "pixels": [32]}
PROMPTS = {"kind": "prefill", "tokens": [1, 16, 17]}


@asynccontextmanager
async def _engine(live: Path, **script: Any) -> AsyncIterator[tuple[FakeEngine, VllmEngine]]:
    async with FakeEngine(Script(**script), triton=live / "triton", inductor=live / "inductor") as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        try:
            yield fake, client
        finally:
            await client.close()


async def _warm(
    client: VllmEngine, live: Path, what: Profile, killers: Collection[str] = (), **policy: float
) -> WarmResult:
    plan = make_plan(what, await client.facts())
    rules = replace(WarmPolicy(retry_pause_s=0.01), **policy)
    witness = EvidenceWatcher(live, stored_families())
    rng = random.Random(1)
    return await WarmupRunner(client, plan, witness, rules, time.monotonic, rng, killers=killers).run()


async def test_a_model_that_only_transcribes_is_warmed_with_recordings_and_nothing_else(tmp_path: Path):
    async with _engine(tmp_path, **TRANSCRIBES) as (fake, client):
        what = profile(PROMPTS, RECORDINGS, converge={"random_draws": 5})
        result = await _warm(client, tmp_path, what)
        checked = await verify(client, await client.facts())
    assert (result.outcome, result.kernels, result.unsupported) == ("converged", {"triton": 1}, ())
    assert {request["path"] for request in fake.requests} == {"/v1/audio/transcriptions"}
    assert checked.outcome == "passed"


@pytest.mark.parametrize("name", ["cpu", "sm90"])
async def test_a_shipped_profile_has_traffic_for_a_model_that_only_transcribes(tmp_path: Path, name: str):
    async with _engine(tmp_path, **TRANSCRIBES) as (_, client):
        plan = make_plan(load_profile(name), await client.facts())
    assert [step.kind for step in plan.steps] == ["transcription"]
    assert plan.unwarmed == ""


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ({"generation": "500"}, "failed", "warmup_http_500"),
        ({"generation": "hang"}, "failed", "warmup_timed_out"),
        ({"die_on_request": 1}, "engine_gone", "engine_gone"),
    ],
    ids=("5xx", "hang", "death"),
)
async def test_recordings_that_break_the_engine_are_a_finding(
    tmp_path: Path, script: dict[str, Any], outcome: str, reason: str
):
    async with _engine(tmp_path, **TRANSCRIBES, **script) as (_, client):
        result = await _warm(client, tmp_path, profile(RECORDINGS), request_timeout_s=0.3)
    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.killers == (("transcription/0.2 s",) if outcome == "engine_gone" else ())


async def test_pictures_go_to_a_model_that_takes_them_as_files_that_can_be_decoded(tmp_path: Path):
    async with _engine(tmp_path, pictures=True) as (fake, client):
        result = await _warm(client, tmp_path, profile(PROMPTS, PICTURES))
    assert (result.outcome, result.unsupported) == ("converged", ())
    assert sum(request["path"] == "/v1/chat/completions" for request in fake.requests) == result.rounds


@pytest.mark.parametrize(("script", "kind"), [({"pictures": True}, "image"), ({"sounds": True}, "audio")])
async def test_what_messages_may_hold_is_asked_of_the_engine(tmp_path: Path, script: dict[str, Any], kind: str):
    recordings = {"kind": "audio", "seconds": [0.2]}
    async with _engine(tmp_path, **script) as (_, client):
        plan = make_plan(profile(PROMPTS, PICTURES, recordings), await client.facts())
        result = await _warm(client, tmp_path, profile(PROMPTS, PICTURES, recordings))
    assert [step.kind for step in plan.steps] == ["prefill", kind]
    assert (result.outcome, result.unsupported) == ("converged", ())


async def test_pictures_are_not_sent_to_a_model_of_text_alone(tmp_path: Path):
    async with _engine(tmp_path) as (fake, client):
        plan = make_plan(profile(PROMPTS, PICTURES), await client.facts())
    assert [step.kind for step in plan.steps] == ["prefill"]
    assert plan.not_applicable == ("image: the engine takes no pictures.",)
    assert fake.requests == []


async def test_pictures_that_a_model_refuses_after_all_are_noted_and_skipped(tmp_path: Path):
    async with _engine(tmp_path, pictures=True) as (fake, client):
        plan = make_plan(profile(PROMPTS, PICTURES), await client.facts())
        fake.script.pictures = False
        witness = EvidenceWatcher(tmp_path, stored_families())
        result = await WarmupRunner(client, plan, witness, WarmPolicy(), time.monotonic, random.Random(1)).run()
    assert (result.outcome, result.unsupported) == ("converged", ("image/32 pixels",))
    assert "is not a multimodal model" in result.steps[1].detail


async def test_a_deadly_length_that_only_the_search_tries_is_not_sent_to_the_engine_that_comes_back(tmp_path: Path):
    terms = {"enabled": True, "gap": 0.3, "bound": 0.3}
    mix = {"prompt_tokens": {"from": 8, "to": 512}, "concurrency": {"from": 1, "to": 1}}
    what = profile({"kind": "prefill", "tokens": [1, 16, 17, 512]}, search=terms, mix=mix)
    async with _engine(tmp_path) as (fake, client):
        await _warm(client, tmp_path, what)
        tried = {request["prompt_tokens"] for request in fake.requests} - {1, 8, 16, 17, 512}
        deadly = min(tried)
        fake.script.die_at_tokens = deadly
        died = await _warm(client, tmp_path, what)
        await fake.start()
        fake.requests.clear()
        again = await _warm(client, tmp_path, what, died.killers)
        sent = {request["prompt_tokens"] for request in fake.requests}
    assert (died.outcome, died.killers) == (
        "engine_gone",
        (f"search/1 at once, up to {deadly} of {deadly + 2} tokens",),
    )
    assert (again.outcome, again.reason) == ("exhausted", "killers_left_out")
    assert died.killers[0] in again.sentence
    assert tried - sent == {deadly}
