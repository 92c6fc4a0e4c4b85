"""SGLang 0.5: status before and after its own warm-up, native generation, and metrics as its collector writes them.

Source: srt/entrypoints/http_server.py (health_generate, server_info, model_info, generate_request), srt/utils/auth.py,
srt/managers/tokenizer_manager.py (meta_info), documentation "SGLang Native APIs" and "Sampling Parameters".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.scripted.server import PAGES, WORDS, ScriptedServer, error

#: srt/sampling/sampling_params.py.
SAMPLING = frozenset(
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim custom_params stream_interval logit_bias sampling_seed".split()
)
#: srt/managers/io_struct.py, GenerateReqInput.
GENERATE = frozenset(
    "text input_ids sampling_params rid return_logprob logprob_start_len top_logprobs_num token_ids_logprob "
    "return_text_in_logprobs stream log_metrics lora_path bootstrap_host bootstrap_port bootstrap_room "
    "data_parallel_rank routed_dp_rank extra_key priority".split()
)


class Server(ScriptedServer):
    """SGLang 0.5.23; `role` is its --disaggregation-mode, `old` one without /ready and the shorter names."""

    command = (
        "python3 -m sglang.launch_server --model-path /models/q --context-length 16384 --max-running-requests 128 "
        "--chunked-prefill-size 8192 --tp 2 --enable-metrics --port 30000"
    )
    said: ClassVar[dict[str, Any]] = {
        "version": "0.5.23",
        "model": "q",
        "root": "/models/q",
        "max_model_len": 16384,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 8192,
        "kv_tokens": 200000,
        "block_size": 1,
        "tensor_parallel": 2,
        "attention_backend": "fa3",
        "role": "both",
        "tasks": ("generate",),
        "images": False,
    }
    late_port = False

    def __init__(self) -> None:
        super().__init__()
        self.role = "null"
        self.old = False
        self.deltas = False

    def locked(self, path: str) -> bool:
        return not path.startswith(("/health", "/ready", "/metrics"))

    def routes(self) -> list[web.RouteDef]:
        known = [
            web.get("/health", self._generating),
            web.get("/health_generate", self._generating),
            web.get("/v1/models", self._models),
            web.get("/metrics", self.page),
            web.get("/get_model_info", self._model),
            web.get("/get_server_info", self._info),
            web.post("/generate", self._generate),
            web.post("/v1/chat/completions", self.completions),
            web.post("/v1/completions", self.completions),
        ]
        newer = [
            web.get("/ready", self._ready),
            web.get("/model_info", self._model),
            web.get("/server_info", self._info),
        ]
        return known if self.old else [*known, *newer]

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.state == "up" else 503)

    async def _generating(self, request: web.Request) -> web.Response:
        """Both paths generate a token, unless the server is told otherwise by a variable."""
        if self.state == "up":
            self.generated += 1
        return await self._ready(request)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "q", "object": "model", "owned_by": "sglang", "root": "/models/q", "max_model_len": 16384}
        return web.json_response({"object": "list", "data": [card]})

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": "/models/q",
                "tokenizer_path": "/models/q",
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
            }
        )

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": "/models/q",
                "context_length": 16384,
                "max_running_requests": 128,
                "quantization": None,
                "chunked_prefill_size": 8192,
                "max_prefill_tokens": 16384,
                "page_size": 1,
                "tp_size": 2,
                "pp_size": 1,
                "dp_size": 1,
                "kv_cache_dtype": "auto",
                "attention_backend": "fa3",
                "cuda_graph_bs": [1, 2, 4, 8],
                "disaggregation_mode": self.role,
                "disaggregation_transfer_backend": "mooncake",
                "enable_metrics": True,
                "max_total_num_tokens": 200000,
                "internal_states": [{"memory_usage": {"token_capacity": 200000}}],
                "version": "0.5.23",
            }
        )

    def exposition(self) -> str:
        return (PAGES / "sglang-0.5.txt").read_text(encoding="utf-8")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self.body(request)
        unknown = {*body} - GENERATE | {*body["sampling_params"]} - SAMPLING
        if unknown:
            return error(400, f"unexpected fields: {sorted(unknown)}")
        if self.role != "null" and (body.get("bootstrap_host") != "2.2.2.2" or body.get("bootstrap_room") is None):
            return error(500, "no such peer")
        self.generated += 1
        events = [event async for event in self._outputs(body)]
        return await self.stream(request, _each(events)) if body.get("stream") else web.json_response(events[-1])

    async def _outputs(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        count = body["sampling_params"].get("max_new_tokens", 16)
        prompt = body.get("input_ids") or body.get("text", "").split()
        ids, logprobs, text = list(range(100, 100 + count)), [[-0.25, 100 + at, None] for at in range(count)], ""
        for at in range(count):
            if self.break_streams and at:
                yield {"error": {"message": "the scheduler has died"}}
                return
            word = f" {WORDS[at % len(WORDS)]}"
            text += word
            end = {"type": "length", "length": count} if at == count - 1 else None
            told: dict[str, Any] = {
                "id": "r",
                "finish_reason": end,
                "prompt_tokens": len(prompt),
                "completion_tokens": at + 1,
                "cached_tokens": 0,
                "weight_version": "default",
            }
            if body.get("return_logprob"):
                told["output_token_logprobs"] = logprobs[: at + 1]
                told["input_token_logprobs"] = (
                    [[None, 7, None], [-1.5, 8, None]] if body.get("logprob_start_len") == 0 else []
                )
            new = slice(at, at + 1) if self.deltas else slice(0, at + 1)
            yield {"text": word if self.deltas else text, "output_ids": ids[new], "meta_info": told}


async def _each(events: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event
