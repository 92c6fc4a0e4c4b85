"""Read the server-sent events of a streamed completion, bytes in, classified pieces out.

No HTTP lives here: the client feeds chunks as they arrive, together with the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.engines import token_details
from sidecar.engines.protocol import ErrorKind

#: A line beyond this is no event of a completion; reading on would fill the memory. Bytes.
LINE_LIMIT = 32 * 1024 * 1024
SNIPPET = 300
#: HTTP answers that mean "not now" rather than "broken": too much is there already, or nothing is behind it for a while.
NOT_NOW = (429, 503)
#: Where text can arrive: completions, chat, reasoning parsers (both spellings), refusals.
_DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class EventLines:
    """Cut a byte stream into the payloads of `data:` lines; comments and other fields are skipped.

    Raises ValueError when a line grows beyond LINE_LIMIT.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._limit = limit

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Give the payloads completed by this chunk. Lines end with LF, CR LF or CR."""
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            whole = b"".join([*self._parts, line])
            self._parts, self._held = [], 0
            if whole.startswith(b"data:"):
                yield whole[5:].strip()
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._limit:
            raise ValueError(f"a line of more than {self._limit} bytes")

    def rest(self) -> bytes:
        """Give what follows the last line end, once the stream is over."""
        whole, self._parts, self._held = b"".join(self._parts), [], 0
        return whole[5:].strip() if whole.startswith(b"data:") else b""


@dataclass(slots=True)
class Answer:
    """What a completion has said so far; `error` and `error_kind` are set once it has gone wrong."""

    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    chunks: int = 0
    tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    logprobs: list[float] | None = None
    token_ids: list[int] | None = None
    alternatives: list[Mapping[int, float]] = field(default_factory=list)
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[Mapping[int, float], ...] | None = None
    done: bool = False
    status: int | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    first_text: Callable[[], None] | None = None

    def fail(self, kind: ErrorKind, sentence: str) -> None:
        """Keep the first thing that went wrong; what follows is its consequence."""
        if self.error_kind is None:
            self.error_kind, self.error = kind, sentence

    def put_off(self, told: Mapping[str, Any], name: str) -> None:
        """Take the status of an error for the answer's where it is "not now".

        SGLang whose queue is full refuses a stream only inside it, after a 200.
        """
        if told.get(name) in NOT_NOW:
            self.status = told[name]

    def take(self, payload: bytes, at: float, *, echo: bool = False) -> None:
        """Take one event, or the whole body of an answer without a stream, that arrived at `at` (seconds)."""
        if not payload:
            return
        if payload == b"[DONE]":
            self.done = True
            return
        event = self._parse(payload)
        if event is not None:
            self._take_event(event, at, echo, payload)

    def _take_event(self, event: Mapping[str, Any], at: float, echo: bool, payload: bytes) -> None:
        if isinstance(event.get("error"), Mapping | str) or event.get("object") == "error":
            # Broken whatever code it carries: a request at fault would have been refused before the 200.
            self.fail("broken", f"the engine sent an error inside a 200 answer: {message_of(event)}")
            inner = event.get("error")
            self.put_off(inner if isinstance(inner, Mapping) else event, "code")
            return
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            self.tokens = _count(usage.get("completion_tokens"), self.tokens)
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self._take_prompt(event)
        choices = event.get("choices")
        if not isinstance(choices, list):
            self.fail("not_json", f"an event has no choices: {snippet(payload)}")
            return
        for choice in choices:
            if isinstance(choice, Mapping):
                self._take_choice(choice, at, echo)

    def _parse(self, payload: bytes) -> Mapping[str, Any] | None:
        try:
            event = json.loads(payload.decode("utf-8"))
        except UnicodeDecodeError:
            self.fail("not_json", f"the answer is not UTF-8: {snippet(payload)}")
            return None
        except (ValueError, RecursionError):
            self.fail("not_json", f"an event is not JSON: {snippet(payload)}")
            return None
        if not isinstance(event, Mapping):
            self.fail("not_json", f"an event is not a JSON object: {snippet(payload)}")
            return None
        return event

    def _take_prompt(self, told: Mapping[str, Any]) -> None:
        """Keep what is told of the prompt's tokens: chat tells it beside the choices, completions inside them (vLLM)."""
        self.prompt_token_ids = token_details.token_ids(told.get("prompt_token_ids")) or self.prompt_token_ids
        self.prompt_logprobs = token_details.prompt_logprobs(told.get("prompt_logprobs")) or self.prompt_logprobs

    def _take_choice(self, choice: Mapping[str, Any], at: float, echo: bool) -> None:
        first = choice.get("index", 0) == 0
        text = text_of(choice)
        ids = choice.get("token_ids")
        if text or ids:
            if self.first_text is not None and not self.times:
                self.first_text()
            self.chunks += 1
            self.times.append(at)
        if not first:
            return
        if text:
            self.texts.append(text)
        if isinstance(ids, list):
            self.token_ids = self.token_ids or []
            self.token_ids.extend(each for each in ids if isinstance(each, int))
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]
        self._take_prompt(choice)
        self.alternatives.extend(token_details.alternatives(choice.get("logprobs")))
        values = _logprobs_of(choice.get("logprobs"))
        if values is not None:
            if echo and self.logprobs is None:
                # The first token of an echoed prompt has no probability; its null is no fault of the engine.
                values = values[1:] if values and math.isnan(values[0]) else values
            self.logprobs = self.logprobs or []
            self.logprobs.extend(values)


def text_of(choice: Mapping[str, Any]) -> str:
    """Give the text a choice carries in any channel: completion, chat, reasoning, refusal, tool call."""
    if isinstance(choice.get("text"), str) and choice["text"]:
        return str(choice["text"])
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, Mapping):
        return ""
    pieces = [delta[name] for name in _DELTA_TEXTS if isinstance(delta.get(name), str)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            pieces += [function[key] for key in ("name", "arguments") if isinstance(function.get(key), str)]
    return "".join(pieces)


def message_of(body: Mapping[str, Any]) -> str:
    """Give the message of an error object in any of its shapes: OpenAI's, vLLM's older one, FastAPI's."""
    inner = body.get("error") if isinstance(body.get("error"), Mapping | str) else body
    message: object = inner
    if isinstance(inner, Mapping):
        message = inner.get("message") or inner.get("detail") or inner
    return snippet(str(message).encode())


def kind_of(status: int | None) -> ErrorKind:
    """Classify an HTTP status: 408 and 429 are load, other 4xx are about the request, the rest is broken.

    501 is what vLLM answers for an endpoint that it has no handler for (its Rust front end, and transcription).
    """
    if status in (401, 403):
        return "unauthorized"
    if status in (408, 429):
        return "timed_out"
    if status is not None and (400 <= status < 500 or status == 501):
        return "unsupported"
    return "broken"


def snippet(body: bytes) -> str:
    """Give the beginning of an answer for a sentence: one line, printable, at most SNIPPET characters."""
    text = " ".join(body[: 4 * SNIPPET].decode("utf-8", "replace").split())
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= SNIPPET else text[:SNIPPET] + "…"


def _count(value: object, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else before


def _logprobs_of(found: object) -> list[float] | None:
    """Read both shapes: completions have token_logprobs, chat has content with a logprob each."""
    if not isinstance(found, Mapping):
        return None
    values = found.get("token_logprobs")
    if values is None and isinstance(found.get("content"), list):
        values = [each.get("logprob") if isinstance(each, Mapping) else None for each in found["content"]]
    if not isinstance(values, list):
        return None
    return [float(each) if isinstance(each, int | float) else math.nan for each in values]
