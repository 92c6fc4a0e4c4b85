"""Replays what earlier pods had to compile, and finds out whether all of it is still there.

What has to follow when it isn't is decided in `runner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.warmup.bursts import Burst
from sidecar.warmup.coverage import Coverage
from sidecar.warmup.evidence import Evidence
from sidecar.warmup.journal import Journal
from sidecar.warmup.records import burst_id

#: A look costs a scan, so that replayed bursts share one; what was compiled again is found to within so many bursts.
BURSTS_A_LOOK = 16


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay went: bursts and requests sent, the kernels it compiled, and which of them the cache had lost.

    `lost` names those that an earlier pod had compiled, `families` counts them per family. Others are new: which
    requests share a step is chance, so that a burst may need a kernel that it didn't need before.
    """

    bursts: int = 0
    requests: int = 0
    compiled: int = 0
    lost: tuple[str, ...] = ()
    families: Mapping[str, int] = field(default_factory=dict)


async def replay(journal: Journal, coverage: Coverage) -> Replayed:
    """Send each burst that compiled something in earlier pods once, small before large."""
    journal.phase = "replay"
    bursts = _fitting(journal, coverage)
    lost: list[str] = []
    families: dict[str, int] = {}
    sent = requests = compiled = 0
    for index, (name, burst) in enumerate(bursts, start=1):
        # Bursts come small before large, so after a death of size each larger one would cost a start of its own.
        if not journal.deadly.is_beyond(burst):
            attempt = await journal.send_blindly(burst, f"replay {index} of {len(bursts)}: {name}")
            sent, requests = sent + 1, requests + burst.requests
            # A burst may have compiled before it was refused, and what was recorded may be of another version of us.
            if attempt.verdict != "unsupported":
                journal.judge(attempt, name, burst)
        if index % BURSTS_A_LOOK == 0 or index == len(bursts):
            evidence = await journal.look("the replay")
            compiled += evidence.compiled
            _enter(evidence, coverage, lost, families)
    return Replayed(sent, requests, compiled, tuple(lost), families)


def _fitting(journal: Journal, coverage: Coverage) -> list[tuple[str, Burst]]:
    """List what to replay: bursts of the plan as the plan has them now, others where this engine can take them."""
    planned = {burst_id(step, burst): burst for step in journal.plan.steps for burst in step.bursts}
    left_out = set(journal.of_state("skipped"))
    limits, below = journal.plan.limits, journal.limits()
    found: dict[str, tuple[str, Burst]] = {}
    for each in coverage.matters:
        burst = planned.get(each.name, each.burst)
        if burst is None:
            continue
        longest = max(ask.prompt_tokens + ask.output_tokens for phase in burst.phases for ask in phase)
        fits = each.name in planned or (
            longest <= limits.max_model_len
            and burst.concurrency <= min(limits.max_num_seqs, below.concurrency - 1)
            and burst.tokens < below.tokens
            and burst.longest_prompt < below.prompt
            and (limits.kv_tokens is None or burst.tokens <= limits.kv_tokens)
        )
        if fits and each.name not in left_out and not journal.deadly.is_known(burst):
            # What was drawn at random has the same names in every pod.
            found[each.name if each.name in planned else repr(burst)] = (each.name, burst)
    return sorted(found.values(), key=lambda each: each[1].tokens)


def _enter(evidence: Evidence, coverage: Coverage, lost: list[str], families: dict[str, int]) -> None:
    """Enter what the cache had lost; a kernel without a name counts as such, for nothing says that it is new."""
    fresh = {name for name in evidence.names if not coverage.may_know(name)}
    lost.extend(name for name in evidence.names if name not in fresh)
    unnamed = evidence.compiled - sum(evidence.kernels.values())
    for family, count in {**evidence.kernels, "unknown": unnamed}.items():
        gone = count - sum(name.startswith(f"{family}/") for name in fresh)
        if gone > 0:
            families[family] = families.get(family, 0) + gone
