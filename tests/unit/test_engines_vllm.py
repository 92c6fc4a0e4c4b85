"""Claims about the client of vLLM, against a scripted engine on a real socket."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.engines.connection import Reply
from sidecar.engines.protocol import CompletionRequest, Hint
from sidecar.engines.vllm import Deadlines, VllmEngine
from sidecar.errors import EngineError, EngineUnauthorized, ModelNotServed, NotAnEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script

SHORT = Deadlines(health_s=0.8, metrics_s=0.8, facts_s=15, recheck_s=1.0, server_info_s=0.8)
PROMPT = CompletionRequest(prompt=tuple(range(3, 103)), max_tokens=8)
HELLO = ({"role": "user", "content": "Hello"},)


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(Script(log_jit=False)) as engine:
        yield engine


@pytest.fixture
async def client(fake: FakeEngine) -> AsyncIterator[VllmEngine]:
    made = make(fake)
    yield made
    await made.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens on the other end of a socket."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def make(fake: FakeEngine, *, model: str = "", key: str | None = None, strict: bool = True) -> VllmEngine:
    return VllmEngine(fake.url, api_key=lambda: key, clock=time.monotonic, model=model, strict=strict, deadlines=SHORT)


async def test_health_comes_over_one_kept_connection(client: VllmEngine):
    answers = [await client.health() for _ in range(3)]
    assert [each.state for each in answers] == ["up"] * 3
    assert [each.new_connection for each in answers] == [True, False, False]


async def test_traffic_does_not_disturb_the_kept_connection(client: VllmEngine):
    await client.health()
    await asyncio.gather(*(client.complete(PROMPT) for _ in range(20)))
    assert not (await client.health()).new_connection


async def test_an_engine_that_was_restarted_between_two_checks_is_a_new_connection_and_identity(
    fake: FakeEngine, client: VllmEngine
):
    await client.health()
    before = (await client.stats()).identity
    await fake.kill()
    await fake.start()
    again = await client.health()
    assert (again.state, again.new_connection) == ("up", True)
    assert (await client.stats()).identity != before


async def test_refused_hung_and_dead_are_three_things(fake: FakeEngine, client: VllmEngine):
    fake.script.health = "hang"
    assert (await client.health()).state == "timed_out"
    fake.script.health = "503"
    dead = await client.health()
    assert (dead.state, dead.status) == ("unhealthy", 503)
    await fake.kill()
    refused = await client.health()
    assert refused.state == "refused"
    assert fake.url in refused.detail


async def test_an_engine_that_loads_refuses_until_it_is_loaded():
    async with FakeEngine(Script(load_seconds=0.05, log_jit=False)) as fake:
        client = make(fake)
        assert (await client.health()).state == "refused"
        await until(lambda: fake.listening)
        assert (await client.health()).state == "up"
        await client.close()


async def test_facts_come_from_the_engine_with_their_sources(fake: FakeEngine, client: VllmEngine):
    fake.script.adapters = ["sql", "chat"]
    facts = await client.facts()
    assert (facts.model, facts.root, facts.version, facts.max_model_len) == (
        "fake-model",
        "/models/fake",
        "0.32.0",
        8192,
    )
    assert (facts.kv_cache_dtype, facts.block_size, facts.kv_blocks) == ("auto", 16, 4096)
    assert (facts.chat, facts.adapters) == (True, ("sql", "chat"))
    assert facts.calculate_kv_scales is False
    assert facts.sources["kv_blocks"] == "/metrics vllm:cache_config_info"
    assert facts.quantization is None
    assert "quantization" not in facts.sources
    assert json.loads(json.dumps(facts.to_json()))["adapters"] == ["sql", "chat"]


async def test_what_no_endpoint_tells_is_a_default_and_called_so(client: VllmEngine):
    facts = await client.facts()
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.vocab_size) == (2048, 256, 1000)
    for name in ("max_num_batched_tokens", "max_num_seqs", "vocab_size"):
        assert facts.sources[name].startswith("default")


async def test_defaults_follow_the_size_of_the_gpu_when_it_is_known(client: VllmEngine):
    client.use_hints({"gpu_memory_gib": Hint(80.0, "NVML")})
    facts = await client.facts()
    assert (facts.max_num_batched_tokens, facts.max_num_seqs) == (8192, 1024)


async def test_hints_count_over_defaults_and_the_engine_over_hints(fake: FakeEngine, client: VllmEngine):
    client.use_hints(
        {
            "max_num_seqs": Hint(64, "argv --max-num-seqs"),
            "max_model_len": Hint(1, "argv --max-model-len"),
            "quantization": Hint("fp8", "argv --quantization"),
            "vocab_size": Hint("many", "nonsense"),
        }
    )
    facts = await client.facts()
    assert (facts.max_num_seqs, facts.sources["max_num_seqs"]) == (64, "argv --max-num-seqs")
    assert (facts.max_model_len, facts.quantization, facts.vocab_size) == (8192, "fp8", 1000)
    fake.script.dev_mode = True
    facts = await client.facts()
    assert (facts.max_num_seqs, facts.vocab_size, facts.sources["vocab_size"]) == (256, 32000, "/server_info")


async def test_facts_do_not_wait_for_a_slow_server_info_when_there_are_hints(fake: FakeEngine, client: VllmEngine):
    fake.script.dev_mode, fake.script.server_info_seconds = True, 60.0
    client.use_hints({"max_num_seqs": Hint(64, "argv --max-num-seqs")})
    async with asyncio.timeout(15):
        assert (await client.facts()).max_num_seqs == 64


async def test_the_vocabulary_comes_from_the_model_directory_when_it_is_local(
    fake: FakeEngine, client: VllmEngine, tmp_path: Path
):
    fake.script.root = str(tmp_path)
    config = {"text_config": {"vocab_size": 151936}, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = await client.facts()
    assert (facts.vocab_size, facts.quantization) == (151936, "fp8")
    (tmp_path / "config.json").write_bytes(b"\xff{")
    assert (await client.facts()).vocab_size == 1000


async def test_a_model_without_chat_template_is_known_before_any_chat_is_sent(fake: FakeEngine, client: VllmEngine):
    fake.script.chat_template = False
    assert (await client.facts()).chat is False
    assert fake.counters.texts == 0
    assert (await client.complete(CompletionRequest(messages=HELLO))).error_kind == "unsupported"


async def test_a_model_that_is_not_served_is_named_beside_those_that_are(fake: FakeEngine):
    client = make(fake, model="other")
    with pytest.raises(ModelNotServed, match="'other'; it serves fake-model"):
        await client.facts()
    result = await client.complete(PROMPT)
    assert (result.error_kind, result.status) == ("unsupported", 404)
    await client.close()


async def test_an_adapter_can_be_the_model(fake: FakeEngine):
    fake.script.adapters = ["sql"]
    client = make(fake, model="sql")
    assert (await client.facts()).model == "sql"
    await client.close()


async def test_the_key_is_sent_where_it_is_needed_and_a_wrong_one_says_what_to_do(fake: FakeEngine):
    fake.script.api_key = "right"
    good, bad = make(fake, key="right\n"), make(fake, key="wrong")
    assert (await good.facts()).model == "fake-model"
    assert (await good.complete(PROMPT)).ok
    with pytest.raises(EngineUnauthorized, match="WARMUP_API_KEY_FILE"):
        await bad.facts()
    refused = await bad.complete(CompletionRequest(prompt="hi", model="fake-model"))
    assert (refused.error_kind, refused.status) == ("unauthorized", 401)
    assert "WARMUP_API_KEY_FILE" in str(refused.error)
    assert "wrong" not in str(refused.error)
    assert (await bad.health()).state == "up"
    assert (await bad.stats()).running == 0
    await good.close()
    await bad.close()


async def test_a_streamed_completion_has_times_text_and_counts(client: VllmEngine):
    result = await client.complete(PROMPT)
    assert result.ok
    assert (result.status, result.tokens, result.prompt_tokens) == (200, 8, 100)
    assert result.finish_reason == "length"
    assert len(result.text.split()) == 8
    assert result.ttft_s is not None
    assert 0 < result.ttft_s <= result.total_s
    assert len(result.gaps_s) == 7


async def test_time_to_first_text_is_that_of_the_first_text(fake: FakeEngine, client: VllmEngine):
    fake.script.prefill_seconds_per_1k = 0.5
    result = await client.complete(PROMPT)
    assert result.ttft_s is not None
    assert result.ttft_s >= 0.05
    chat = await client.complete(CompletionRequest(messages=({"role": "user", "content": "x" * 400},)))
    assert chat.ttft_s is not None
    assert chat.ttft_s >= 0.05


async def test_what_is_sent_is_what_was_asked(fake: FakeEngine, client: VllmEngine):
    await client.complete(
        CompletionRequest(
            prompt=(1, 2), max_tokens=3, temperature=0.5, top_p=0.9, cache_salt="s", extra={"ignore_eos": True}
        )
    )
    await client.complete(CompletionRequest(prompt=(1,), stream=False, extra={"prompt_logprobs": 1}))
    first, second = fake.requests
    asked = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "cache_salt": "s", "ignore_eos": True}
    assert asked.items() <= first.items()
    assert first["stream_options"] == {"include_usage": True}
    assert "stream" not in second
    assert "stream_options" not in second
    assert "cache_salt" not in second


async def test_chat_and_log_probabilities_work_streamed_and_whole(client: VllmEngine):
    for stream in (True, False):
        chat = await client.complete(
            CompletionRequest(messages=HELLO, stream=stream, max_tokens=4, extra={"logprobs": True, "top_logprobs": 2})
        )
        text = await client.complete(CompletionRequest(prompt=(1,), stream=stream, max_tokens=4, extra={"logprobs": 2}))
        for result in (chat, text):
            assert result.ok
            assert result.logprobs is not None
            assert len(result.logprobs) == 4
            assert (result.ttft_s is not None) is stream


async def test_all_requests_run_at_once(fake: FakeEngine, client: VllmEngine):
    fake.script.generation = "hang"
    hanging = [asyncio.create_task(client.complete(PROMPT)) for _ in range(150)]
    await until(lambda: fake.counters.running == 150)
    for task in hanging:
        task.cancel()
    await asyncio.wait(hanging)
    await until(lambda: fake.counters.running == 0)
    assert fake.counters.aborted == 150


async def test_a_request_past_its_deadline_is_ended_and_closed(fake: FakeEngine, client: VllmEngine):
    fake.script.token_seconds = 0.02
    result = await client.complete(CompletionRequest(prompt=(1,), max_tokens=1000, deadline_s=1.0))
    assert (result.error_kind, result.ok, result.status) == ("timed_out", False, 200)
    assert result.text
    await until(lambda: fake.counters.aborted == 1)


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("500", "broken", "HTTP 500"),
        ("503", "broken", "HTTP 503"),
        ("error_in_stream", "broken", "inside a 200"),
        ("truncated", "broken", "[DONE]"),
        ("cut", "broken", "still there"),
        ("non_utf8", "not_json", "UTF-8"),
        ("huge_line", "not_json", "not JSON"),
        ("not_json", "not_json", "<html>"),
    ],
)
async def test_each_broken_answer_has_its_kind_and_a_sentence(
    fake: FakeEngine, client: VllmEngine, mode: str, kind: str, words: str
):
    fake.script.generation = mode
    result = await client.complete(PROMPT)
    assert (result.ok, result.error_kind) == (False, kind)
    assert words in str(result.error)
    assert "Traceback" not in str(result.error)


@pytest.mark.parametrize("mode", ["repeat", "nan", "empty"])
async def test_degenerate_text_is_no_error_of_the_transport(fake: FakeEngine, client: VllmEngine, mode: str):
    fake.script.generation = mode
    result = await client.complete(CompletionRequest(prompt=(1,), extra={"logprobs": 1}))
    assert result.ok
    assert (result.tokens == 0) is (mode == "empty")
    assert (result.ttft_s is None) is (mode == "empty")
    if mode == "nan":
        assert result.logprobs is not None
        assert all(math.isnan(each) for each in result.logprobs)


async def test_an_engine_that_dies_under_a_request_is_reset_and_then_refused(fake: FakeEngine, client: VllmEngine):
    fake.script.token_seconds = 0.01
    running = asyncio.create_task(client.complete(CompletionRequest(prompt=(1,), max_tokens=1000)))
    await until(lambda: fake.counters.generation_tokens >= 3)
    await fake.kill()
    assert (await running).error_kind == "reset"
    assert (await client.complete(PROMPT)).error_kind == "refused"


async def test_a_scripted_death_on_a_long_prompt_is_a_reset(fake: FakeEngine, client: VllmEngine):
    fake.script.die_on_tokens = 50
    assert (await client.complete(CompletionRequest(prompt=(1,) * 50))).ok
    assert (await client.complete(PROMPT)).error_kind == "reset"
    assert fake.died


@pytest.mark.parametrize("request_", [CompletionRequest(prompt=(40_000,)), CompletionRequest(prompt=(1,) * 9000)])
async def test_what_the_engine_refuses_is_unsupported_with_its_reason(client: VllmEngine, request_: CompletionRequest):
    result = await client.complete(request_)
    assert (result.error_kind, result.status) == ("unsupported", 400)
    assert "vocabulary" in str(result.error) or "maximum context length" in str(result.error)


async def test_models_that_answer_while_generation_does_not_are_no_proof(fake: FakeEngine, client: VllmEngine):
    fake.script.generation = "503"
    assert (await client.facts()).model == "fake-model"
    assert (await client.complete(PROMPT)).error_kind == "broken"


async def test_models_that_fail_are_an_error_that_may_pass(fake: FakeEngine, client: VllmEngine):
    fake.script.models_status = 503
    with pytest.raises(EngineError, match="HTTP 503 to /v1/models") as caught:
        await client.facts()
    assert caught.value.retry
    assert not isinstance(caught.value, NotAnEngine)


async def test_an_engine_without_metrics_is_an_engine_and_says_what_is_missing(fake: FakeEngine, client: VllmEngine):
    fake.script.no_metrics = True
    stats = await client.stats()
    assert (stats.running, stats.identity) == (None, None)
    assert "HTTP 404 to /metrics" in stats.missing
    facts = await client.facts()
    assert (facts.model, facts.kv_cache_dtype) == ("fake-model", None)
    fake.script.no_metrics, fake.script.metrics_names = False, "none"
    stats = await client.stats()
    assert stats.identity is not None
    assert "--disable-log-stats" in stats.missing


async def test_metrics_that_fail_for_now_are_an_error_and_no_reading(fake: FakeEngine, client: VllmEngine):
    fake.script.metrics_status = 500
    with pytest.raises(EngineError, match="HTTP 500 to /metrics"):
        await client.stats()


async def test_sleep_is_seen_in_the_metrics(fake: FakeEngine, client: VllmEngine):
    assert (await client.stats()).asleep is False
    fake.script.asleep = True
    assert (await client.stats()).asleep is True


async def test_an_engine_whose_weights_alone_were_woken_up_sleeps_whatever_its_metrics_say(
    fake: FakeEngine, client: VllmEngine
):
    fake.script.dev_mode = True
    fake.script.partly_awake = True
    assert (await client.stats()).asleep is True
    fake.script.partly_awake = False
    assert (await client.stats()).asleep is False
    fake.script.asleep = True
    assert (await client.stats()).asleep is True
    fake.script.asleep, fake.script.partly_awake = False, True
    assert (await client.stats()).asleep is True


@pytest.mark.parametrize("dev_mode", [True, False])
async def test_an_engine_that_is_known_to_be_awake_is_asked_for_its_metrics_alone(
    fake: FakeEngine, client: VllmEngine, dev_mode: bool, monkeypatch: pytest.MonkeyPatch
):
    fake.script.dev_mode = dev_mode
    asked: list[str] = []
    get = client._http.get

    async def noted(path: str, **more: Any) -> Reply:
        asked.append(path)
        return await get(path, **more)

    monkeypatch.setattr(client._http, "get", noted)
    for _ in range(3):
        assert (await client.stats()).asleep is False
    assert asked == ["/metrics", "/is_sleeping", "/metrics", "/metrics"]


async def test_an_engine_without_sleep_in_its_metrics_is_asked_each_time(fake: FakeEngine, client: VllmEngine):
    fake.script.dev_mode = True
    fake.script.no_metrics = True
    assert (await client.stats()).asleep is False
    fake.script.asleep = True
    assert (await client.stats()).asleep is True


async def test_frozen_counters_with_a_request_running_are_visible(fake: FakeEngine, client: VllmEngine):
    fake.script.freeze = True
    first, second = await client.stats(), await client.stats()
    assert first.running == 1
    assert first.progress == second.progress
    assert (await client.health()).state == "up"
