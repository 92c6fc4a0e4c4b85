"""TensorRT-LLM's `trtllm-serve` 1.x: requests with a field too many are refused, JSON metrics are gone once read.

Source: tensorrt_llm/serve/openai_server.py (register_routes, get_iteration_stats), openai_protocol.py (CompletionRequest,
OpenAIBaseModel), documentation "trtllm-serve" (metrics endpoint).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.scripted.server import PAGES, ScriptedServer, error

_BOTH = (
    "model max_tokens temperature top_p top_k min_p n seed stop stop_token_ids stream stream_options frequency_penalty "
    "presence_penalty repetition_penalty logit_bias logprobs min_tokens ignore_eos skip_special_tokens response_format "
    "add_special_tokens user best_of length_penalty early_stopping use_beam_search detokenize disaggregated_params"
).split()
COMPLETION = frozenset((*_BOTH, "prompt", "echo", "suffix"))
CHAT = frozenset((*_BOTH, "messages", "top_logprobs", "tools", "max_completion_tokens"))


class Server(ScriptedServer):
    """trtllm-serve; `iterations` are those that nobody has read yet, `plain_metrics` counts readings of them."""

    command = "trtllm-serve nvidia/q-NVFP4 --max_seq_len 16384 --max_batch_size 64 --max_num_tokens 4096 --tp_size 2"
    said: ClassVar[dict[str, Any]] = {"version": "1.4.0", "model": "q-NVFP4", "block_size": 32}

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[dict[str, Any]] = [self.iteration(1), self.iteration(2)]

    @staticmethod
    def iteration(active: int) -> dict[str, Any]:
        """Give the statistics of one iteration."""
        return {
            "gpuMemUsage": 56401920000,
            "cpuMemUsage": 0,
            "iter": active,
            "iterLatencyMS": 16.5,
            "numActiveRequests": active,
            "numQueuedRequests": 3,
            "maxNumActiveRequests": 64,
            "kvCacheStats": {
                "maxNumBlocks": 100,
                "freeNumBlocks": 75,
                "usedNumBlocks": 25,
                "tokensPerBlock": 32,
                "cacheHitRate": 0.5,
            },
        }

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/health_generate", self._health_generate),
            web.get("/version", self._version),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._iterations),
            web.get("/prometheus/metrics", self.page),
            web.get("/server_info", self._info),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.completions),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        dead = "LLM is unavailable. Please check the server logs for more details."
        return web.Response() if self.state == "up" else web.Response(status=503, text=dead)

    async def _health_generate(self, request: web.Request) -> web.Response:
        self.generated += 1
        return await self._health(request)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "1.4.0"})

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "q-NVFP4", "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
        return web.json_response({"object": "list", "data": [card]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"kv_cache_hash_algo": "v1_block_key", "tokens_per_block": 32})

    async def _iterations(self, request: web.Request) -> web.Response:
        taken, self.iterations = self.iterations, []
        return web.json_response(taken)

    def exposition(self) -> str:
        return (PAGES / "trtllm-1.4.txt").read_text(encoding="utf-8")

    def refusal(self, body: Mapping[str, Any]) -> web.Response | None:
        extra = {*body} - (CHAT if "messages" in body else COMPLETION)
        if extra:
            return error(400, f"Extra inputs are not permitted: {sorted(extra)}")
        if body.get("stream_options") and not body.get("stream"):
            return error(400, "Stream options can only be defined when stream is true.")
        kind = (body.get("response_format") or {}).get("type", "text")
        return None if kind in ("text", "json", "regex") else error(400, f"Unsupported response format: {kind}")
