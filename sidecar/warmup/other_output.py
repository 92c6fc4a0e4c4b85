"""Checks an engine that generates no text: one request of the work that it does, which must be answered.

What such an answer is worth is not judged; text is checked in `verify.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal

from sidecar.engines.protocol import CompletionRequest, Engine, Work
from sidecar.warmup.media import recording
from sidecar.warmup.passages import words_of
from sidecar.warmup.results import Check, VerifyOutcome, VerifyResult

#: Words of a text: fewer tokens than any model's length. And seconds of a recording.
WORDS, RECORDED_S = 12, 1.0
_NAMES: Mapping[str, str] = {"embed": "embedding", "score": "score", "transcription": "transcription"}


async def answers(engine: Engine, kind: Literal["embed", "score", "transcription"], deadline_s: float) -> VerifyResult:
    """Ask for one embedding, score or transcription. `deadline_s` is for the request."""
    rng = random.Random(1)
    text = words_of(range(WORDS))
    work = Work(
        kind,
        documents=(words_of(range(WORDS, 2 * WORDS)),) if kind == "score" else (),
        audio=recording(RECORDED_S, rng) if kind == "transcription" else b"",
    )
    answer = await engine.complete(CompletionRequest(prompt=text, max_tokens=0, deadline_s=deadline_s, work=work))
    check = Check(_NAMES[kind], answer.ok, answer.error or "", answer.total_s)
    if answer.ok:
        told = f"The engine generates no text; a request for its {_NAMES[kind]} is answered."
        return VerifyResult("passed", told, (check,))
    outcome: VerifyOutcome = "engine_gone" if answer.error_kind in ("refused", "reset") else "failed"
    if answer.error_kind == "unsupported":
        outcome = "skipped"
    told = f"The engine does not answer a request for its {_NAMES[kind]}: {(answer.error or 'no answer').rstrip('.')}."
    return VerifyResult(outcome, told, (check,))
