"""Requests that go elsewhere than plain text: another adapter, rank or endpoint, with a picture or a recording.

Only descriptions, and what a request becomes with one; `prompts.py` makes the prompts, plans decide what is asked.
"""

from __future__ import annotations

import base64
import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.engines.protocol import CompletionRequest, Work
from sidecar.warmup.bursts import Ask
from sidecar.warmup.media import data_url, picture, recording
from sidecar.warmup.passages import words_of

#: A repetitive prompt repeats so many token ids: whatever drafts from what came before is right about it.
PERIOD = 8


@dataclass(frozen=True, slots=True)
class OtherAsk(Ask):
    """Requests of one shape that differ from plain text in where they go or what they hold.

    `model` names an adapter, `rank` a data-parallel rank. `work` asks for something else than text: with `documents`
    of `prompt_tokens` tokens each, or with a recording of `audio_s` seconds in `language`. `picture` is the width of
    one that goes with `messages`, in pixels; so does a recording without `work`. `repetitive` prompts repeat their
    first tokens.
    """

    model: str = ""
    rank: int | None = None
    work: Literal["embed", "score", "rerank", "transcription"] | None = None
    documents: int = 0
    audio_s: float = 0.0
    language: str = "en"
    picture: int = 0
    repetitive: bool = False


def addressed(ask: Ask, request: CompletionRequest) -> CompletionRequest:
    """Turn a request for plain text into what an ask wants; plain asks change nothing.

    Whatever is made here is made from the request's own prompt or salt, so that it differs as much as those do.
    """
    if not isinstance(ask, OtherAsk):
        return request
    changed = dataclasses.replace(request, model=ask.model or request.model, rank=ask.rank)
    own = random.Random(str((request.prompt, request.cache_salt)))
    if ask.repetitive and request.prompt is not None and not isinstance(request.prompt, str):
        return dataclasses.replace(changed, prompt=_repeated(request.prompt))
    if ask.picture:
        return dataclasses.replace(changed, messages=_with_picture(ask, own))
    if ask.audio_s and ask.work is None:
        return dataclasses.replace(changed, messages=_with_recording(ask, own))
    if ask.work is None:
        return changed
    return dataclasses.replace(changed, prompt=_subject(ask, request), work=_work(ask, own))


def height_of(width: int) -> int:
    """Give the height of a picture of this width: 4 to 3."""
    return max(8, width * 3 // 4)


def _repeated(prompt: Sequence[int]) -> tuple[int, ...]:
    head = tuple(prompt[:PERIOD])
    return (head * (len(prompt) // PERIOD + 1))[: len(prompt)]


def _with_picture(ask: OtherAsk, own: random.Random) -> tuple[Mapping[str, Any], ...]:
    url = data_url(picture(ask.picture, height_of(ask.picture), own))
    return _beside_text(ask, {"type": "image_url", "image_url": {"url": url}})


def _with_recording(ask: OtherAsk, own: random.Random) -> tuple[Mapping[str, Any], ...]:
    data = base64.b64encode(recording(ask.audio_s, own)).decode("ascii")
    return _beside_text(ask, {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})


def _beside_text(ask: OtherAsk, part: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    *before, last = ask.messages or ({"role": "user", "content": ""},)
    return (*before, {**last, "content": [part, {"type": "text", "text": last["content"]}]})


def _subject(ask: OtherAsk, request: CompletionRequest) -> Sequence[int] | str | None:
    """Embeddings take token ids; scores compare texts, so the ids choose words for them."""
    if ask.work == "embed" or request.prompt is None or isinstance(request.prompt, str):
        return request.prompt
    return words_of(request.prompt)


def _work(ask: OtherAsk, own: random.Random) -> Work:
    documents = tuple(
        words_of([own.randrange(1 << 20) for _ in range(ask.prompt_tokens)]) for _ in range(ask.documents)
    )
    audio = recording(ask.audio_s, own) if ask.audio_s else b""
    return Work(ask.work or "embed", documents, audio, ask.language)
