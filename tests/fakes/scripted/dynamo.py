"""A worker of Dynamo on its system port: health and metrics, and nothing that takes a request.

Source: Dynamo documentation, "Health Checks" (status and endpoints as JSON, 503 until ready) and "Metrics".
"""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.scripted.server import PAGES, ScriptedServer


class Server(ScriptedServer):
    """`python -m dynamo.vllm` with DYN_SYSTEM_PORT."""

    command = "python3 -m dynamo.vllm --model q --max-model-len 4096 --disaggregation-mode prefill"
    said: ClassVar[dict[str, Any]] = {"model": "q", "max_model_len": 4096, "role": "prefill"}
    late_port = False
    can_sleep = True

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/health", self._health), web.get("/live", self._health), web.get("/metrics", self.page)]

    async def _health(self, request: web.Request) -> web.Response:
        ready = self.state == "up"
        told = {"status": "ready" if ready else "notready", "uptime": {"secs": 3, "nanos": 0}, "endpoints": {}}
        return web.json_response(told, status=200 if ready else 503)

    def exposition(self) -> str:
        own = 'dynamo_component_uptime_seconds{dynamo_namespace="d"} 3\n'
        page = (PAGES / "vllm-0.33.txt").read_text(encoding="utf-8")
        awake = [line for line in page.splitlines(keepends=True) if not line.startswith("vllm:engine_sleep_state")]
        states = {"awake": not self.asleep, "weights_offloaded": self.asleep, "discard_all": False}
        told = [
            f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {int(on)}\n' for name, on in states.items()
        ]
        return own + "".join((*awake, *told))
