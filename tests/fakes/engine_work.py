"""What a scripted engine does beside text: embeddings, scores, orders and transcriptions, for the tasks of its script.

An endpoint of another task isn't there, as in vLLM since about 0.13.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.fakes.engine_refusals import error
from tests.fakes.engine_script import Script

#: Endpoint → the task that it belongs to.
TASK_OF = {
    "/v1/completions": "generate", "/v1/chat/completions": "generate",
    "/v1/embeddings": "embed", "/score": "score", "/rerank": "score", "/v1/audio/transcriptions": "transcription",
}  # fmt: skip
Worker = Callable[[web.Request, str, int], Awaitable[web.Response | None]]


class OtherWork:
    """Serves the endpoints. `begin` counts a request with its tokens, and misbehaves where the script says so."""

    def __init__(self, script: Script, begin: Worker, need: Callable[[str], Awaitable[None]]) -> None:
        self._script, self._begin, self._need = script, begin, need

    def routes(self) -> list[web.RouteDef]:
        """Give the routes of all tasks but text."""
        return [
            web.post("/v1/embeddings", self._embed),
            web.post("/score", self._compare),
            web.post("/rerank", self._compare),
            web.post("/v1/audio/transcriptions", self._transcribe),
        ]

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        size = len(body["input"])
        refused = await self._begin(request, "embed", size) if body["input"] else error(400, "nothing to embed")
        if refused is not None:
            return refused
        await self._need("embed")
        return web.json_response({"data": [{"embedding": [0.5, 0.25]}], "usage": {"prompt_tokens": size}})

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        documents = body.get("documents") or body.get("text_2")
        query = body.get("query") or body.get("text_1")
        if not isinstance(query, str) or not documents:
            return error(400, "a text and others to compare it with are required")
        refused = await self._begin(request, "score", len(query.split()))
        if refused is not None:
            return refused
        await self._need("score")
        found: list[dict[str, Any]] = [{"index": at, "score": 0.5} for at in range(len(documents))]
        return web.json_response({"results" if request.path == "/rerank" else "data": found})

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        if not request.content_type.startswith("multipart/form-data"):
            return error(400, "body.file: Field required")
        form = await request.post()
        file = form.get("file")
        if form.get("model") != self._script.model or not isinstance(file, web.FileField):
            return error(404 if isinstance(file, web.FileField) else 400, "no such model, or no file")
        try:
            with file.file, wave.open(io.BytesIO(file.file.read())) as recording:
                seconds = recording.getnframes() / recording.getframerate()
        except (wave.Error, EOFError):
            return error(400, "Invalid or unsupported audio file.")
        refused = await self._begin(request, "transcription", int(seconds * 50))
        if refused is not None:
            return refused
        await self._need("transcription")
        return web.json_response({"text": "the river ran under the bridge", "usage": {"seconds": seconds}})
