"""vLLM for the contract of adapters: the scripted engine of all other tests, seen through the same knobs."""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.fakes.scripted.server import ScriptedServer


class Server(ScriptedServer):
    """The scripted vLLM 0.32."""

    command = "vllm serve fake-model --max-model-len 8192 --max-num-seqs 256 --kv-cache-dtype auto"
    said: ClassVar[dict[str, Any]] = {
        "version": "0.32.0",
        "model": "fake-model",
        "max_model_len": 8192,
        "block_size": 16,
        "kv_blocks": 4096,
    }
    can_sleep = True

    def __init__(self) -> None:
        super().__init__()
        self._socket.close()
        self._fake = FakeEngine(Script(log_jit=False, max_num_seqs=512))
        self.url, self.asked = self._fake.url, self._fake.asked

    def knobs(self, **changes: Any) -> None:
        super().knobs(**changes)
        script = self._fake.script
        script.health = "503" if self.state == "dead" else "ok"
        script.api_key, script.no_metrics, script.asleep = self.key, not self.metrics_on, self.asleep
        script.generation = "error_in_stream" if self.break_streams else "ok"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self._fake.requests

    def prompt(self) -> tuple[int, ...]:
        return tuple(self._fake.newest["prompt"])

    @property
    def worked(self) -> int:
        return self._fake.counters.texts

    async def listen(self) -> None:
        await self._fake.__aenter__()

    async def kill(self) -> None:
        await self._fake.kill()

    def routes(self) -> list[web.RouteDef]:
        raise AssertionError("the scripted engine has its own")
