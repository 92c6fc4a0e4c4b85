"""The scripted engine with hidden kernels, driven two ways: over HTTP in real time, and in-process in virtual time.

What it compiles is decided in `kernel_model.py`, what shares a step in `kernel_batching.py`.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from sidecar.engines.protocol import Completion, CompletionRequest, EngineFacts, EngineStats, Health, Hints
from sidecar.warmup.evidence import Evidence
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_answer import Answer
from tests.fakes.engine_script import Script, words_for
from tests.fakes.kernel_batching import Batching, Running, arrival_s, seconds_of
from tests.fakes.kernel_model import FOLDER, KernelModel, features_of

#: A first visit stalls the step for so long; of a real compiler it would be 3 to 10 s. Seconds.
STALL_S = 0.02


#: An idle engine looks into its queue once in so many seconds.
TOGETHER_S = 0.0001


class BatchDriver:
    """Runs the steps of one engine as long as there is something to do. `scale` multiplies every duration."""

    def __init__(self, model: KernelModel, batching: Batching, scale: float = 1.0) -> None:
        self.model, self.batching = model, batching
        self.stalls = 0
        self._scale = scale
        self._task: asyncio.Task[None] | None = None

    async def serve(self, prompt: int, output: int, features: tuple[str, ...], on_token: Callable[[], None]) -> None:
        """Serve one request; `on_token` is called at each of its tokens."""
        ended = asyncio.get_running_loop().create_future()
        left = output

        def token() -> None:
            nonlocal left
            left -= 1
            on_token()
            if not left and not ended.done():
                ended.set_result(None)

        self.batching.add(Running(prompt, output, features, token))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        await ended

    async def _run(self) -> None:
        # What arrives together shares the first step, in whatever order its tasks are run.
        await asyncio.sleep(TOGETHER_S)
        while (made := self.batching.step()) is not None:
            step, features = made
            fresh = self.model.run(step, features)
            self.stalls += bool(fresh)
            await asyncio.sleep((seconds_of(step) + STALL_S * len(fresh)) * self._scale)
            self.batching.settle()


class ModelWitness:
    """Tells what a model compiled, as the files would."""

    def __init__(self, model: KernelModel) -> None:
        self._model = model
        self._seen = 0

    def mark(self) -> None:
        """Nothing comes late here."""

    async def baseline(self) -> Evidence:
        """Take what is compiled as known."""
        self._seen = len(self._model.compiled)
        return Evidence()

    async def collect(self, *, thorough: bool = False) -> Evidence:
        """Name what was compiled since."""
        fresh, self._seen = self._model.compiled[self._seen :], len(self._model.compiled)
        return Evidence({"deep_gemm": len(fresh)} if fresh else {}, names=tuple(fresh))


class InProcessEngine:
    """An engine client and its engine in one, for virtual time: 200 of them run in a minute."""

    name = "vllm"

    def __init__(self, model: KernelModel, facts: EngineFacts, rng: random.Random) -> None:
        assert facts.max_num_batched_tokens is not None
        assert facts.max_num_seqs is not None
        self._facts, self._rng = facts, rng
        self.driver = BatchDriver(model, Batching(facts.max_num_batched_tokens, facts.max_num_seqs))
        self.requests = 0

    async def health(self) -> Health:
        """Be well."""
        return Health("up", 200, 0.001, "")

    async def facts(self) -> EngineFacts:
        """Give the limits."""
        return self._facts

    async def adapters(self) -> tuple[str, ...]:
        """Have none."""
        return ()

    async def stats(self) -> EngineStats:
        """Always be the same process."""
        return EngineStats(identity="1")

    def use_hints(self, hints: Hints) -> None:
        """Need none."""

    async def close(self) -> None:
        """Have nothing to close."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """Serve one request after a moment that differs between those of a burst."""
        self.requests += 1
        now = asyncio.get_running_loop().time
        started, first = now(), list[float]()

        def token() -> None:
            if not first:
                first.append(now() - started)
                if request.on_first_token is not None:
                    request.on_first_token()

        await asyncio.sleep(arrival_s(self._rng))
        size = len(request.prompt) if request.prompt is not None else 24
        await self.driver.serve(size, request.max_tokens, tuple(features_of(dict(request.extra))), token)
        return Completion(True, 200, first[0], now() - started, tokens=request.max_tokens, prompt_tokens=size)


class KernelEngine(FakeEngine):
    """The scripted engine as a real HTTP server, with steps and kernels of a model below `live`."""

    def __init__(self, model: KernelModel, script: Script, *, scale: float = 1.0, port: int = 0) -> None:
        super().__init__(script, port=port)
        self.model = model
        self.driver = BatchDriver(model, Batching(script.max_num_batched_tokens, script.max_num_seqs), scale)

    async def _generate(self, request: web.Request, body: dict[str, Any], chat: bool, size: int) -> web.StreamResponse:
        words, answer = words_for(body, self.script), Answer(body, chat, size, self.script)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        if body.get("stream"):
            await stream.prepare(request)
        tokens: asyncio.Queue[None] = asyncio.Queue()
        serving = asyncio.create_task(
            self.driver.serve(size, len(words), tuple(features_of(body)), lambda: tokens.put_nowait(None))
        )
        try:
            for index, word in enumerate(words):
                await tokens.get()
                if body.get("stream"):
                    await stream.write(answer.event(word, "length" if index == len(words) - 1 else None))
            await serving
        finally:
            serving.cancel()
        self.counters.success += 1
        if not body.get("stream"):
            return web.json_response(answer.whole(words))
        await stream.write(answer.usage(len(words)) + b"data: [DONE]\n\n")
        return stream


def kernel_folder(live: Path) -> Path:
    """Say where the kernels of a model lie below a live cache."""
    return live / FOLDER


class _Instantly(selectors.SelectSelector):
    """Waits for nothing but time, and lets that pass at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self.passed += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time. Not for threads or sockets."""

    def __init__(self) -> None:
        self._instantly = _Instantly()
        super().__init__(self._instantly)

    def time(self) -> float:
        """Give the virtual time in seconds."""
        return self._instantly.passed
