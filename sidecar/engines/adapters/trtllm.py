"""TensorRT-LLM's `trtllm-serve`: its declaration, its client, and what its requests may hold.

Source: TensorRT-LLM 1.x, tensorrt_llm/serve/{openai_server,openai_protocol}.py, tensorrt_llm/metrics/collector.py and
documentation "trtllm-serve". No real TensorRT-LLM was run against this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.config.routers import ENGINE_COMMANDS
from sidecar.engines import server_facts
from sidecar.engines.argv import Flag, number, port, positional, read_flags
from sidecar.engines.connection import UnansweredError
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.generation import body_of, converse
from sidecar.engines.http_engine import HttpEngine, text_of, typed
from sidecar.engines.protocol import CompletionRequest, EngineFacts, EngineStats, Hint
from sidecar.engines.recognition import json_object
from sidecar.engines.stream import Answer
from sidecar.engines.values import Gathered, mapping, text, whole

#: Options of `trtllm-serve serve`; underscores and dashes are the same.
FLAGS: Mapping[str, Flag] = {
    "--host": Flag("host"),
    "--port": Flag("port", port),
    "--max-seq-len": Flag("max_model_len", number),
    "--max-batch-size": Flag("max_num_seqs", number),
    "--max-num-tokens": Flag("max_num_batched_tokens", number),
    "--tp-size": Flag("tensor_parallel", number),
    "--pp-size": Flag("pipeline_parallel", number),
    "--kv-cache-dtype": Flag("kv_cache_dtype"),
    "--served-model-name": Flag("model"),
    "--extra-llm-api-options": Flag("config_file"),
    "--config": Flag("config_file"),
    "--server-role": Flag("role", lambda word: {"CONTEXT": "prefill", "GENERATION": "decode"}.get(word.upper())),
}
#: Starts one of the servers of a file for `trtllm-serve disaggregated` (documentation "trtllm-serve").
_MPI_WORKER = "disaggregated_mpi_worker"
#: Numbers of the file of --config that are facts, by their name there.
_ENTRIES: Mapping[str, str] = {
    "max_seq_len": "max_model_len",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "attn_backend": "attention_backend",
}
#: Every other field makes the request be refused (openai_protocol.py, OpenAIBaseModel forbids extra ones).
_TAKEN = frozenset(
    "model prompt messages max_tokens temperature top_p top_k min_p n seed stop stop_token_ids stream stream_options "
    "frequency_penalty presence_penalty repetition_penalty logit_bias logprobs top_logprobs min_tokens ignore_eos "
    "skip_special_tokens response_format echo detokenize".split()
)
#: What ModelOpt calls the type of a KV cache, which TensorRT-LLM follows without being told.
_CACHES = {"FP8": "fp8", "NVFP4": "nvfp4"}


class TrtllmEngine(HttpEngine):
    """A client of one `trtllm-serve`, 1.0 and newer.

    /health answers 503 once its executor has died; while it loads, its port refuses connections. Its JSON /metrics are gone
    for every other reader once they are read, so they are left alone unless `consume_metrics` is set.
    """

    name = "trtllm"
    title = "TensorRT-LLM"
    metrics_path = "/prometheus/metrics"

    def __init__(self, url: str, *, consume_metrics: bool = False, **given: Any) -> None:
        super().__init__(url, **given)
        self._consume = consume_metrics
        self._iteration: Mapping[str, Any] = {}

    def _no_metrics(self, status: int) -> str:
        return f"{super()._no_metrics(status)[:-1]}; start it with return_perf_metrics: true in its configuration."

    async def stats(self) -> EngineStats:
        """Read /prometheus/metrics, and where they are off and reading may consume them, the JSON of /metrics."""
        found = await super().stats()
        return await self._iterations() if found.missing and self._consume else found

    async def _iterations(self) -> EngineStats:
        """Take the newest of the iterations since the last reading; without new ones the last one stands."""
        try:
            reply = await self._http.get("/metrics", timeout_s=self._deadlines.metrics_s)
        except UnansweredError as error:
            raise typed(error) from error
        try:
            listed = json.loads(text_of(reply) or "[]")
        except (ValueError, RecursionError):
            listed = []
        if isinstance(listed, list) and listed:
            self._iteration = mapping(listed[-1])
        blocks = mapping(self._iteration.get("kvCacheStats"))
        used, most = blocks.get("usedNumBlocks"), whole(blocks.get("maxNumBlocks"))
        return EngineStats(
            running=_count(self._iteration.get("numActiveRequests")),
            waiting=_count(self._iteration.get("numQueuedRequests")),
            kv_cache_usage=used / most if isinstance(used, int) and most else None,
            missing="" if self._iteration else "The engine has shown no iteration in its JSON /metrics yet.",
        )

    async def facts(self) -> EngineFacts:
        """Ask /v1/models, /version and /server_info. Nothing of it is work for the GPU.

        Raises NotAnEngine, ModelNotServed or EngineError.
        """
        card, _ = await self._card()
        version, info = await asyncio.gather(self._quiet_get("/version"), self._quiet_get("/server_info"))
        hint = self._hints.get("root")
        root = str(hint.value) if hint is not None else str(card["id"])
        config, _ranks = await asyncio.to_thread(server_facts.read_local, root, ())
        found = Gathered()
        found.offer("version", text((json_object(version) or {}).get("version")), "/version")
        found.offer("model", text(card.get("id")), "/v1/models")
        found.offer("block_size", whole((json_object(info) or {}).get("tokens_per_block")), "/server_info")
        told = mapping(mapping(config).get("quantization_config"))
        self._served = str(card["id"])
        cache = None if "kv_cache_dtype" in self._hints else _cache_of(told)
        found.offer("kv_cache_dtype", cache, f"{told.get('from', 'config.json')} of the model")
        return server_facts.completed(self.name, found, self._hints, config or {})

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        if request.work is not None:
            answer.fail("unsupported", f"trtllm-serve is not asked for {request.work.kind}")
            return
        path = "/v1/completions" if request.messages is None else "/v1/chat/completions"
        await converse(self._http, path, accepted_body(request, await self._model(request)), answer, self._clock, {})


def _cache_of(told: Mapping[str, Any]) -> str | None:
    """Give the type of the KV cache that a checkpoint of ModelOpt asks for, by its older file or in its config.json."""
    scheme = mapping(told.get("kv_cache_scheme"))
    by_scheme = "fp8" if (scheme.get("type"), scheme.get("num_bits")) == ("float", 8) else None
    return _CACHES.get(str(told.get("kv_cache_quant_algo")).upper()) or by_scheme


def accepted_body(request: CompletionRequest, model: str) -> dict[str, Any]:
    """Give the JSON of a request with the fields it takes, structured output in its own spelling."""
    asked = body_of(request, model)
    pattern = mapping(asked.get("structured_outputs")).get("regex") or asked.get("guided_regex")
    schema = mapping(mapping(asked.get("response_format")).get("json_schema")).get("schema")
    if pattern is not None:
        asked["response_format"] = {"type": "regex", "regex": pattern}
    elif schema is not None:
        asked["response_format"] = {"type": "json", "schema": schema}
    return {name: value for name, value in asked.items() if name in _TAKEN}


def _count(value: object) -> float | None:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else None


def hints(words: Sequence[str], _environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read the options of `trtllm-serve MODEL …` or `trtllm-serve serve MODEL …`."""
    found = read_flags(list(words), FLAGS)
    model = positional(list(words), "trtllm-serve")
    model = positional(list(words), "serve") if model == "serve" else model
    if model == _MPI_WORKER:
        # Its file says where it listens, and it is not read.
        found["port"] = Hint("unknown", f"argv {_MPI_WORKER}")
    elif model:
        found["root"] = Hint(model, "argv of the engine")
    found.setdefault("role", Hint("both", "argv of the engine, without --server_role"))
    return found


