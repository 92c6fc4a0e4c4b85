"""What one answer is worth beside the recorded one: how far it agrees, whether a difference is a near tie, what is odd.

Pure. What all answers of a check say together is decided in `verdict.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.engines.protocol import Completion
from sidecar.golden.expressions import is_found
from sidecar.golden.files import Answer, AnsweredPrompt
from sidecar.golden.limits import Limits
from sidecar.golden.report import Way
from sidecar.warmup.degenerate import above_certainty, numbers_wrong, what_is_wrong

#: One token's change counts no more than this, so that a single impossible token doesn't make the mean. Nats.
MOST = 5.0
#: Ways of sending many at once, the one most like live traffic last.
MANY: tuple[Way, ...] = ("concurrent", "batch")
#: A share of the prompts that is no loss where it parts at near ties: of 50 damages the mildest made 20 of 46 answers part,
#: and clean checks one or two (`tests/bench/bench_golden.py`, vLLM on CPU, 2026-11-30).
FEW = 0.1
#: Characters that stand for a token where an engine tells no token ids; English has about four a token.
CHARACTERS = 4


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer beside its recording.

    `agreed` tokens are the same from the beginning; `whole`: all are. `tie`: where they part is a near tie. `changes` are
    those of the log-probabilities of the agreed tokens, in nats, now less recorded. `reason` says why it fails; empty when
    it does not. An answer that is neither whole nor a tie nor fails parted where nothing tells whether it may.
    """

    name: str
    way: Way
    agreed: int
    whole: bool
    tie: bool
    reason: str
    changes: tuple[float, ...]
    expected: str
    got: str


def compare(
    prompt: AnsweredPrompt, way: Way, got: Completion, limits: Limits, *, exact: bool = False, loops: bool = False
) -> Compared:
    """Compare one generated answer with the recorded one. `exact`: both engines promise the same tokens in any batch.

    `loops`: the trusted engine has degenerate answers itself, so that any other may become so after a near tie.
    """
    recorded = prompt.answer
    agreed, whole = _agreement(recorded, got)
    tie, parted = (False, "") if whole else _parting(recorded, got, agreed, limits)
    excused = tie and bool(got.alternatives) and (loops or _is_late(agreed, got))
    reason = (
        _impossible(recorded, got, excused=whole or excused)
        or _unmet(prompt, got.text)
        or parted
        or (
            "it is not token for token the recorded one, though the engine promises that" if exact and not whole else ""
        )
    )
    changes = changes_of(recorded.logprobs[:agreed], (got.logprobs or ())[:agreed])
    return Compared(prompt.name, way, agreed, whole, tie, reason, changes, recorded.text, got.text)


def read_back(prompt: AnsweredPrompt, scored: Sequence[float], limits: Limits, got: str) -> Compared:
    """Compare how likely the recorded answer is to this engine with how likely it was; `got` is its own for showing."""
    changes = changes_of(prompt.answer.scored, scored)
    wrong = numbers_wrong(scored) if not prompt.answer.odd else _not_a_number(scored)
    return _likely(prompt, changes, wrong, limits, got)


def said_again(prompts: Sequence[AnsweredPrompt], compared: Sequence[Compared], limits: Limits) -> dict[str, Compared]:
    """Give how likely those recorded answers are that an engine gave token for token in every way it was asked.

    By name, from the batch where it was in one, whose numbers are the most like live traffic's. Left out is what an engine
    tells too little of.
    """
    whole = {each.name for each in compared} - {each.name for each in compared if not each.whole}
    many = {each.name: each for way in MANY for each in reversed(compared) if each.way == way and each.name in whole}
    found = {}
    for prompt in prompts:
        one = many.get(prompt.name)
        if one is not None and prompt.answer.scored and len(one.changes) == len(prompt.answer.ids):
            found[prompt.name] = _likely(prompt, one.changes, "", limits, one.got)
    return found


def to_read(
    prompts: Sequence[AnsweredPrompt], compared: Sequence[Compared], likely: Mapping[str, Compared], limits: Limits
) -> list[AnsweredPrompt]:
    """Choose which recorded answers to read back: those of which it is not known how likely they are (`likely`).

    None where so few parted, all of them late and at near ties, that the others tell enough of the engine.
    """
    scored = [each for each in prompts if each.answer.scored]
    unknown = [each for each in scored if each.name not in likely]
    silent = {each.name for each in compared if not (each.whole or _tells_enough(each, limits))}
    parted = {each.name for each in compared if not each.whole} - silent
    few = len(unknown) <= FEW * len(scored) and parted.issuperset(each.name for each in unknown)
    return [] if few else unknown


