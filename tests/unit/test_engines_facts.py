"""What is known of an engine from flags, log lines, metrics and development mode, each with its source."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.engines import exposition
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.log_lines import hints_from_line
from sidecar.engines.protocol import CompletionRequest, EngineFacts, Hint, Work
from sidecar.engines.server_facts import Answers, facts_of_hints, gather
from sidecar.engines.vllm import VllmEngine
from sidecar.engines.weights import scheme_of_config, scheme_of_name

CARD = {"id": "m", "owned_by": "vllm", "root": "/nowhere"}


def _flags(command: str, **environment: str) -> EngineFacts:
    return facts_of_hints(hints_from_argv(["vllm", "serve", "m", *command.split()], environment))


def _said(info: dict[str, Any] | None = None, page: str = "", **answers: Any) -> EngineFacts:
    return gather(Answers(card=CARD, metrics=exposition.read(page), server_info=info or {}, **answers), {})


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("-tp 4", "tensor_parallel", 4),
        ("--pipeline-parallel-size=2", "pipeline_parallel", 2),
        ("-dp 8", "dp_ranks", 8),
        ("-dp 8 --data-parallel-external-lb", "dp_ranks", 1),
        ("-dp 8 --data-parallel-rank 0", "dp_ranks", 1),
        ("-dp 8 --data-parallel-hybrid-lb --data-parallel-size-local 2", "dp_ranks", 2),
        ("--speculative-config.num_speculative_tokens 5", "speculative_tokens", 5),
        ("--attention-backend FLASHINFER", "attention_backend", "FLASHINFER"),
        ("--cudagraph-capture-sizes 1 2 4", "cudagraph_sizes", (1, 2, 4)),
        ("--task embed", "tasks", ("embed", "score")),
        ("--runner pooling --convert classify", "tasks", ("score", "classify")),
        ("", "tasks", ("generate",)),
        ("", "role", "both"),
        ("--kv-transfer-config.kv_role kv_producer", "role", "prefill"),
        ("--enforce-eager", "skipped_warmups", ("JIT kernels",)),
        ("--no-enable-flashinfer-autotune", "skipped_warmups", ("FlashInfer autotuning",)),
        ("--disable-flashinfer-autotune", "skipped_warmups", ("FlashInfer autotuning",)),
        ("-O0", "skipped_warmups", ("FlashInfer autotuning", "JIT kernels")),
        ("-O 3", "skipped_warmups", ()),
    ],
)
def test_a_flag_gives_a_fact(command, name, value):
    assert getattr(_flags(command), name) == value


def test_a_flag_with_json_gives_role_connectors_and_drafted_tokens():
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
            "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "OffloadingConnector"}]
        },
    }
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    argv = ["vllm", "serve", "m", "--kv-transfer-config", json.dumps(transfer), "-sc", json.dumps(drafts)]
    facts = facts_of_hints(hints_from_argv(argv, {}))
    assert (facts.role, facts.kv_connectors) == ("decode", ("NixlConnector", "OffloadingConnector"))
    assert facts.speculative_tokens == 3
    assert facts.sources["role"] == "argv --kv-transfer-config"


def test_without_a_known_command_line_the_role_is_unknown():
    assert facts_of_hints({"gpu_memory_gib": Hint(80.0, "NVML")}).role is None


def test_variables_of_the_environment_give_facts_with_their_names():
    facts = _flags("", VLLM_DEEP_GEMM_WARMUP="skip", VLLM_ATTENTION_BACKEND="FLASH_ATTN")
    assert facts.skipped_warmups == ("DeepGEMM",)
    assert facts.sources["skipped_warmups"] == "environment VLLM_DEEP_GEMM_WARMUP=skip"
    assert facts.sources["attention_backend"] == "environment VLLM_ATTENTION_BACKEND"
    assert _flags("", VLLM_DEEP_GEMM_WARMUP="relax").skipped_warmups == ()


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "INFO [cuda.py:507] Using FLASHINFER attention backend out of potential backends: ['FLASH_ATTN'].",
            {"attention_backend": "FLASHINFER"},
        ),
        ("(EngineCore pid=7) INFO GPU KV cache size: 1,234,560 tokens", {"kv_tokens": 1234560}),
        (
            "INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', speculative_config=SpeculativeConfig("
            "method='ngram', model=None, num_spec_tokens=5), max_seq_len=4096, tensor_parallel_size=2, "
            "pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto, "
            "compilation_config={'cudagraph_capture_sizes': [8, 4, 2, 1], 'x': 1}",
            {
                "speculative_tokens": 5, "max_model_len": 4096, "tensor_parallel": 2, "pipeline_parallel": 1,
                "quantization": "none", "kv_cache_dtype": "auto", "cudagraph_sizes": (1, 2, 4, 8),
            },
        ),
        (
            "INFO non-default args: {'api_key': 's3cret', 'max_num_seqs': 64, 'quantization': 'fp8'}",
            {"max_num_seqs": 64, "quantization": "fp8"},
        ),
        ("INFO a user wrote 'max_num_seqs': 3 and quantization=awq", {}),
    ],
)  # fmt: skip
def test_a_log_line_gives_the_facts_in_it_and_nothing_else_of_it(line, facts):
    found = hints_from_line(line)
    assert {name: hint.value for name, hint in found.items()} == facts
    assert all(hint.source == "the engine's log" for hint in found.values())


def test_metrics_tell_ranks_drafted_tokens_sleep_and_what_the_kv_cache_holds():
    page = "\n".join([
        *(f'vllm:cache_config_info{{block_size="16",kv_cache_size_tokens="5000",engine="{rank}"}} 1' for rank in range(4)),
        *(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} 0' for place in range(3)),
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0',
        'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1',
    ])  # fmt: skip
    facts = _said(page=page)
    assert (facts.dp_ranks, facts.speculative_tokens, facts.kv_tokens, facts.asleep) == (4, 3, 5000, True)
    assert facts.sources["dp_ranks"] == "/metrics label engine"


def test_work_is_counted_for_each_rank():
    page = exposition.read(
        'vllm:prompt_tokens_total{engine="0"} 5\nvllm:generation_tokens_total{engine="0"} 2\n'
        'vllm:prompt_tokens_total{engine="7"} 0\n'
        'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_running{engine="7"} 3\n'
        'vllm:kv_cache_usage_perc{engine="7"} 0.25\n'
    )
    assert exposition.statistics(page).progress_by_rank == {"0": 7.0, "7": 0.0}
    assert exposition.statistics(page).load_by_rank == {"0": (0.0, 0.0), "7": (3.0, 0.25)}


def test_development_mode_tells_everything_and_counts_over_flags():
    info = {
        "vllm_config": {
            "model_config": {"quantization": None, "runner_type": "generate", "max_model_len": 4096},
            "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 4},
            "compilation_config": {"cudagraph_capture_sizes": [4, 1, 2]},
            "speculative_config": {"num_speculative_tokens": 6},
            "attention_config": {"backend": "vllm.v1.attention.backends.flashinfer.FlashInferBackend"},
            "kernel_config": {"enable_flashinfer_autotune": False},
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_producer"},
        },
        "vllm_env": {"VLLM_DEEP_GEMM_WARMUP": "skip"},
    }
    facts = _said(info)
    assert (facts.tensor_parallel, facts.dp_ranks, facts.speculative_tokens) == (2, 4, 6)
    assert (facts.cudagraph_sizes, facts.attention_backend) == ((1, 2, 4), "FlashInfer")
    assert (facts.quantization, facts.weights) == ("none", "none")
    assert (facts.role, facts.kv_connectors) == ("prefill", ("NixlConnector",))
    assert facts.skipped_warmups == ("DeepGEMM", "FlashInfer autotuning")
    assert {facts.sources[name] for name in ("tensor_parallel", "role", "skipped_warmups")} == {"/server_info"}


@pytest.mark.parametrize("info", [{"vllm_config": "one string"}, {"vllm_config": {"model_config": 7}}, {"x": []}])
def test_a_server_info_that_says_something_else_is_no_fault(info):
    assert _said(info).tensor_parallel is None


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "nvfp4",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}},
            "int8",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": []}, None),
        ({}, None),
    ],
)
def test_the_scheme_of_the_weights_is_read_from_the_checkpoint(config, scheme):
    assert scheme_of_config(config) == scheme


def test_a_name_that_stands_for_several_schemes_tells_none():
    assert scheme_of_name("compressed-tensors") is None
    assert scheme_of_name("modelopt_fp4") == "nvfp4"


Handler = Callable[[web.Request], Any]


@asynccontextmanager
async def _server(*paths: str, handler: Handler | None = None) -> AsyncIterator[tuple[VllmEngine, list[Any]]]:
    """Serve the endpoints of an engine, with POST at these paths, and give a client and what was posted."""
    seen: list[Any] = []

    async def post(request: web.Request) -> web.Response:
        form = request.content_type.startswith("multipart")
        body = dict(await request.post()) if form else await request.json()
        seen.append((request.path, body, dict(request.headers)))
        if handler is not None:
            answer: web.Response = handler(request)
            return answer
        answers = {"/v1/audio/transcriptions": {"text": "hm"}, "/rerank": {"results": []}, "/tokenize": {"count": 3}}
        return web.json_response(answers.get(request.path, {"data": [], "usage": {"prompt_tokens": 9}}))

    async def models(_request: web.Request) -> web.Response:
        adapters = [{"id": "lora", "parent": "m", "root": CARD["root"]}]
        return web.json_response({"data": [CARD, *adapters]})

    application = web.Application()
    application.add_routes([web.get("/v1/models", models), *(web.post(path, post) for path in paths)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    client = VllmEngine(f"http://127.0.0.1:{port}", api_key=lambda: "k", clock=time.monotonic)
    try:
        yield client, seen
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("paths", "tasks", "source"),
    [
        (("/v1/completions",), ("generate",), "the engine's endpoints"),
        (("/v1/embeddings", "/score"), ("embed", "score"), "the engine's endpoints"),
        (("/v1/audio/transcriptions",), ("transcription",), "the engine's endpoints"),
        (("/v1/completions", "/v1/embeddings"), ("generate",), "default, since the engine doesn't tell"),
        ((), ("generate",), "default, since the engine doesn't tell"),
    ],
)
async def test_what_an_engine_does_is_told_by_its_endpoints_without_sending_it_work(paths, tasks, source):
    async with _server(*paths) as (client, seen):
        facts = await client.facts()
    assert (facts.tasks, facts.sources["tasks"]) == (tasks, source)
    assert seen == []


@pytest.mark.parametrize("takes", [True, False])
async def test_whether_a_model_takes_pictures_is_asked_where_none_is_worked_on(takes):
    def answer(request: web.Request) -> web.Response:
        return web.json_response({"count": 1}, status=200 if takes or len(seen) == 1 else 400)

    async with _server("/v1/completions", "/tokenize", handler=answer) as (client, seen):
        facts = await client.facts()
    assert (facts.chat, facts.images) == (True, takes)
    assert {path for path, *_ in seen} == {"/tokenize"}


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64}, 1),
        ({"architectures": ["LlamaForCausalLM"], "mm_projector_type": "linear"}, 3),
        ({"architectures": ["Phi3VForCausalLM"], "img_processor": {}}, 3),
        ({"architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": 64}, 3),
        ({"hidden_size": 64}, 3),
    ],
)
async def test_a_model_whose_files_tell_of_text_alone_is_not_asked_about_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object], asked: int
):
    monkeypatch.setitem(CARD, "root", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = web.json_response
    async with _server("/v1/completions", "/tokenize", handler=lambda _: answer({"count": 1})) as (client, seen):
        facts = await client.facts()
    assert (len(seen), facts.images) == (asked, asked > 1)


async def test_ranks_of_adapters_are_read_where_their_files_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CARD, "root", str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"r": 64}')
    async with _server("/v1/completions") as (client, _):
        facts = await client.facts()
    assert (facts.adapters, facts.adapter_ranks) == (("lora",), {"lora": 64})


@pytest.mark.parametrize(
    ("request_", "path", "fields"),
    [
        (CompletionRequest(prompt=(1, 2), work=Work("embed")), "/v1/embeddings", {"model": "m", "input": [1, 2]}),
        (
            CompletionRequest(prompt="a", work=Work("score", ("b", "c"))),
            "/score",
            {"model": "m", "text_1": "a", "text_2": ["b", "c"]},
        ),
        (
            CompletionRequest(prompt="a", work=Work("rerank", ("b",)), model="lora"),
            "/rerank",
            {"model": "lora", "query": "a", "documents": ["b"]},
        ),
    ],
)
async def test_other_work_goes_to_its_own_endpoint(request_, path, fields):
    async with _server("/v1/embeddings", "/score", "/rerank") as (client, seen):
        result = await client.complete(request_)
    assert result.ok, result.error
    assert (seen[0][0], seen[0][1]) == (path, fields)
    assert seen[0][2]["Authorization"] == "Bearer k"


async def test_a_recording_is_sent_as_a_file_of_a_form():
    async with _server("/v1/audio/transcriptions") as (client, seen):
        result = await client.complete(CompletionRequest(work=Work("transcription", audio=b"RIFF....", language="de")))
    assert (result.ok, result.text) == (True, "hm")
    form = seen[0][1]
    assert (form["model"], form["language"], form["file"].filename) == ("m", "de", "warmup.wav")
    assert form["file"].content_type == "audio/wav"


async def test_a_request_for_one_rank_carries_its_number():
    async with _server("/v1/completions") as (client, seen):
        await client.complete(CompletionRequest(prompt=(1,), rank=3))
        await client.complete(CompletionRequest(prompt=(1,)))
    assert seen[0][2]["X-data-parallel-rank"] == "3"
    assert "X-data-parallel-rank" not in seen[1][2]


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "unsupported"), (400, "unsupported"), (501, "unsupported"), (500, "broken")]
)
async def test_work_that_an_engine_does_not_do_is_unsupported_and_a_fault_is_broken(status, kind):
    def answer(_request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async with _server("/v1/embeddings", handler=answer) as (client, _):
        result = await client.complete(CompletionRequest(prompt=(1,), work=Work("embed")))
    assert (result.ok, result.error_kind, result.status) == (False, kind, status)


async def test_an_answer_that_holds_no_result_is_broken():
    async with _server("/score", handler=lambda _: web.json_response({"x": 1})) as (client, _):
        result = await client.complete(CompletionRequest(prompt="a", work=Work("score", ("b",))))
    assert (result.ok, result.error_kind) == (False, "broken")
