"""The scripted server of Tiny: its paths, its model list and its metrics; life, key and streams come with ScriptedServer."""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.scripted.server import ScriptedServer

PAGE = """
tiny_cache_usage 0.25
tiny_running 1
tiny_waiting 0
tiny_prompt_tokens_total 7
tiny_generation_tokens_total 3
"""


class Server(ScriptedServer):
    """`tiny-server`."""

    command = "tiny-server small --port 7000 --max-length 4096 --max-requests 8"
    said: ClassVar[dict[str, Any]] = {"model": "small", "max_model_len": 4096, "max_num_seqs": 8}
    late_port = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/health_generate", self._health_generate),
            web.get("/metrics", self.page),
            web.get("/v1/models", self._models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.completions),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.state == "up" else 503)

    async def _health_generate(self, request: web.Request) -> web.Response:
        self.generated += 1
        return await self._health(request)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "small", "object": "model", "owned_by": "tiny"}]})

    def exposition(self) -> str:
        return PAGE