def _tells_enough(each: Compared, limits: Limits) -> bool:
    """Say whether an answer that parted needs no reading back: what came before is long enough and about as likely as it was."""
    known = len(each.changes) >= limits.first_tokens
    return each.tie and known and mean_size(each.changes) <= limits.worst_prompt


def _likely(prompt: AnsweredPrompt, changes: tuple[float, ...], wrong: str, limits: Limits, got: str) -> Compared:
    by = mean_size(changes)
    reason = wrong
    if not reason and by > limits.worst_prompt:
        reason = f"its tokens changed by {percent(by):.0f} % in probability, {percent(limits.worst_prompt):.0f} % are allowed"
    agreed = len(prompt.answer.ids)
    return Compared(prompt.name, "likelihood", agreed, True, False, reason, changes, prompt.answer.text, got)


def changes_of(before: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Give the change of each log-probability in nats, clipped to `MOST`; places that one of both lacks are left out."""
    return tuple(
        max(-MOST, min(MOST, after - earlier))
        for earlier, after in zip(before, now, strict=False)
        if not (math.isnan(earlier) or math.isnan(after))
    )


def mean_size(changes: Sequence[float]) -> float:
    """Give the mean size of changes, whatever their sign, in nats; 0 when there are none."""
    return sum(map(abs, changes)) / len(changes) if changes else 0.0


def percent(nats: float) -> float:
    """Say by how many percent a probability changes when its logarithm does by so many nats."""
    return 100.0 * (1.0 - math.exp(-abs(nats)))


def margin(places: Mapping[int, float], token: int | None = None) -> float | None:
    """Give by how much the likeliest token leads over `token`, or over the next best one, in nats.

    What is not among the alternatives is less likely than all of them. None where too little is told.
    """
    values = sorted((value for value in places.values() if not math.isnan(value)), reverse=True)
    if len(values) < 2:
        return None
    other = values[1] if token is None else places.get(token, values[-1])
    return values[0] - other


def _agreement(recorded: Answer, got: Completion) -> tuple[int, bool]:
    """Count the tokens that are the same from the beginning, and say whether all are."""
    if recorded.ids and got.token_ids is not None:
        ids = got.token_ids
        agreed = next(
            (at for at, (one, other) in enumerate(zip(recorded.ids, ids, strict=False)) if one != other),
            min(len(recorded.ids), len(ids)),
        )
        return agreed, agreed == len(recorded.ids) == len(ids)
    texts = zip(recorded.text, got.text, strict=False)
    same = next((at for at, (one, other) in enumerate(texts) if one != other), min(len(recorded.text), len(got.text)))
    whole = recorded.text == got.text
    return (len(recorded.ids) if whole and recorded.ids else same // CHARACTERS), whole


def _parting(recorded: Answer, got: Completion, at: int, limits: Limits) -> tuple[bool, str]:
    """Say whether the place where an answer leaves the recorded one is a near tie, and if not, what is wrong."""
    if not got.text and not got.token_ids:
        return False, "no text came"
    if not recorded.ids or got.token_ids is None or not recorded.margins:
        # Nothing tells a near tie from a wrong token here: only the share of such answers counts, see `agreeing`.
        return False, ""
    before = recorded.margins[at] if at < len(recorded.margins) else 0.0
    places = got.alternatives or ()
    wanted = recorded.ids[at] if at < len(recorded.ids) else None
    now = margin(places[at], wanted) if at < len(places) else None
    if before <= limits.tie and (now is None or now <= limits.tie):
        return True, ""
    led = f"token {at + 1} is another one, though the recorded one led by {before:.1f} nats"
    return False, led if now is None else f"{led} and now trails by {now:.1f} ({limits.tie:g} are a near tie)"


def _is_late(at: int, got: Completion) -> bool:
    """Say whether fewer than half of an answer's tokens come after a place: they can't make the whole degenerate."""
    tokens = len(got.token_ids or ())
    return 2 * (tokens - at) < tokens


def _impossible(recorded: Answer, got: Completion, *, excused: bool) -> str:
    """Say what is degenerate, unless the recorded answer was too, or this one is what was recorded up to a near tie."""
    if not got.text and not got.token_ids and recorded.text:
        return "no text came"
    if wrong := _not_a_number(got.logprobs or ()):
        return wrong
    if recorded.odd:
        return ""
    return above_certainty(got.logprobs or ()) if excused else what_is_wrong(got)


def _not_a_number(logprobs: Sequence[float]) -> str:
    return "a log-probability is not a number" if any(map(math.isnan, logprobs)) else ""


def _unmet(prompt: AnsweredPrompt, text: str) -> str:
    try:
        if not prompt.expect or not prompt.answer.met or is_found(prompt.expect, text):
            return ""
    except TimeoutError as error:
        return f"its expression can't be looked for: {error}"
    return f"it does not match {prompt.expect!r}"
