"""SGLang: its declaration, its client, and how requests and answers differ from vLLM's.

Everything about SGLang is here but the shape of its native answers (`engines/native_answer.py`). Source: SGLang 0.5.23,
srt/entrypoints/http_server.py, srt/managers/io_struct.py and documentation "SGLang Native APIs", "Sampling Parameters",
"Production Metrics". No real SGLang was run against this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.config.routers import ENGINE_COMMANDS
from sidecar.engines import server_facts
from sidecar.engines.argv import Flag, number, port, read_flags
from sidecar.engines.config_file import flags_in
from sidecar.engines.connection import Reply
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.generation import body_of, converse
from sidecar.engines.http_engine import HttpEngine
from sidecar.engines.native_answer import NativeAnswer
from sidecar.engines.protocol import CompletionRequest, EngineFacts, HealthState, Hint
from sidecar.engines.recognition import json_object
from sidecar.engines.stream import Answer
from sidecar.engines.values import Gathered, mapping, text, whole
from sidecar.engines.work import do_work

#: With this host for its peer a request of a separated worker is answered where it arrives: nothing is transferred and
#: nothing stays pinned. SGLang sends its own warm-up and health requests so (srt/disaggregation/utils.py,
#: FAKE_BOOTSTRAP_HOST; http_server.py, _execute_server_warmup).
NO_PEER = "2.2.2.2"
#: Rooms name the two halves of a request; each request of a worker needs one of its own (http_server.py, same place).
ROOMS = 2**63
#: srt/server_args.py. Names that other engines have too are read under the same hints.
FLAGS: Mapping[str, Flag] = {
    "--model-path": Flag("root"),
    "--model": Flag("root"),
    "--served-model-name": Flag("model"),
    "--host": Flag("host"),
    "--port": Flag("port", port),
    "--context-length": Flag("max_model_len", number),
    "--max-running-requests": Flag("max_num_seqs", number),
    "--chunked-prefill-size": Flag("max_num_batched_tokens", number),
    "--max-total-tokens": Flag("kv_tokens", number),
    "--page-size": Flag("block_size", number),
    "--kv-cache-dtype": Flag("kv_cache_dtype"),
    "--quantization": Flag("quantization"),
    "--config": Flag("config_file"),
    "--api-key": Flag("api_key", takes="secret"),
    "--ssl-keyfile": Flag("tls", lambda word: bool(word) or None),
    "--ssl-certfile": Flag("tls", lambda word: bool(word) or None),
    "--tensor-parallel-size": Flag("tensor_parallel", number),
    "--tp-size": Flag("tensor_parallel", number),
    "--tp": Flag("tensor_parallel", number),
    "--pipeline-parallel-size": Flag("pipeline_parallel", number),
    "--pp-size": Flag("pipeline_parallel", number),
    "--pp": Flag("pipeline_parallel", number),
    "--data-parallel-size": Flag("data_parallel_size", number),
    "--dp-size": Flag("data_parallel_size", number),
    "--dp": Flag("data_parallel_size", number),
    "--attention-backend": Flag("attention_backend"),
    "--cuda-graph-bs": Flag("cudagraph_sizes", number, "many"),
    "--speculative-num-draft-tokens": Flag("speculative_tokens", number),
    "--disaggregation-mode": Flag("role", lambda word: {"null": "both"}.get(word, word)),
    "--disaggregation-transfer-backend": Flag("transfer"),
    "--enable-metrics": Flag("enable_metrics", takes="switch"),
    "--is-embedding": Flag("is_embedding", takes="switch"),
    "--enable-lora": Flag("enable_lora", takes="switch"),
}
#: Fields of /server_info (all of srt/server_args.py, resolved) that are facts, by the fact's name.
_INFO: Mapping[str, tuple[str, ...]] = {
    "max_model_len": ("context_length",),
    "max_num_seqs": ("max_running_requests",),
    "max_num_batched_tokens": ("chunked_prefill_size", "max_prefill_tokens"),
    "kv_tokens": ("max_total_num_tokens", "max_total_tokens"),
    "block_size": ("page_size",),
    "tensor_parallel": ("tp_size",),
    "pipeline_parallel": ("pp_size",),
    "dp_ranks": ("dp_size",),
    "speculative_tokens": ("speculative_num_draft_tokens",),
}
#: OpenAI's names of sampling parameters, where /generate has others (documentation "Sampling Parameters").
_RENAMED: Mapping[str, str] = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_SAMPLING = frozenset(
    "temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty stop stop_token_ids ignore_eos "
    "skip_special_tokens n regex ebnf json_schema logit_bias".split()
)
#: What no field of SGLang stands for; a step that is about nothing else then costs a plain request.
_UNKNOWN = ("bad_words", "structured_outputs", "guided_regex", "prompt_logprobs", "return_tokens_as_token_ids")


class SglangEngine(HttpEngine):
    """A client of one SGLang server, 0.4.6 and newer.

    Its port opens before its own warm-up is done; /ready answers 503 until then. /health generates a token unless it is told
    not to, so neither it nor /health_generate is ever asked. Versions without /ready are asked for /get_model_info.
    """

    name = "sglang"
    title = "SGLang"
    health_path = "/ready"
    has_version = False
    _role: str | None = None
    _room = 0

    def _no_metrics(self, status: int) -> str:
        return f"{super()._no_metrics(status)[:-1]}; start it with --enable-metrics."

    async def _ask_health(self) -> Reply:
        reply = await super()._ask_health()
        if reply.status != 404:
            return reply
        older = await self._http.get("/get_model_info", timeout_s=self._deadlines.health_s, key=True, kept=True)
        # Whoever asks for a key is alive.
        status = 200 if older.status in (401, 403) else older.status
        return Reply(status, older.body, reply.new_connection or older.new_connection)

    def _judge_health(self, status: int) -> tuple[HealthState, str]:
        if status == 503:
            return "unhealthy", "The engine answers HTTP 503 to /ready: it starts, ends, or its scheduler has died."
        return super()._judge_health(status)

    async def facts(self) -> EngineFacts:
        """Ask /v1/models, /model_info and /server_info, under their older names too. Nothing of it is work for the GPU.

        Raises NotAnEngine, EngineUnauthorized, ModelNotServed or EngineError.
        """
        card, adapters = await self._card()
        info, model = await asyncio.gather(self._either("server_info"), self._either("model_info"))
        root = text(model.get("model_path")) or text(card.get("root"))
        config, ranks = await asyncio.to_thread(server_facts.read_local, root, adapters)
        found = Gathered()
        found.offer("version", text(info.get("version")), "/server_info")
        found.offer("model", text(card.get("id")), "/v1/models")
        found.offer("root", root, "/model_info")
        found.offer("max_model_len", whole(card.get("max_model_len")), "/v1/models")
        found.offer("adapters", tuple(str(each["id"]) for each in adapters) or None, "/v1/models")
        found.offer("adapter_ranks", ranks or None, "adapter_config.json of each adapter")
        _from_server_info(found, info)
        for name, senses in (("images", "has_image_understanding"), ("sounds", "has_audio_understanding")):
            found.offer(name, model.get(senses) if isinstance(model.get(senses), bool) else None, "/model_info")
        if isinstance(model.get("is_generation"), bool):
            found.offer("tasks", ("generate",) if model["is_generation"] else ("embed",), "/model_info")
        self._served = str(card["id"])
        facts = server_facts.completed(self.name, found, self._hints, config or {})
        self._role = facts.role
        return facts

    async def _either(self, name: str) -> Mapping[str, Any]:
        """Ask an endpoint by its name since 0.5, else by the one before."""
        for path in (f"/{name}", f"/get_{name}"):
            if (found := json_object(await self._quiet_get(path, key=True))) is not None:
                return found
        return {}

    def _answer(self, request: CompletionRequest) -> Answer:
        native = request.messages is None and request.work is None
        return (NativeAnswer if native else Answer)(first_text=request.on_first_token)

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        model = await self._model(request)
        apart = self._peerless()
        if request.work is not None:
            await do_work(self._http, request, request.work, model, answer)
        elif request.messages is not None:
            body = {name: value for name, value in body_of(request, model).items() if name not in _UNKNOWN}
            await converse(self._http, "/v1/chat/completions", {**body, **apart}, answer, self._clock, {})
        else:
            body = {**native_body(request, request.model), **apart}
            await converse(self._http, "/generate", body, answer, self._clock, {})

    def _peerless(self) -> dict[str, Any]:
        """Give the fields that let a separated worker answer alone; none for one that does all of the work."""
        hint = self._hints.get("role")
        if (self._role or (hint.value if hint is not None else None)) not in ("prefill", "decode"):
            return {}
        self._room = (self._room + 1) % ROOMS
        return {"bootstrap_host": NO_PEER, "bootstrap_room": self._room}


def native_body(request: CompletionRequest, adapter: str | None) -> dict[str, Any]:
    """Give the JSON of a request to /generate; what it has no field for is left out."""
    asked = body_of(request, "")
    sampling = {_RENAMED.get(name, name): value for name, value in asked.items() if name in _SAMPLING | {*_RENAMED}}
    structured = mapping(asked.get("structured_outputs"))
    schema = mapping(mapping(asked.get("response_format")).get("json_schema")).get("schema")
    if schema is not None:
        sampling["json_schema"] = json.dumps(schema)
    if (pattern := structured.get("regex") or asked.get("guided_regex")) is not None:
        sampling["regex"] = pattern
    prompt = request.prompt if request.prompt is not None else ""
    body: dict[str, Any] = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}
    logprobs, of_prompt = asked.get("logprobs"), asked.get("prompt_logprobs")
    if logprobs is not None or of_prompt is not None:
        counts = [value for value in (logprobs, of_prompt) if isinstance(value, int) and not isinstance(value, bool)]
        body |= {"return_logprob": True, "top_logprobs_num": max(counts, default=0)}
        body |= {"logprob_start_len": 0} if of_prompt is not None else {}
    if request.cache_salt is not None:
        # Keeps prefixes apart in its radix cache (srt/managers/io_struct.py, GenerateReqInput.extra_key).
        body["extra_key"] = request.cache_salt
    if adapter:
        body["lora_path"] = adapter
    if request.rank is not None:
        body["data_parallel_rank"] = request.rank
    return body | ({"stream": True} if asked.get("stream") else {})


def _from_server_info(found: Gathered, info: Mapping[str, Any]) -> None:
    for fact, names in _INFO.items():
        found.offer(fact, next((value for name in names if (value := whole(info.get(name)))), None), "/server_info")
    states = info.get("internal_states")
    inner = mapping(states[0]) if isinstance(states, list) and states else {}
    found.offer("kv_tokens", whole(mapping(inner.get("memory_usage")).get("token_capacity")), "/server_info")
    for fact in ("kv_cache_dtype", "quantization", "attention_backend"):
        found.offer(fact, text(info.get(fact)), "/server_info")
    sizes = info.get("cuda_graph_bs")
    if isinstance(sizes, list):
        kept = tuple(sorted({size for each in sizes if (size := whole(each))}))
        found.offer("cudagraph_sizes", kept or None, "/server_info")
    mode = info.get("disaggregation_mode")
    found.offer("role", {"null": "both", "prefill": "prefill", "decode": "decode"}.get(str(mode)), "/server_info")
    if mode in ("prefill", "decode"):
        transfer = text(info.get("disaggregation_transfer_backend"))
        found.offer("kv_connectors", (transfer,) if transfer else None, "/server_info")


def _roles(found: dict[str, Hint]) -> dict[str, Hint]:
    """Add what follows from role and ranks."""
    if "transfer" in found:
        found["kv_connectors"] = Hint((found["transfer"].value,), found["transfer"].source)
    if "data_parallel_size" in found:
        found["dp_ranks_here"] = found["data_parallel_size"]
    if found.get("is_embedding") is not None:
        found["task"] = Hint("embed", found["is_embedding"].source)
    return found


def hints(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read the flags of `sglang.launch_server` or `sglang serve`."""
    found = _roles(read_flags(list(words), FLAGS))
    if "config_file" not in found:
        found.setdefault("role", Hint("both", "argv of the engine, without --disaggregation-mode"))
    if environment.get("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "").lower() in ("0", "false"):
        found["skipped_warmups"] = Hint(("DeepGEMM",), "environment SGLANG_JIT_DEEPGEMM_PRECOMPILE")
    return found


def _unchecked(facts: EngineFacts) -> str:
    """A decode worker without a peer continues from KV blocks that nobody filled."""
    blank = "A decode worker of SGLang is warmed without a peer, from KV blocks that hold nothing"
    return blank if facts.role == "decode" else ""


ENGINE = Declaration(
    name="sglang",
    title="SGLang",
    versions="0.4.6 to 0.5.23",
    make=SglangEngine.connected,
    owners=("sglang",),
    command=ENGINE_COMMANDS["sglang"],
    endpoints=(
        Endpoint("/ready", "whether it is alive, every second"),
        Endpoint("/get_model_info", "the same in versions without /ready", key=True),
        Endpoint("/metrics", "load, tokens and latencies, every 5 s; with --enable-metrics"),
        Endpoint("/v1/models", "models and adapters", key=True),
        Endpoint("/server_info", "version, limits and role; /get_server_info in older versions", key=True),
        Endpoint("/model_info", "the model's place and what it takes", key=True),
        Endpoint("/generate", "warm-up with token ids", key=True),
        Endpoint("/v1/chat/completions", "warm-up of the chat template", key=True),
    ),
    #: srt/metrics/collector.py, 0.4 to 0.5. What it looks up in its prefix cache are the prompt tokens. Tokens are counted
    #: when a request ends, the times between tokens while it runs.
    metrics=MetricNames(
        prefixes=("sglang:", "sglang_"),
        numbers={
            "kv_cache_usage": ("sglang:token_usage",),
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "prompt_tokens_total": ("sglang:prompt_tokens_total",),
            "generation_tokens_total": ("sglang:generation_tokens_total",),
            "preemptions_total": ("sglang:num_retracted_requests_total",),
            "prefix_cache_hits_total": ("sglang:cached_tokens_total",),
            "prefix_cache_queries_total": ("sglang:prompt_tokens_total",),
        },
        histograms={
            "time_to_first_token": ("sglang:time_to_first_token_seconds",),
            "inter_token_latency": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        },
        progress=("sglang:inter_token_latency_seconds_count", "sglang:time_to_first_token_seconds_count"),
        prompt_lengths="sglang:prompt_tokens_histogram",
        output_lengths="sglang:generation_tokens_histogram",
        absent="start the engine with --enable-metrics",
    ),
    listens=Listens(30000, "127.0.0.1", "--ssl-certfile"),
    hints=hints,
    config=lambda content: _roles(flags_in(content, FLAGS)),
    families=("sglang", "sglang_jit", "sglang_cute_aot"),
    claims={
        "recognised": Claim("scripted"),
        "loading, dead": Claim("scripted", "by /ready, which generates nothing"),
        "key": Claim("scripted"),
        "facts": Claim("scripted"),
        "token ids": Claim("scripted", "through /generate"),
        "steps": Claim("scripted"),
        "sampling": Claim("scripted", "but bad_words, which it has no field for"),
        "structured": Claim("scripted"),
        "logprobs": Claim("scripted"),
        "metrics": Claim("scripted", "with --enable-metrics"),
        "stalls": Claim("scripted", "with --enable-metrics"),
        "asleep": Claim("no", "no endpoint tells"),
        "prefill role": Claim("scripted", "without a peer, as SGLang's own warm-up"),
        "decode role": Claim("scripted", "without a peer; its output is not checked"),
        "caches": Claim("scripted", "its variables only"),
    },
    mark="/ready",
    unchecked=_unchecked,
)
