"""Claims about SGLang, TensorRT-LLM and Dynamo that no other engine shares, each on its scripted server."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import families, normalise
from sidecar.config import Settings
from sidecar.engines.adapters import of_name, trtllm
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.declaration import Connect
from sidecar.engines.detect import look, make_engine
from sidecar.engines.exposition import read
from sidecar.engines.protocol import CompletionRequest, Engine, EngineFacts, Hint
from sidecar.engines.server_facts import facts_of_hints, read_local
from sidecar.engines.weights import scheme_of_config
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import load_profile
from sidecar.warmup.verify import verify
from tests.fakes.scripted.dynamo import Server as DynamoServer
from tests.fakes.scripted.server import ScriptedServer
from tests.fakes.scripted.sglang import Server as SglangServer
from tests.fakes.scripted.trtllm import Server as TrtllmServer

IDS = (1000, 2001, 3002)


@asynccontextmanager
async def client(server: ScriptedServer, name: str, **connect: Any) -> AsyncIterator[Engine]:
    async with server:
        engine = of_name(name).make(Connect(server.url, lambda: None, time.monotonic, **connect))
        try:
            yield engine
        finally:
            await engine.close()


def values(command: str) -> dict[str, Any]:
    return {name: hint.value for name, hint in hints_from_argv(command.split(), {}).items()}


async def test_an_sglang_without_ready_is_watched_by_its_model_and_asked_by_the_older_names():
    server = SglangServer()
    server.old = True
    async with client(server, "sglang") as engine:
        assert (await engine.health()).state == "up"
        assert (await engine.facts()).max_num_seqs == 128
    assert not [path for path in server.asked if path.startswith("/health")]


async def test_a_locked_sglang_without_ready_is_alive_and_its_key_is_asked_for():
    server = SglangServer()
    server.old, server.key = True, "secret"
    async with client(server, "sglang") as engine:
        assert (await engine.health()).state == "up"


@pytest.mark.parametrize("deltas", [False, True], ids=["from the beginning", "new text only"])
async def test_text_of_native_events_is_not_counted_twice(deltas: bool):
    server = SglangServer()
    server.deltas = deltas
    async with client(server, "sglang") as engine:
        result = await engine.complete(CompletionRequest(prompt=IDS, max_tokens=4, extra={"logprobs": 0}))
    assert result.text == " the river ran under"
    assert result.token_ids == (100, 101, 102, 103)
    assert result.logprobs == (-0.25,) * 4


@pytest.mark.parametrize(("code", "status"), [(400, 200), (503, 503)])
async def test_a_request_that_sglang_gives_up_is_an_error_inside_a_good_status(
    monkeypatch: pytest.MonkeyPatch, code: int, status: int
):
    async def abort(self: SglangServer, body: Any) -> AsyncIterator[dict[str, Any]]:
        reason = {"type": "abort", "message": "Input is too long.", "status_code": code}
        yield {"text": "", "output_ids": [], "meta_info": {"finish_reason": reason}}

    monkeypatch.setattr(SglangServer, "_outputs", abort)
    async with client(SglangServer(), "sglang") as engine:
        result = await engine.complete(CompletionRequest(prompt=IDS, max_tokens=4))
    assert (result.error_kind, "Input is too long" in (result.error or "")) == ("broken", True)
    assert result.status == status


async def test_structured_output_and_sampling_arrive_in_sglangs_words():
    async with client(server := SglangServer(), "sglang") as engine:
        schema = {"type": "object"}
        extra = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            "min_tokens": 2,
            "seed": 7,
            "prompt_logprobs": 0,
            "bad_words": ["x"],
        }
        result = await engine.complete(CompletionRequest(prompt=IDS, max_tokens=4, extra=extra, cache_salt="salt"))
        assert result.ok, result.error
        assert result.prompt_logprobs == ({}, {8: -1.5})
        regex = {"structured_outputs": {"regex": "[a-z]+"}}
        assert (await engine.complete(CompletionRequest(prompt=IDS, extra=regex))).ok
    first, second = server.requests
    sampling = first["sampling_params"]
    assert json.loads(sampling["json_schema"]) == schema
    assert (sampling["min_new_tokens"], sampling["sampling_seed"], sampling["max_new_tokens"]) == (2, 7, 4)
    assert (first["extra_key"], first["logprob_start_len"]) == ("salt", 0)
    assert second["sampling_params"]["regex"] == "[a-z]+"


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_separated_sglang_is_warmed_without_a_peer_each_request_in_a_room_of_its_own(role: str):
    server = SglangServer()
    server.role = role
    async with client(server, "sglang") as engine:
        facts = await engine.facts()
        assert (facts.role, facts.kv_connectors) == (role, ("mooncake",))
        assert make_plan(load_profile("sm90"), facts).unwarmed == ""
        for _ in range(3):
            assert (await engine.complete(CompletionRequest(prompt=IDS, max_tokens=1))).ok
        assert len({body["bootstrap_room"] for body in server.requests}) == 3
        checked = await verify(engine, facts)
        assert (checked.outcome == "skipped") is (role == "decode")


async def test_json_metrics_of_trtllm_are_left_to_others_unless_they_may_be_consumed():
    server = TrtllmServer()
    server.metrics_on = False
    async with client(server, "trtllm") as engine:
        assert "return_perf_metrics" in (await engine.stats()).missing
        await engine.facts()
        assert "/metrics" not in server.asked
    consuming = TrtllmServer()
    consuming.metrics_on = False
    async with client(consuming, "trtllm", consume_metrics=True) as engine:
        for _ in range(2):
            stats = await engine.stats()
            assert (stats.running, stats.waiting, stats.kv_cache_usage) == (2, 3, 0.25)
        assert stats.progress is None
    assert consuming.iterations == []


async def test_a_look_at_an_unnamed_trtllm_does_not_read_its_json_metrics():
    async with TrtllmServer() as server:
        engine = make_engine(Settings(engine_url=server.url), lambda: None, time.monotonic)
        assert (await look(engine)).usable
        await engine.close()
    assert "/metrics" not in server.asked


async def test_trtllm_is_sent_no_field_that_it_refuses():
    async with client(server := TrtllmServer(), "trtllm") as engine:
        extra = {"structured_outputs": {"regex": "[a-z]"}, "return_token_ids": True, "prompt_logprobs": 1}
        result = await engine.complete(CompletionRequest(prompt=IDS, extra=extra, cache_salt="x", max_tokens=2))
        assert result.ok, result.error
    assert server.requests[-1]["response_format"] == {"type": "regex", "regex": "[a-z]"}


def _checkpoint(folder: Path, algorithm: str, config: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config or {"vocab_size": 32000}), encoding="utf-8")
    told = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    both = {"producer": {"name": "modelopt", "version": "0.33"}, "quantization": told}
    (folder / "hf_quant_config.json").write_text(json.dumps(both), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("algorithm", "quantization", "weights"),
    [("NVFP4", "modelopt_fp4", "nvfp4"), ("W4A16_NVFP4", "modelopt_fp4", "nvfp4"), ("FP8", "modelopt", "fp8")],
)
async def test_a_checkpoint_of_modelopt_is_named_in_the_facts(
    tmp_path: Path, algorithm: str, quantization: str, weights: str
):
    root = _checkpoint(tmp_path, algorithm)
    async with client(TrtllmServer(), "trtllm") as engine:
        engine.use_hints({"root": Hint(str(root), "argv of the engine")})
        facts = await engine.facts()
    assert (facts.quantization, facts.weights, facts.kv_cache_dtype) == (quantization, weights, "fp8")
    assert facts.sources["weights"] == "hf_quant_config.json of the model"


async def test_a_checkpoint_of_modelopt_is_named_by_its_configuration_alone(tmp_path: Path):
    told = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.39"},
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 32000, "quantization_config": told}), encoding="utf-8"
    )
    async with client(TrtllmServer(), "trtllm") as engine:
        engine.use_hints({"root": Hint(str(tmp_path), "argv of the engine")})
        facts = await engine.facts()
    assert (facts.quantization, facts.weights, facts.kv_cache_dtype) == ("modelopt", "nvfp4", "fp8")
    assert facts.sources["weights"] == "config.json of the model"


def test_a_configuration_that_tells_its_quantisation_counts_over_modelopts_file(tmp_path: Path):
    own = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    config, _ = read_local(str(_checkpoint(tmp_path, "NVFP4", own)), ())
    assert config is not None
    assert scheme_of_config(config["quantization_config"]) == "fp8_block"


def test_flags_of_other_engines_are_read_under_the_names_of_the_facts():
    sglang = values(
        "python -m sglang.launch_server --model-path=/m/q --tp 4 --context-length 8192 --disaggregation-mode prefill "
        "--disaggregation-transfer-backend nixl --api-key s3cret"
    )
    assert (sglang["tensor_parallel"], sglang["max_model_len"], sglang["role"]) == (4, 8192, "prefill")
    assert (sglang["kv_connectors"], sglang["api_key"]) == (("nixl",), True)
    trtllm = values("trtllm-serve serve m --max_batch_size 64 --max_num_tokens 4096 --server_role GENERATION")
    assert (trtllm["root"], trtllm["max_num_seqs"], trtllm["max_num_batched_tokens"]) == ("m", 64, 4096)
    assert trtllm["role"] == "decode"
    dynamo = values("python3 -m dynamo.sglang --model-path q --context-length 4096 --disaggregation-mode decode")
    assert (dynamo["engine"], dynamo["max_model_len"], dynamo["role"]) == ("dynamo", 4096, "decode")
    assert values("python3 -m dynamo.vllm --model q --is-prefill-worker")["role"] == "prefill"


@pytest.mark.parametrize(("value", "skipped"), [("0", ("DeepGEMM",)), ("false", ("DeepGEMM",)), ("1", ()), ("", ())])
def test_an_sglang_that_leaves_deepgemm_to_the_first_requests_is_known(value: str, skipped: tuple[str, ...]):
    environment = {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": value}
    facts = facts_of_hints(hints_from_argv(["sglang", "serve", "--model-path", "q"], environment))
    assert facts.skipped_warmups == skipped


def test_facts_of_a_command_line_name_its_engine():
    assert facts_of_hints(hints_from_argv(["sglang", "serve", "--model-path", "q"], {})).engine == "sglang"


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_a_worker_of_dynamo_is_sent_nothing_and_flagged(role: str):
    plan = make_plan(load_profile("sm90"), EngineFacts(engine="dynamo", version=None, model="m", role=role))
    assert "Dynamo's frontend" in plan.unwarmed
    assert "unwarmed" in plan.unwarmed


async def test_a_request_to_a_worker_of_dynamo_is_refused_here_and_not_sent():
    async with client(server := DynamoServer(), "dynamo") as engine:
        result = await engine.complete(CompletionRequest(prompt=IDS))
    assert (result.error_kind, server.asked) == ("unsupported", [])


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("dynamo_frontend_requests_total 3", "Dynamo's frontend"),
        ("sgl_router_requests_total 3", "SGLang's router"),
        (
            'vllm:num_requests_running{server="http://10.0.0.7:8000"} 1\nvllm:current_qps{server="x"} 3',
            "production stack",
        ),
    ],
)
def test_what_stands_in_front_of_engines_is_known_by_its_metrics(line: str, title: str):
    assert title in read(line + "\n").front
    assert read("vllm:num_requests_running 1\n").front == ""


def test_caches_of_other_engines_have_variables_and_the_autotuners_file_a_folder():
    moved = families.environment("/live")
    for name in ("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "SGLANG_CUTE_AOT_CACHE_DIR"):
        assert moved[name].startswith("/live/")
    assert moved["SGLANG_DG_CACHE_DIR"] == moved["DG_JIT_CACHE_DIR"]
    assert moved["TLLM_AUTOTUNER_CACHE_PATH"].rpartition("/")[0] in families.directories("/live")
    assert families.BY_NAME["trtllm_autotuner"].scope == "exact"


def test_addresses_of_peers_and_services_enter_no_key():
    given = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.1.2.3",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5557",
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": "8998",
        "VLLM_P2P_SIDE_CHANNEL_HOST": "10.1.2.3",
        "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "pod-1",
        "SGLANG_HOST_IP": "10.1.2.3",
        "DYN_SYSTEM_PORT": "8081",
        "DYN_NAMESPACE": "a",
        "NATS_SERVER": "nats://n",
        "ETCD_ENDPOINTS": "http://e:2379",
    }
    assert normalise.environment(given) == {}
    words = [
        "sglang",
        "serve",
        "--model-path",
        "q",
        "--dist-init-addr",
        "10.0.0.1:5000",
        "--disaggregation-bootstrap-port",
        "8998",
        "--enable-metrics",
    ]
    assert normalise.arguments(words) == normalise.arguments(words[:4])


def test_a_scheme_of_the_cache_that_is_written_in_an_odd_way_is_unknown():
    assert trtllm._cache_of({"kv_cache_scheme": {"type": ["float"], "num_bits": 8}}) is None
    assert trtllm._cache_of({"kv_cache_scheme": {"type": "float", "num_bits": 8}}) == "fp8"
