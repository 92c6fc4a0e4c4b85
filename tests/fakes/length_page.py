"""A server that shows an engine's histograms of lengths as vLLM or SGLang write them, and grows them as told.

Nothing is generated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.ports import unused_port

NAMES = {
    "vllm": ("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:num_requests_running"),
    "sglang": ("sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram", "sglang:num_running_reqs"),
}


class LengthPage:
    """Counts requests by size: `prompts` and `outputs` map upper bounds to how many lie below them and above the last."""

    def __init__(
        self, prompts: Mapping[float, int], outputs: Mapping[float, int], running: int = 0, engine: str = "vllm"
    ) -> None:
        self.prompts, self.outputs, self.running, self.engine = dict(prompts), dict(outputs), running, engine
        self.times = 1
        self.scrapes = 0
        self.grows = self.resets_at = 0
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._runner: web.AppRunner | None = None

    def text(self) -> str:
        """Write the page."""
        prompts, outputs, running = NAMES[self.engine]
        lines = [f'{running}{{model_name="m"}} {self.running}']
        for name, counts in ((prompts, self.prompts), (outputs, self.outputs)):
            reached = 0
            for bound, count in counts.items():
                reached += count * self.times
                shown = "+Inf" if bound == float("inf") else f"{bound:.1f}"
                lines.append(f'{name}_bucket{{le="{shown}",model_name="m"}} {reached}')
            lines += [f'{name}_count{{model_name="m"}} {reached}', f'{name}_sum{{model_name="m"}} 0']
        return "\n".join(lines) + "\n"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        self.times += self.grows
        if self.scrapes == self.resets_at:
            self.times = 1
        return web.Response(text=self.text())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "m", "owned_by": self.engine, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [card]})