def config_hints(content: Mapping[str, Any]) -> dict[str, Hint]:
    """Read what the file of --config tells of limits and formats: fields of tensorrt_llm/llmapi/llm_args.py, 1.x."""
    found = {
        hint: Hint(value, name)
        for name, hint in _ENTRIES.items()
        if (value := whole(content.get(name)) if hint != "attention_backend" else text(content.get(name))) is not None
    }
    cache, graphs = mapping(content.get("kv_cache_config")), mapping(content.get("cuda_graph_config"))
    told = mapping(content.get("quant_config"))
    for algorithm, source in (
        (told.get("kv_cache_quant_algo"), "quant_config.kv_cache_quant_algo"),
        (cache.get("dtype"), "kv_cache_config.dtype"),
    ):
        if isinstance(algorithm, str) and algorithm.lower() not in ("auto", ""):
            found["kv_cache_dtype"] = Hint(algorithm.lower(), source)
    if (size := whole(cache.get("tokens_per_block"))) is not None:
        found["block_size"] = Hint(size, "kv_cache_config.tokens_per_block")
    sizes = graphs.get("batch_sizes")
    if isinstance(sizes, list) and (kept := tuple(sorted({size for each in sizes if (size := whole(each))}))):
        found["cudagraph_sizes"] = Hint(kept, "cuda_graph_config.batch_sizes")
    if (scheme := text(told.get("quant_algo"))) is not None:
        found["quantization"] = Hint(scheme.lower(), "quant_config.quant_algo")
    drafted = mapping(content.get("speculative_config"))
    for name in ("max_draft_len", "num_nextn_predict_layers"):
        if (count := whole(drafted.get(name))) is not None:
            found.setdefault("speculative_tokens", Hint(count, f"speculative_config.{name}"))
    if content.get("enable_autotuner") is False:
        found["skipped_warmups"] = Hint(("autotuning",), "enable_autotuner")
    return found


