"""A router in front of engines: it answers /health and would hand every request on, which nobody may try.

Source: TensorRT-LLM, serve/openai_disagg_server.py (/health); SGLang's router documentation (/health, 503 without workers).
"""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.scripted.server import ScriptedServer


class Server(ScriptedServer):
    """`trtllm-serve disaggregated`."""

    command = "trtllm-serve disaggregated -c disagg_config.yaml"
    said: ClassVar[dict[str, Any]] = {"model": "trtllm-serve disaggregated"}
    late_port = False

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/health", self._health), web.post("/v1/completions", self.completions)]

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.state == "up" else 503)
