"""What all answers of a check say together: statistics, who failed, and the sentence.

Pure. The statistics, by name: `tokens` (recorded tokens whose likelihood was compared), `mean_change` (of their log-likelihood in
nats per token; below 0 when the recorded text became less likely), `worst_prompt_change` (mean size of the changes of one
prompt, in nats per token), `different` (answers that are not the recorded ones to the last token), `near_ties` (those of
them that parted where two tokens were as good as each other), and for each way of sending `<way>_prompts`,
`<way>_agreeing` (share whose first tokens are those recorded) and `<way>_drift_percent`; `likelihood_drift_percent` is that
of what was read back, or given token for token in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.golden.judging import Compared, mean_size, percent
from sidecar.golden.limits import Limits
from sidecar.golden.report import FailedPrompt, Way

SENT: tuple[Way, ...] = ("solo", "concurrent", "batch")
#: Fewer tokens than this say nothing about drift, and fewer prompts nothing about their share.
FEWEST_TOKENS = 16
FEWEST_PROMPTS = 4
WHERE = {
    "solo": "sent alone",
    "concurrent": "sent together behind a cached prefix",
    "batch": "sent in a batch",
    "likelihood": "compared by likelihood",
}
#: What is worth a look when only one way of sending went wrong.
SUSPECTS = {
    "concurrent": "alone and in a batch they were right, so look at what shares KV caches: prefix caching, KV offload, KV dtype",
    "batch": "alone they were right, so look at what depends on the batch: CUDA graphs, attention backend",
}


@dataclass(frozen=True)
class Verdict:
    """The whole of a check. `why` says what is wrong, `unsure` why nothing is known; it passed when both are empty."""

    why: str
    drift_percent: float | None
    statistics: dict[str, float | int | None]
    failed: tuple[FailedPrompt, ...]
    unsure: str = ""


def judge(compared: Sequence[Compared], limits: Limits) -> Verdict:
    """Judge all answers of one check of one recording."""
    statistics, drifts = _statistics(compared, limits)
    failed = [each for each in compared if each.reason]
    names = {each.name for each in compared}
    bad = {each.name for each in failed}
    drift = max(drifts.values(), default=None)
    why = ""
    if len(bad) > limits.failing * len(names):
        why = _failures(failed, len(bad), compared)
    elif drift is not None and drift > limits.drift_percent:
        way = max(drifts, key=lambda each: drifts[each])
        why = (
            f"recorded tokens {WHERE[way]} changed by {drift:.1f} % in probability on average, "
            f"{limits.drift_percent:g} % are allowed"
        )
    elif (change := statistics["mean_change"]) is not None and change < -limits.change:
        why = (
            f"the recorded answers became {percent(change):.1f} % less likely a token, "
            f"{percent(limits.change):.1f} % are allowed"
        )
    else:
        why = _disagreement(compared, limits)
    shown = failed or (_worst(compared) if why else [])
    unsure = "" if why else _nothing_known(compared, drift, limits)
    return Verdict(why, drift, statistics, tuple(_failed(each, limits) for each in shown), unsure)


def agreeing(compared: Sequence[Compared], way: Way, limits: Limits) -> float | None:
    """Give the share of a way's answers whose first tokens are those recorded; None where there are none."""
    return _share([each for each in compared if each.way == way], limits)


def _share(sent: Sequence[Compared], limits: Limits) -> float | None:
    return sum(_begins(each, limits) for each in sent) / len(sent) if sent else None


def _begins(each: Compared, limits: Limits) -> bool:
    return each.whole or each.agreed >= limits.first_tokens


def _statistics(compared: Sequence[Compared], limits: Limits) -> tuple[dict[str, float | int | None], dict[str, float]]:
    read = [each for each in compared if each.way == "likelihood" and each.changes]
    names = {each.name for each in read}
    # Where an answer could not be read back, what was generated tells, as far as it is the recorded text.
    told = [each for each in compared if each.way == "likelihood" or each.name not in names]
    changes = [change for each in told for change in each.changes]
    drifts: dict[str, float] = {}
    statistics: dict[str, float | int | None] = {
        "tokens": len(changes),
        "mean_change": sum(changes) / len(changes) if len(changes) >= FEWEST_TOKENS else None,
        "worst_prompt_change": max((mean_size(each.changes) for each in read), default=None),
        "different": sum(not each.whole for each in compared),
        "near_ties": sum(each.tie for each in compared),
    }
    for way in (*SENT, "likelihood"):
        own = [change for each in compared if each.way == way for change in each.changes]
        found = percent(mean_size(own)) if len(own) >= FEWEST_TOKENS else None
        if found is not None:
            drifts[way] = found
        statistics[f"{way}_drift_percent"] = found
    for way in SENT:
        statistics[f"{way}_prompts"] = sum(each.way == way for each in compared)
        statistics[f"{way}_agreeing"] = agreeing(compared, way, limits)
    return statistics, drifts


def _failures(failed: Sequence[Compared], count: int, compared: Sequence[Compared]) -> str:
    first, total = failed[0], len({each.name for each in compared})
    ways = {each.way for each in failed}
    what = f"{count} of {total} prompts went wrong: '{first.name}' {WHERE[first.way]}, {first.reason}"
    if len(ways) == 1 and first.way in SUSPECTS:
        what += f"; {SUSPECTS[first.way]}"
    return what


def _disagreement(compared: Sequence[Compared], limits: Limits) -> str:
    """Say where too few answers begin as they were recorded: in one way of sending, or in all ways together."""
    # What left at a near tie agrees as far as anybody can ask.
    untold = [each for each in compared if each.way in SENT and not each.tie]
    for where, sent in (*((WHERE[way], [each for each in untold if each.way == way]) for way in SENT), ("", untold)):
        share = _share(sent, limits)
        if share is None or share >= limits.agreeing:
            continue
        # However few they are, none that agrees is no chance.
        if len(sent) >= FEWEST_PROMPTS or (share == 0 and not where):
            return (
                f"only {share:.0%} of the answers {f'{where} ' if where else ''}begin with the {limits.first_tokens} recorded "
                f"tokens, {limits.agreeing:.0%} must"
            )
    return ""


def _nothing_known(compared: Sequence[Compared], drift: float | None, limits: Limits) -> str:
    """Say why answers that are not known to be wrong prove nothing; empty where they do."""
    sent = [each for each in compared if each.way in SENT]
    parted = [each for each in sent if not (each.tie or each.reason or _begins(each, limits))]
    if parted and len([each for each in sent if not each.tie]) < FEWEST_PROMPTS:
        return (
            f"{len(parted)} of {len(sent)} answers are not the recorded ones, and the engine doesn't tell enough for knowing "
            "whether they may be others; record more prompts"
        )
    if drift is None and not any(_begins(each, limits) for each in sent):
        return (
            "all answers left the recorded ones at near ties, and no likelihood could be compared; record more prompts"
        )
    return ""


def _worst(compared: Sequence[Compared], most: int = 5) -> list[Compared]:
    """Give the answers that changed most, for a person to look at where only all of them together failed."""
    return sorted(compared, key=lambda each: (each.whole, each.tie, -mean_size(each.changes), each.agreed))[:most]


def _failed(each: Compared, limits: Limits) -> FailedPrompt:
    by = percent(mean_size(each.changes))
    reason = each.reason or f"its tokens changed by {by:.0f} % in probability"
    if not each.reason and not each.whole and by < 0.5:
        agreed = min(each.agreed, limits.first_tokens)
        reason = f"it agrees in {agreed} of the {limits.first_tokens} first tokens"
    return FailedPrompt(each.name, each.way, reason, each.expected, each.got)
