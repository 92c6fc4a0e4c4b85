"""What is known of each burst and step while warm-up runs, and whether its latency is flat.

Keeps books; decides nothing about what is sent next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sidecar.warmup.bursts import Burst
from sidecar.warmup.evidence import Evidence
from sidecar.warmup.planner import PlannedStep
from sidecar.warmup.profiles import Converge
from sidecar.warmup.results import Stall, StepResult, StepState
from sidecar.warmup.traffic import Sent

BurstState = Literal["open", "done", "unsupported", "failed", "killer", "skipped"]


@dataclass
class BurstRecord:
    """The books of one burst. Times are the slowest time to first token of a pass, in seconds.

    `loaded`: in its last pass a kernel was loaded from disk, so that pass says nothing of the next one.
    """

    burst: Burst
    state: BurstState = "open"
    first_s: float | None = None
    best_s: float | None = None
    last_s: float | None = None
    detail: str = ""
    loaded: bool = False
    passes: list[float] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Say whether this burst is sent in the next round."""
        return self.state in ("open", "done")

    def passed(self, sent: Sent) -> None:
        """Enter a pass in which every request was answered."""
        self.state = "done"
        slowest = sent.slowest_s
        if slowest is None:
            return
        self.first_s = slowest if self.first_s is None else self.first_s
        self.best_s = slowest if self.best_s is None else min(self.best_s, slowest)
        self.last_s = slowest
        self.passes.append(slowest)

    def flat(self, converge: Converge) -> bool:
        """Say whether the last pass was as fast as the best one, within the tolerance or the noise floor."""
        if self.loaded:
            return False
        if self.last_s is None or self.best_s is None:
            return True
        return self.last_s <= _flat_below(self.best_s, converge)

    def absorbed(self, converge: Converge) -> Stall | None:
        """Say by how much passes were slower than the best one, where that is more than noise."""
        best = self.best_s
        slow = [] if best is None else [each for each in self.passes if each > _flat_below(best, converge)]
        if best is None or not slow:
            return None
        return Stall(self.burst.key, max(slow), best, sum(slow) - best * len(slow))

    @property
    def stall(self) -> str:
        """Say how far the last pass was beyond the best one, where it was."""
        if self.loaded or self.last_s is None or self.best_s is None:
            return ""
        return f" ({self.last_s:.3g} s, {self.best_s:.3g} s at best)"


@dataclass
class StepRecord:
    """The books of one step: its bursts, and sums over all of its passes."""

    step: PlannedStep
    converge: Converge
    bursts: list[BurstRecord] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    kernels: int = 0
    seconds: float = 0.0
    rounds: int = 0
    running: bool = False

    @classmethod
    def of(cls, step: PlannedStep, converge: Converge, killers: frozenset[str]) -> StepRecord:
        """Open the books of a step, without bursts that killed an engine before, and larger ones."""
        record = cls(step, converge, [BurstRecord(burst) for burst in step.bursts])
        deadly = [burst for burst in step.bursts if burst_id(step, burst) in killers]
        for each in record.bursts:
            if any(each.burst is burst or each.burst.tokens > burst.tokens for burst in deadly):
                each.state = "skipped"
                each.detail = "left out, because the engine died of it before"
        return record

    def enter(self, sent: Sent, evidence: Evidence) -> None:
        """Add a pass of one burst to the sums."""
        self.requests += len(sent.completions)
        self.tokens += sent.tokens
        self.seconds += sent.seconds
        self.kernels += evidence.compiled

    def of_state(self, state: BurstState) -> list[BurstRecord]:
        """List the bursts in a state."""
        return [each for each in self.bursts if each.state == state]

    @property
    def state(self) -> StepState:
        """Give the worst that happened in this step; partly unsupported steps count as done."""
        if self.of_state("killer") or self.of_state("skipped"):
            return "killer"
        if self.of_state("failed"):
            return "failed"
        if self.running:
            return "running"
        if self.bursts and len(self.of_state("unsupported")) == len(self.bursts):
            return "unsupported"
        return "done" if self.rounds else "pending"

    def result(self) -> StepResult:
        """Give the books as they stand, for status and log."""
        return StepResult(
            name=self.step.name,
            kind=self.step.kind,
            requests=self.requests,
            tokens=self.tokens,
            ttft_first_s=_slowest(each.first_s for each in self.bursts),
            ttft_best_s=_slowest(each.best_s for each in self.bursts),
            ttft_last_s=_slowest(each.last_s for each in self.bursts),
            kernels=self.kernels,
            state=self.state,
            detail=self._detail(),
            seconds=self.seconds,
            rounds=self.rounds,
            stalls=tuple(stall for each in self.bursts if (stall := each.absorbed(self.converge)) is not None),
        )

    def _detail(self) -> str:
        """Tell about bursts that did not go as planned, alike ones together, the first few by name."""
        told: dict[str, list[str]] = {}
        for each in self.bursts:
            if each.detail:
                told.setdefault(each.detail, []).append(each.burst.key)
        return " ".join(f"{_named(keys)}: {detail}." for detail, keys in told.items()).replace("..", ".")


def burst_id(step: PlannedStep, burst: Burst) -> str:
    """Name a burst across warm-ups of a pod."""
    return f"{step.name}/{burst.key}"


def _flat_below(best_s: float, converge: Converge) -> float:
    return max(best_s * converge.tolerance, best_s + converge.floor_s)


def _named(keys: list[str]) -> str:
    return ", ".join(keys) if len(keys) <= 3 else f"{keys[0]}, {keys[1]} and {len(keys) - 2} more"


def _slowest(values: Iterable[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)
