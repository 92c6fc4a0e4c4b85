"""The shapes in which a scripted engine answers: completions and chat, streamed and whole.

What the text is gets decided in `engine_script.py`, when it is sent in `engine.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes.engine_script import Script


@dataclass(frozen=True)
class Answer:
    """Writes the pieces of one answer in the shape of completions or of chat."""

    body: dict[str, Any]
    chat: bool
    size: int
    script: Script

    def event(self, word: str, finish: str | None, *, first: bool = False) -> bytes:
        """Give one event of a stream, after a keep-alive comment."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": self._logprobs([word])}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if first else {"content": word}
        else:
            choice["text"] = word
        return b": keep-alive\n\ndata: " + json.dumps(self._envelope([choice], "chunk")).encode() + b"\n\n"

    def usage(self, tokens: int) -> bytes:
        """Give the event with the counts, when it was asked for."""
        if not (self.body.get("stream_options") or {}).get("include_usage"):
            return b""
        body = self._envelope([], "chunk") | {"usage": self._usage(tokens)}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    def whole(self, words: list[str]) -> dict[str, Any]:
        """Give the answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": self._logprobs(words)}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": "".join(words)}
        else:
            choice["text"] = "".join(words)
        return self._envelope([choice], "completion") | {"usage": self._usage(len(words))}

    def envelope(self, choices: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Put finished choices into the body of an answer."""
        return self._envelope(choices, "completion") | {"usage": self._usage(tokens)}

    def _envelope(self, choices: list[dict[str, Any]], kind: str) -> dict[str, Any]:
        return {"id": "cmpl-1", "object": kind, "created": 1, "model": self.body["model"], "choices": choices}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.size, "completion_tokens": tokens, "total_tokens": self.size + tokens}

    def _logprobs(self, words: list[str]) -> dict[str, Any] | None:
        if self.body.get("logprobs") in (None, False) or not any(words):
            return None
        nan = self.script.generation == "nan"
        values = [None if nan else -0.25 - (len(word) % 7) / 4 for word in words]
        if self.chat:
            pairs = zip(words, values, strict=True)
            return {"content": [{"token": word, "logprob": value} for word, value in pairs]}
        return {"tokens": words, "token_logprobs": values, "text_offset": list(range(len(words)))}
