"""What scripted servers of engines share: life, key, what they were asked, and streams of events.

No engine's paths or answers are here.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

from aiohttp import web

PAGES = Path(__file__).parents[1] / "expositions"
State = Literal["loading", "up", "dead"]
WORDS = ("the", "river", "ran", "under", "old", "stone", "bridges", "while", "people", "talked")


def error(status: int, message: str) -> web.Response:
    """Refuse as OpenAI's servers do."""
    return web.json_response({"object": "error", "message": message, "code": status}, status=status)


class ScriptedServer:
    """One engine that serves HTTP; `async with` starts and stops it.

    `knobs` sets `state`, `key`, `metrics_on`, `asleep` and `break_streams` while it runs. `asked` are all paths in turn,
    `requests` the bodies of requests for work, `worked` counts those that reached the GPU in any way. `said` are facts that
    a client must learn from it, `command` starts the real engine with them.
    """

    command: ClassVar[str]
    said: ClassVar[Mapping[str, Any]]
    #: The port opens only once it is up.
    late_port: ClassVar[bool] = True
    can_sleep: ClassVar[bool] = False

    def __init__(self) -> None:
        self.state: State = "up"
        self.key: str | None = None
        self.metrics_on = True
        self.break_streams = False
        self.asleep = False
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.generated = 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ScriptedServer:
        if self.state != "loading" or not self.late_port:
            await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    def knobs(self, **changes: Any) -> None:
        """Set what is told above."""
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.bodies

    def prompt(self) -> tuple[int, ...]:
        """Give the token ids of the newest request."""
        body = self.requests[-1]
        return tuple(body.get("input_ids") or body["prompt"])

    @property
    def worked(self) -> int:
        return self.generated

    async def listen(self) -> None:
        """Open the port, which a loading engine may not have done yet."""
        application = web.Application(client_max_size=64 << 20, middlewares=[self._note])
        application.add_routes(self.routes())
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def kill(self) -> None:
        """Close the port and every connection."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        self._socket.close()

    def routes(self) -> list[web.RouteDef]:
        """Give the engine's paths."""
        raise NotImplementedError

    def locked(self, path: str) -> bool:
        """Say whether a path needs the key, where one is set."""
        return path.startswith("/v1")

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.key and self.locked(request.path) and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def page(self, request: web.Request) -> web.Response:
        """Show the metrics of the engine's newest version."""
        return web.Response(text=self.exposition()) if self.metrics_on else error(404, "Not Found")

    def exposition(self) -> str:
        """Give the text of the metrics."""
        raise NotImplementedError

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for text as OpenAI's servers do, streamed or whole."""
        body = await self.body(request)
        if (refused := self.refusal(body)) is not None:
            return refused
        self.generated += 1
        chat = "messages" in body
        count, prompt = int(body.get("max_tokens") or 16), body.get("prompt", "")
        used = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
        pieces = [f" {WORDS[at % len(WORDS)]}" for at in range(count)]
        if not body.get("stream"):
            choice = self._choice("".join(pieces), chat, "message", body, count)
            return web.json_response({"choices": [choice | {"finish_reason": "length"}], "usage": used})
        return await self.stream(request, self._events(pieces, chat, body, used))

    async def _events(
        self, pieces: list[str], chat: bool, body: Mapping[str, Any], used: Mapping[str, int]
    ) -> AsyncIterator[dict[str, Any]]:
        for at, piece in enumerate(pieces):
            if self.break_streams and at:
                yield {"error": {"message": "the executor has died", "code": 500}}
                return
            end = "length" if at == len(pieces) - 1 else None
            yield {"choices": [self._choice(piece, chat, "delta", body, 1) | {"finish_reason": end}], "usage": None}
        if body.get("stream_options"):
            yield {"choices": [], "usage": dict(used)}

    def _choice(self, text: str, chat: bool, where: str, body: Mapping[str, Any], count: int) -> dict[str, Any]:
        told: dict[str, Any] = {"index": 0, where: {"content": text}} if chat else {"index": 0, "text": text}
        if body.get("logprobs") is not None and not chat:
            told["logprobs"] = {"token_logprobs": [-0.5] * count, "tokens": ["x"] * count, "top_logprobs": []}
        return told

    async def body(self, request: web.Request) -> dict[str, Any]:
        """Read and keep a request for work."""
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        return body

    def refusal(self, body: Mapping[str, Any]) -> web.Response | None:
        """Refuse a request that the engine would refuse."""
        return None

    async def stream(self, request: web.Request, events: AsyncIterator[dict[str, Any]]) -> web.StreamResponse:
        """Send server-sent events and the closing mark."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        async for event in events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(0)
        await answer.write(b"data: [DONE]\n\n")
        return answer
