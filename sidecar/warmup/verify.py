"""Checks that output is not degenerate: natural text, sampled with fixed seeds, alone and together.

Compares with no stored answers, and decides nothing about what follows from a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sidecar.engines.protocol import Completion, CompletionRequest, Engine, EngineFacts
from sidecar.errors import EngineAsleep, EngineError
from sidecar.warmup.degenerate import same_everywhere, what_is_wrong_sampled
from sidecar.warmup.other_output import answers
from sidecar.warmup.passages import PASSAGES, QUESTIONS, SHARED
from sidecar.warmup.planner import work_of
from sidecar.warmup.results import Check, VerifyOutcome, VerifyResult
from sidecar.warmup.roles import unchecked
from sidecar.warmup.traffic import NOT_NOW

#: Long enough to see a loop, short enough to take well under a second on a GPU. Tokens.
TOKENS = 32
CANARY_TOKENS = 12
#: Tokens of the longest prompt (shared text and question), generously; shorter models get the passages'
#: beginnings.
LONGEST_PROMPT = 400
#: An answer that looks degenerate is asked for again with another seed: dots and dashes do occur in good
#: text.
SECOND_SEED = 1000
#: "Not now" (too many requests at once, or nothing behind a router for a while) is asked again for so long, at first after
#: this pause. Seconds.
BUSY_S, BUSY_PAUSE_S = 15.0, 0.25
#: Answers that a check may wait for one after another: four groups of requests, each asked again with another seed.
IN_TURN = 8
_GONE = ("refused", "reset")
_ERRORS = ("broken", "not_json")
_ASLEEP = "The engine is asleep, so nothing more was sent to it and its output is not checked."


#: Requests that are sent together, each with the name of its check.
Group: TypeAlias = Sequence[tuple[str, CompletionRequest]]


@dataclass(frozen=True)
class _Asked:
    name: str
    request: CompletionRequest
    completion: Completion


@dataclass(frozen=True)
class _Shape:
    """What the requests of a check have in common."""

    max_model_len: int | None
    tokens: int
    deadline_s: float
    salt: str
    fields: Mapping[str, object]

    def request(self, text: str, seed: int) -> CompletionRequest:
        tokens = self.tokens
        if self.max_model_len is not None:
            tokens = max(1, min(tokens, self.max_model_len // 4))
            if self.max_model_len < LONGEST_PROMPT + tokens:
                # Two tokens for each character are more than any byte-level vocabulary makes of English.
                text = text[: max(1, (self.max_model_len - tokens) // 2)]
        return CompletionRequest(
            prompt=text,
            max_tokens=tokens,
            temperature=1.0,
            extra={"seed": seed, "ignore_eos": True, "return_token_ids": True, **self.fields},
            cache_salt=self.salt or None,
            deadline_s=self.deadline_s,
        )


async def verify(engine: Engine, facts: EngineFacts, deadline_s: float = 120.0, salt: str = "") -> VerifyResult:
    """Sample continuations of natural text, one at a time and then together with a shared prefix.

    Not greedy: models with random weights repeat themselves then. The shared prefix is there because damaged
    FP8 KV caches show with concurrent requests that hit the prefix cache. `deadline_s` is for each request.
    `salt`, when it differs between checks, makes each start with an empty prefix cache.
    """
    if (other := await _without_text(engine, facts, deadline_s)) is not None:
        return other
    shape = _Shape(facts.max_model_len, TOKENS, deadline_s, salt, {"logprobs": 1})
    alone = [("alone", shape.request(text, seed)) for seed, text in enumerate(PASSAGES[:2], start=11)]
    together = [("together", shape.request(SHARED + text, seed)) for seed, text in enumerate(QUESTIONS, start=21)]
    # One request fills the prefix cache, so that all of those that follow together hit it.
    groups = [[alone[0]], [alone[1]], [("shared prefix", together[0][1])], together]
    return await _check(engine, groups, BUSY_S)


async def canary(
    engine: Engine, facts: EngineFacts, deadline_s: float = 30.0, patience_s: float = BUSY_S
) -> VerifyResult:
    """Send one short request and check that it is answered with something that is not degenerate.

    `patience_s`: for how long an engine that says "not now" is asked again, in seconds.
    """
    if (other := await _without_text(engine, facts, deadline_s)) is not None:
        return other
    # No log-probabilities: where nothing has asked for them yet, the first request compiles for seconds.
    shape = _Shape(facts.max_model_len, CANARY_TOKENS, deadline_s, "", {})
    return await _check(engine, [[("canary", shape.request(PASSAGES[0], 31))]], patience_s)


async def _without_text(engine: Engine, facts: EngineFacts, deadline_s: float) -> VerifyResult | None:
    """Check an engine that must not be sent plain requests, or that generates no text; None for all others."""
    refused = unchecked(facts)
    if refused:
        return VerifyResult("skipped", f"The output is not checked. {refused}")
    work = work_of(facts.tasks)
    if work is None:
        return None
    try:
        await _must_be_awake(engine)
    except EngineAsleep as error:
        return VerifyResult("failed", str(error))
    return await answers(engine, work, deadline_s)


async def _check(engine: Engine, groups: Sequence[Group], patience_s: float) -> VerifyResult:
    """Judge all answers, unless the engine falls asleep: then nothing is known of it but that no traffic may come."""
    try:
        result = await _judge(engine, groups, patience_s)
        if result.outcome in ("failed", "degenerate"):
            await _must_be_awake(engine)
    except EngineAsleep as error:
        return VerifyResult("failed", str(error))
    return result


async def _judge(engine: Engine, groups: Sequence[Group], patience_s: float) -> VerifyResult:
    """Ask group after group, the requests of a group together, and judge all answers. Raises EngineAsleep."""
    asked: list[_Asked] = []
    checks: list[Check] = []
    for group in groups:
        answers = await _ask_together(engine, group, patience_s)
        asked += answers
        if _any_error(answers):
            return _failed(asked)
        wrong = [what_is_wrong_sampled(each.completion) for each in answers]
        if any(wrong):
            again = await _ask_together(engine, [(each.name, _reseeded(each.request)) for each in answers], patience_s)
            if _any_error(again):
                return _failed([*asked, *again])
            if not any(what_is_wrong_sampled(each.completion) for each in again):
                wrong = [""] * len(answers)
        checks += [
            Check(each.name, not what, what, each.completion.total_s) for each, what in zip(answers, wrong, strict=True)
        ]
    checks += _alike(asked)
    return _told(checks)


async def _ask_together(engine: Engine, group: Group, patience_s: float) -> list[_Asked]:
    await _must_be_awake(engine)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_ask(engine, name, request, patience_s)) for name, request in group]
    return [task.result() for task in running]


async def _must_be_awake(engine: Engine) -> None:
    """Raise EngineAsleep when the engine sleeps now: a request could end it, and whoever watches it sees it seconds later."""
    sleeps: bool | None = None
    # Metrics that can't be read say nothing, and an engine that has gone shows by itself.
    with contextlib.suppress(EngineError):
        sleeps = (await engine.stats()).asleep
    if sleeps:
        raise EngineAsleep(_ASLEEP)


async def _ask(engine: Engine, name: str, request: CompletionRequest, patience_s: float) -> _Asked:
    """Ask for one answer; fields that this engine doesn't know are left out in a second and third try."""
    completion = await _patiently(engine, request, patience_s)
    for kept in (("seed",), ()):
        if completion.error_kind == "unsupported":
            fields = {name: value for name, value in request.extra.items() if name in kept}
            request = replace(request, extra=fields, cache_salt=None)
            completion = await _patiently(engine, request, patience_s)
    return _Asked(name, request, completion)


