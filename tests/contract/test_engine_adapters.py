"""What every adapter of an engine keeps, whichever it is: on a scripted server built from that engine's documentation.

A new engine adds `sidecar/engines/adapters/NAME.py` and `tests/fakes/scripted/NAME.py`; these tests find both by name.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.caches.families import BY_NAME
from sidecar.config import Settings
from sidecar.config.engine import ENGINES
from sidecar.engines.adapters import engines, of_command
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.declaration import ABILITIES, Connect, Declaration
from sidecar.engines.detect import AnyEngine, make_engine
from sidecar.engines.long_prompt import LongPrompt, Pool
from sidecar.engines.protocol import CompletionRequest, Engine, EngineFacts
from sidecar.errors import EngineUnauthorized, NotAnEngine
from sidecar.warmup.bursts import Burst
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import load_profile
from sidecar.warmup.prompts import PromptSource
from tests.fakes.scripted import server_of
from tests.fakes.scripted.server import ScriptedServer

ADAPTERS = tuple(engines().values())
EACH = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda each: each.name)
#: Those that take requests at all; of the others nothing but health and metrics can be claimed.
DRIVEN = pytest.mark.parametrize(
    "adapter", [each for each in ADAPTERS if each.claims["token ids"].proof != "no"], ids=lambda each: each.name
)
MEASURED = pytest.mark.parametrize(
    "adapter", [each for each in ADAPTERS if each.claims["metrics"].proof != "no"], ids=lambda each: each.name
)
#: Those that answers tell from all others; a router is none that anybody means to drive, so its command line alone does.
ENGINES_THEMSELVES = pytest.mark.parametrize(
    "adapter", [each for each in ADAPTERS if not each.front], ids=lambda each: each.name
)
KEYED = pytest.mark.parametrize(
    "adapter", [each for each in ADAPTERS if each.claims["key"].proof != "no"], ids=lambda each: each.name
)
IDS = (1000, 2001, 3002, 4003, 5004)


@asynccontextmanager
async def talking(
    adapter: Declaration, given: str | None = None, **knobs: Any
) -> AsyncIterator[tuple[ScriptedServer, Engine]]:
    """Run the scripted server of an engine and its client; whatever the client asked must be declared."""
    server = server_of(adapter.name)()
    server.knobs(**knobs)
    async with server:
        engine = adapter.make(Connect(server.url, lambda: given, time.monotonic))
        engine.use_hints(hints_from_argv(server.command.split(), {}))
        try:
            yield server, engine
        finally:
            await engine.close()
    declared = {each.path for each in adapter.endpoints} | {"/v1/embeddings", "/score", "/classify"}
    assert {path for path in server.asked if not path.startswith("/v1/audio")} <= declared


async def test_every_engine_is_a_file_a_word_of_the_setting_and_a_scripted_server():
    assert set(ENGINES) == {"auto", *engines()}
    for name, adapter in engines().items():
        assert adapter.name == name
        assert issubclass(server_of(name), ScriptedServer)
        assert Settings(engine=name.upper()).engine == name


@EACH
def test_an_adapter_claims_every_ability_and_says_what_is_missing(adapter: Declaration):
    assert adapter.claims.keys() == ABILITIES.keys()
    assert all(claim.note for claim in adapter.claims.values() if claim.proof == "no")
    assert set(adapter.families) <= BY_NAME.keys()
    assert adapter.name == "vllm" or "real" not in {claim.proof for claim in adapter.claims.values()}


@EACH
def test_an_engine_is_known_by_its_command_line_and_no_other_takes_it(adapter: Declaration):
    words = server_of(adapter.name).command.split()
    assert of_command(words) is adapter
    assert of_command(["sh", "-c", f"exec {' '.join(words)}"]) is adapter
    assert hints_from_argv(["bash", "-c", " ".join(words)], {})["engine"].value == adapter.name


@ENGINES_THEMSELVES
async def test_an_engine_that_answers_is_chosen_without_being_named(adapter: Declaration):
    for key in (None, "secret") if adapter.claims["key"].proof != "no" else (None,):
        async with talking(adapter, key, key=key, metrics_on=key is None or adapter.name == "vllm") as (server, _):
            chosen = make_engine(Settings(engine_url=server.url), lambda: None, time.monotonic)
            assert (await chosen.health()).state == "up"
            assert chosen.name == adapter.name
            await chosen.close()
            server.asked.clear()


@EACH
async def test_a_command_line_chooses_the_engine_before_anything_answers(adapter: Declaration):
    server = server_of(adapter.name)()
    chosen = AnyEngine(Connect(server.url, lambda: None, time.monotonic))
    chosen.use_hints(hints_from_argv(server.command.split(), {}))
    assert chosen.name == adapter.name
    assert (await chosen.health()).state in ("refused", "timed_out", "reset")
    await chosen.close()
    await server.kill()


@EACH
async def test_an_engine_that_loads_is_not_up_and_is_up_once_it_has_loaded(adapter: Declaration):
    async with talking(adapter, state="loading") as (server, engine):
        if server.late_port:
            return
        health = await engine.health()
        assert health.state == "unhealthy"
        assert health.detail.endswith(".")
        server.knobs(state="up")
        assert (await engine.health()).state == "up"


@EACH
async def test_a_dead_core_and_a_dead_server_are_told_from_a_living_one(adapter: Declaration):
    async with talking(adapter) as (server, engine):
        assert (await engine.health()).state == "up"
        server.knobs(state="dead")
        assert (await engine.health()).state == "unhealthy"
        server.knobs(state="up")
        assert (await engine.health()).state == "up"
        await server.kill()
        assert (await engine.health()).state in ("refused", "reset")


@EACH
async def test_watching_and_learning_are_no_work_for_the_gpu(adapter: Declaration):
    async with talking(adapter) as (server, engine):
        for _ in range(20):
            await engine.health()
            await engine.stats()
        await engine.facts()
        await engine.adapters()
        assert server.worked == 0
        assert not [path for path in server.asked if "generate" in path]


@EACH
async def test_facts_are_those_that_the_engine_says_each_with_its_source(adapter: Declaration):
    async with talking(adapter) as (server, engine):
        facts = await engine.facts()
        assert facts.engine == adapter.name
        found = {name: getattr(facts, name) for name in server.said}
        assert found == dict(server.said)
        assert set(server.said) <= facts.sources.keys()


@KEYED
async def test_a_missing_key_is_a_sentence_about_the_file_and_the_right_one_is_taken(adapter: Declaration):
    async with talking(adapter, key="secret") as (_, engine):
        assert (await engine.health()).state == "up"
        with pytest.raises(EngineUnauthorized, match="WARMUP_API_KEY_FILE"):
            await engine.facts()
        assert (await engine.complete(CompletionRequest(prompt=IDS))).error_kind == "unauthorized"
    async with talking(adapter, "secret", key="secret") as (_, engine):
        assert (await engine.facts()).model
        assert (await engine.complete(CompletionRequest(prompt=IDS, max_tokens=3))).ok


@DRIVEN
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_token_ids_are_sent_as_they_are_and_the_answer_is_counted_and_timed(adapter: Declaration, stream: bool):
    async with talking(adapter) as (server, engine):
        first = []
        asked = CompletionRequest(
            prompt=IDS,
            max_tokens=4,
            stream=stream,
            cache_salt="s",
            on_first_token=lambda: first.append(1),
            extra={"ignore_eos": True},
        )
        result = await engine.complete(asked)
        assert result.ok, result.error
        assert (result.tokens, result.prompt_tokens, result.finish_reason) == (4, len(IDS), "length")
        assert len(result.text.split()) == 4
        assert (result.ttft_s is not None, len(result.gaps_s)) == ((True, 3) if stream else (False, 0))
        assert first == [1]
        assert server.prompt() == IDS


@DRIVEN
async def test_a_long_prompt_arrives_whole(adapter: Declaration):
    async with talking(adapter) as (server, engine):
        prompt = LongPrompt((5, 6, 7), Pool(range(1000, 1500)), 3, 6000)
        result = await engine.complete(CompletionRequest(prompt=prompt, max_tokens=1))
        assert result.ok, result.error
        assert server.prompt() == tuple(prompt)


@DRIVEN
async def test_chat_messages_and_text_are_taken_too(adapter: Declaration):
    async with talking(adapter) as (_, engine):
        messages = ({"role": "user", "content": "hello"},)
        for asked in (
            CompletionRequest(messages=messages, max_tokens=3),
            CompletionRequest(prompt="a river", max_tokens=3),
        ):
            result = await engine.complete(asked)
            assert result.ok, result.error
            assert result.text


@DRIVEN
async def test_an_error_inside_a_good_status_is_an_error(adapter: Declaration):
    async with talking(adapter, break_streams=True) as (_, engine):
        result = await engine.complete(CompletionRequest(prompt=IDS, max_tokens=4))
        assert (result.ok, result.error_kind) == (False, "broken")


@DRIVEN
async def test_log_probabilities_of_the_output_are_read(adapter: Declaration):
    async with talking(adapter) as (_, engine):
        result = await engine.complete(CompletionRequest(prompt=IDS, max_tokens=3, extra={"logprobs": 1}))
        assert result.ok, result.error
        assert result.logprobs is not None
        assert len(result.logprobs) == 3
        assert all(-20 < value < 0 for value in result.logprobs)


@MEASURED
async def test_metrics_give_the_numbers_that_all_engines_give(adapter: Declaration):
    async with talking(adapter) as (_, engine):
        stats = await engine.stats()
        assert stats.missing == ""
        for name in ("kv_cache_usage", "running", "waiting", "prompt_tokens_total", "generation_tokens_total"):
            assert getattr(stats, name) is not None, name
        assert (stats.progress is not None) == (adapter.claims["stalls"].proof != "no")


@MEASURED
async def test_an_engine_without_metrics_says_how_to_switch_them_on_and_shows_no_zeros(adapter: Declaration):
    async with talking(adapter, metrics_on=False) as (_, engine):
        if not adapter.owners:
            with pytest.raises(NotAnEngine, match="DYN_SYSTEM_PORT"):
                await engine.stats()
            return
        stats = await engine.stats()
        assert "can't be seen" in stats.missing
        assert stats.running is stats.kv_cache_usage is stats.progress is None


@EACH
async def test_sleep_is_seen_where_it_is_claimed(adapter: Declaration):
    async with talking(adapter, asleep=True) as (server, engine):
        assert bool((await engine.stats()).asleep) is server.can_sleep
        assert server.can_sleep is (adapter.claims["asleep"].proof != "no")


@EACH
@pytest.mark.parametrize("other", [each for each in ADAPTERS if each.owners], ids=lambda each: each.name)
async def test_a_client_refuses_another_engine_by_its_name(adapter: Declaration, other: Declaration):
    if adapter is other or not adapter.owners:
        return
    async with talking(other) as (server, _):
        engine = adapter.make(Connect(server.url, lambda: None, time.monotonic))
        with pytest.raises(
            NotAnEngine, match=rf"is {other.title} and not {adapter.title}: set WARMUP_ENGINE={other.name}"
        ):
            await engine.facts()
        await engine.close()
        server.asked.clear()


@DRIVEN
@pytest.mark.parametrize("profile", ["sm90", "sm100-nvfp4", "cpu"])
async def test_every_step_of_a_profile_is_taken_by_the_engine(adapter: Declaration, profile: str):
    """Steps whose feature an engine has no field for become plain requests; none is refused."""
    async with talking(adapter) as (_, engine):
        plan = make_plan(load_profile(profile), await engine.facts())
        source = PromptSource(random.Random(1), 32000)
        refused = {}
        for step in plan.steps:
            for asked in [request for burst in step.bursts for request in _one_of_each(source, burst)]:
                result = await engine.complete(asked)
                if not result.ok and result.error_kind != "unsupported":
                    refused[step.title] = result.error
                if result.error_kind == "unsupported" and adapter.name != "vllm":
                    refused[step.title] = result.error
        assert refused == {}
        assert {"prefill", "decode", "mixed", "shared_prefix"} <= {step.kind for step in plan.steps} or profile == "cpu"


def _one_of_each(source: PromptSource, burst: Burst) -> list[CompletionRequest]:
    found = []
    for phase in burst.phases:
        for ask in phase:
            if ask.prompt_tokens <= 2048:
                small = type(burst)(burst.key, ((_single(ask),),), burst.then)
                found += source.requests(small, 20.0)[0][:1]
    return found


def _single(ask: Any) -> Any:
    import dataclasses

    return dataclasses.replace(ask, count=1, output_tokens=min(ask.output_tokens, 4))


@EACH
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_that_is_not_claimed_is_sent_nothing(adapter: Declaration, role: str):
    facts = EngineFacts(engine=adapter.name, version=None, model="m", role=role)
    claimed = adapter.claims[f"{role} role"].proof != "no"
    plan = make_plan(load_profile("sm90"), facts)
    # vLLM's roles depend on what moves the KV cache; without one that is known nothing is sent either.
    assert bool(plan.unwarmed) is (not claimed or adapter.name == "vllm")