def _unwarmed(facts: EngineFacts) -> str:
    """A context worker keeps KV blocks until its peer fetches them, a generation worker needs what one has sent."""
    return "" if facts.role in (None, "both") else f"The engine's role is {facts.role}"


ENGINE = Declaration(
    name="trtllm",
    title="TensorRT-LLM",
    versions="1.0 to 1.4",
    make=lambda connect: TrtllmEngine.connected(connect, consume_metrics=connect.consume_metrics),
    owners=("tensorrt_llm",),
    command=ENGINE_COMMANDS["trtllm"],
    endpoints=(
        Endpoint("/health", "whether it is alive, every second"),
        Endpoint("/prometheus/metrics", "load, tokens and latencies, every 5 s; with return_perf_metrics"),
        Endpoint("/metrics", "load, only with WARMUP_CONSUME_METRICS: what is read there is gone for others"),
        Endpoint("/v1/models", "the model", key=True),
        Endpoint("/version", "its version"),
        Endpoint("/server_info", "size of KV blocks"),
        Endpoint("/v1/completions", "warm-up", key=True),
        Endpoint("/v1/chat/completions", "warm-up", key=True),
    ),
    #: tensorrt_llm/metrics/collector.py. 1.1 has its names without the prefix and nothing about load. Whether its gauges
    #: stand still between requests is not documented, so nothing is taken for a stall.
    metrics=MetricNames(
        prefixes=("trtllm_",),
        numbers={
            "kv_cache_usage": ("trtllm_kv_cache_utilization",),
            "running": ("trtllm_num_requests_running",),
            "waiting": ("trtllm_num_requests_waiting",),
            "prompt_tokens_total": ("trtllm_prompt_tokens_total",),
            "generation_tokens_total": ("trtllm_generation_tokens_total",),
        },
        histograms={
            "time_to_first_token": ("trtllm_time_to_first_token_seconds", "time_to_first_token_seconds"),
            "inter_token_latency": ("trtllm_time_per_output_token_seconds", "time_per_output_token_seconds"),
        },
        absent="start the engine with return_perf_metrics: true",
    ),
    listens=Listens(8000, "localhost"),
    hints=hints,
    config=config_hints,
    # Documentation "trtllm-serve": arguments in the file override those of the command line.
    config_counts=True,
    families=("trtllm_dg", "trtllm_autotuner"),
    claims={
        "recognised": Claim("scripted"),
        "loading, dead": Claim("scripted"),
        "key": Claim("no", "it has none; one is sent to whatever stands in front"),
        "facts": Claim("scripted", "model, version and block size; limits by its command line and the file of --config"),
        "token ids": Claim("scripted"),
        "steps": Claim("scripted"),
        "sampling": Claim("scripted", "but bad_words, which it has no field for"),
        "structured": Claim("scripted", "with guided decoding switched on"),
        "logprobs": Claim("scripted", "of output; it has none of prompts"),
        "metrics": Claim("scripted", "with return_perf_metrics, or by consent from its JSON"),
        "stalls": Claim("no", "none of its counters is documented to grow while a request runs"),
        "asleep": Claim("no", "no endpoint tells"),
        "prefill role": Claim("no", "health only, flagged as unwarmed"),
        "decode role": Claim("no", "health only, flagged as unwarmed"),
        "caches": Claim("scripted", "its variables only"),
    },
    unwarmed=_unwarmed,
)
