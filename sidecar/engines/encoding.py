"""Request bodies as JSON, long ones in pieces, so that event loop and memory are held by a piece only.

What a body means is not known here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from sidecar.engines.long_prompt import LongPrompt

JSON_TYPE = "application/json"
#: Long bodies that are written at the same time. Each holds the loop for a piece in every turn, and all the others wait
#: in a few bytes: an engine reads them one after another anyway.
AT_ONCE = 4
#: Fields that a prompt of token ids is sent in: OpenAI's, and SGLang's native one.
PROMPTS = ("prompt", "input_ids")


class LongBody(aiohttp.Payload):
    """A body with a long prompt, written when its turn among `turns` comes. Its size is known before."""

    def __init__(self, body: Mapping[str, Any], field: str, prompt: LongPrompt, turns: asyncio.Semaphore) -> None:
        super().__init__(None, content_type=JSON_TYPE)
        rest = json.dumps({name: value for name, value in body.items() if name != field})
        between = ", " if rest != "{}" else ""
        self._first = f'{rest[:-1]}{between}"{field}": ['.encode()
        self._last = b"]}"
        self._prompt, self._turns = prompt, turns
        self._size = len(self._first) + prompt.json_size + len(self._last)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Give the whole text; for whoever logs requests."""
        return b"".join((self._first, *self._prompt.json_pieces(), self._last)).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write piece by piece, other work done between them."""
        async with self._turns:
            await writer.write(self._first)
            for piece in self._prompt.json_pieces():
                await writer.write(piece)
                await asyncio.sleep(0)
            await writer.write(self._last)


def payload_of(body: Mapping[str, Any], turns: asyncio.Semaphore) -> aiohttp.Payload:
    """Give a body as aiohttp takes it."""
    for field in PROMPTS:
        prompt = body.get(field)
        if isinstance(prompt, LongPrompt):
            return LongBody(body, field, prompt, turns)
    return aiohttp.BytesPayload(json.dumps(body).encode(), content_type=JSON_TYPE)