async def _patiently(engine: Engine, request: CompletionRequest, patience_s: float) -> Completion:
    """Ask again while the engine says "not now", for a while and within the request's deadline."""
    now, pause = asyncio.get_running_loop().time, BUSY_PAUSE_S
    began = now()
    until = began + min(patience_s, request.deadline_s)
    while True:
        completion = await engine.complete(replace(request, deadline_s=max(0.001, began + request.deadline_s - now())))
        if completion.ok or completion.status not in NOT_NOW or now() + pause >= until:
            return completion
        await asyncio.sleep(pause)
        try:
            await _must_be_awake(engine)
        except EngineAsleep:
            # Told once for all requests that were sent together.
            return completion
        pause *= 2


def _reseeded(request: CompletionRequest) -> CompletionRequest:
    """Ask with another seed, and let the answer end: a good model that has said all may fill up with what it should end with."""
    seed = request.extra.get("seed")
    kept = {name: value for name, value in request.extra.items() if name != "ignore_eos"}
    return replace(request, extra={**kept, "seed": SECOND_SEED + (seed if isinstance(seed, int) else 0)})


def _any_error(asked: Iterable[_Asked]) -> bool:
    return any(not each.completion.ok for each in asked)


def _alike(asked: Sequence[_Asked]) -> list[Check]:
    found = []
    for name in ("alone", "together"):
        # Of a short model's prompts only the beginning is sent, and that may be the same.
        texts = {str(each.request.prompt): each.completion.text for each in asked if each.name == name}
        alike = same_everywhere(list(texts.values()))
        if alike:
            found.append(Check(f"{name}, compared", False, alike))
    return found


def _told(checks: Sequence[Check]) -> VerifyResult:
    bad = [check for check in checks if not check.passed]
    if bad:
        more = f", and {len(bad) - 1} more of {len(checks)} checks" if len(bad) > 1 else ""
        return VerifyResult(
            "degenerate", f"The output is degenerate ({bad[0].name}: {bad[0].detail}{more}).", tuple(checks)
        )
    count = f"{len(checks)} sampled answers are" if len(checks) > 1 else "The answer is"
    return VerifyResult("passed", f"{count} not degenerate.", tuple(checks))


def _failed(asked: Iterable[_Asked]) -> VerifyResult:
    everything = list(asked)
    bad = next(each for each in everything if not each.completion.ok)
    said = (bad.completion.error or "no answer").rstrip(".")
    outcome: VerifyOutcome = "engine_gone" if bad.completion.error_kind in _GONE else "failed"
    if bad.completion.error_kind == "unsupported":
        told = f"The output can't be checked, since the engine takes no requests for text: {said}."
        return VerifyResult("skipped", told)
    checks = tuple(
        Check(each.name, each.completion.ok, each.completion.error or "", each.completion.total_s)
        for each in everything
    )
    what = "The engine was gone" if outcome == "engine_gone" else "The engine does not answer"
    told = f"{what} when its output was checked ({bad.name}: {said})."
    refuses = bad.completion.error_kind in _ERRORS and bad.completion.status not in NOT_NOW
    return VerifyResult(outcome, told, checks, refuses=refuses)
