"""Records what a trusted configuration answers, and how much its answers vary by themselves.

Nothing is compared with an earlier recording here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sidecar import __version__
from sidecar.engines.protocol import Completion, Engine, EngineFacts
from sidecar.errors import GoldenError
from sidecar.golden import identity
from sidecar.golden.asking import Asker
from sidecar.golden.checking import check, why_unasked
from sidecar.golden.expressions import is_found
from sidecar.golden.files import Answer, AnsweredPrompt, GoldenFile, GoldenSet, PromptSet
from sidecar.golden.judging import margin
from sidecar.golden.limits import Limits
from sidecar.golden.prompts import Prompt, why_not
from sidecar.golden.report import GoldenProgress, GoldenResult
from sidecar.warmup.degenerate import what_is_wrong

#: An engine may drift from the recording by so many times what it drifted from itself.
ROOM = 3.0
UNKNOWN_NOISE = (
    "How much the engine varies by itself, which needs log-probabilities of 16 tokens: no limit was widened for it."
)


async def record(
    engine: Engine,
    facts: EngineFacts,
    prompts: PromptSet,
    *,
    salt: str,
    deadline_s: float,
    recorded_at: str,
    label: str = "",
    progress: Callable[[GoldenProgress], None] | None = None,
) -> GoldenSet:
    """Ask an engine that is trusted and keep what it says; then check it once, for how much it varies by itself.

    `recorded_at` is the time as text, such as `2026-11-30T12:00:00Z`; `deadline_s` covers the recording and again the
    check, in seconds. Raises GoldenError with a sentence when nothing that could be trusted comes out, or EngineError.
    """
    if reason := why_unasked(facts):
        raise GoldenError(f"Nothing can be recorded: {reason}")
    asker = Asker(engine, facts, f"{salt}-record", deadline_s, prompts.passages, progress)
    file = await _recorded(asker, prompts, recorded_at, label)
    found = GoldenSet(Path(), (file,))
    itself = await check(
        engine, facts, found, salt=f"{salt}-itself", deadline_s=deadline_s, progress=progress, read_all=True
    )
    return replace(found, files=(with_room(file, itself),))


async def _recorded(asker: Asker, prompts: PromptSet, recorded_at: str, label: str) -> GoldenFile:
    fit = [each for each in prompts.prompts if not why_not(each, asker.facts)]
    asker.total = 2 * len(fit)
    await asker.begin()
    told = await asker.alone(fit)
    answered = [_answered(each.prompt, each.completion) for each in told]
    if not answered:
        raise GoldenError("Nothing can be recorded: the engine takes none of the prompts.")
    odd = [each for each in answered if each.answer.odd]
    if 2 * len(odd) > len(answered):
        raise GoldenError(
            f"Nothing is recorded: {len(odd)} of {len(answered)} answers are degenerate ('{odd[0].name}': "
            f"{odd[0].answer.odd}), so that this engine can't be trusted as a reference. Mend it, or choose other prompts."
        )
    scored = await asker.read_back(answered)
    left_out = [f"'{each.name}': {reason}" for each in prompts.prompts if (reason := why_not(each, asker.facts))]
    return GoldenFile(
        label=label,
        description=prompts.description,
        limits=prompts.limits,
        passages=prompts.passages,
        recorded=identity.recorded_of(asker.facts, recorded_at, __version__, asker.sentence_ids),
        models=identity.names_of(asker.facts),
        left_out=(*left_out, *asker.notes),
        prompts=tuple(_with_scores(each, scored.get(each.name, ())) for each in answered),
    )


def with_room(file: GoldenFile, itself: GoldenResult) -> GoldenFile:
    """Widen the limits of a recording where the engine varies by itself.

    Raises GoldenError when it differs from itself in a way that no limit should allow.
    """
    if itself.outcome not in ("passed", "failed"):
        raise GoldenError(f"The recording could not be checked against the engine itself: {itself.sentence}")
    numbers = itself.statistics
    noise, unknown = itself.drift_percent or 0.0, itself.drift_percent is None
    change, worst = numbers.get("mean_change") or 0.0, numbers.get("worst_prompt_change") or 0.0
    limits: Limits = file.limits
    wider = limits.model_copy(
        update={
            "drift_percent": min(90.0, max(limits.drift_percent, round(ROOM * noise, 1))),
            "same_drift_percent": min(90.0, max(limits.same_drift_percent, round(ROOM * noise, 1))),
            "change": max(limits.change, round(ROOM * abs(change), 3)),
            "worst_prompt": max(limits.worst_prompt, round(ROOM * worst, 3)),
        }
    )
    wrong = [each for each in itself.failed if each.way != "likelihood"]
    if itself.outcome == "failed" and wrong:
        raise GoldenError(
            f"This engine can't be trusted as a reference: it differs from itself. {itself.sentence} Fix that first, or record "
            "from another configuration."
        )
    return file.model_copy(
        update={
            "limits": wider,
            "left_out": (*file.left_out, *((UNKNOWN_NOISE,) if unknown else ())),
            "recorded": file.recorded.model_copy(update={"noise_percent": round(noise, 3)}),
        }
    )


def _answered(prompt: Prompt, got: Completion) -> AnsweredPrompt:
    margins = [margin(place) for place in got.alternatives or ()]
    answer = Answer(
        text=got.text,
        ids=got.token_ids or (),
        prompt_ids=got.prompt_token_ids or (),
        logprobs=_rounded(got.logprobs or ()),
        margins=_rounded([each for each in margins if each is not None]) if None not in margins else (),
        odd=what_is_wrong(got),
        met=not prompt.expect or _is_met(prompt, got.text),
    )
    return AnsweredPrompt(**prompt.model_dump(), answer=answer)


def _is_met(prompt: Prompt, text: str) -> bool:
    try:
        return is_found(prompt.expect, text)
    except TimeoutError as error:
        raise GoldenError(f"Prompt {prompt.name!r}: {error}.") from None


def _with_scores(prompt: AnsweredPrompt, scores: Sequence[float]) -> AnsweredPrompt:
    return prompt.model_copy(update={"answer": prompt.answer.model_copy(update={"scored": _rounded(scores)})})


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    """Round for the file; where one value is no number none is kept, because nothing could be compared with it."""
    return tuple(round(each, 4) for each in values) if all(map(math.isfinite, values)) else ()
