"""What warm-up and the output check report: frozen types with a JSON form.

Nothing here sends, waits or judges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sidecar.warmup.coverage import Coverage

StepState = Literal["pending", "running", "done", "unsupported", "failed", "killer"]
WarmOutcome = Literal["converged", "exhausted", "failed", "engine_gone", "disabled", "unwarmed"]
VerifyOutcome = Literal["passed", "degenerate", "wrong", "unchecked", "failed", "engine_gone", "skipped"]


def _rounded(seconds: float | None) -> float | None:
    """Round to 0.1 ms: more digits are noise, and the JSON is read by people."""
    return None if seconds is None else round(seconds, 4)


@dataclass(frozen=True, slots=True)
class Stall:
    """A burst that was slower in some passes than at its best, beyond the profile's tolerance. Seconds.

    `slowest_s` is its slowest pass and `steady_s` its best one; `absorbed_s` sums up over all slow passes what they took
    beyond the best one: the wait that live traffic has no more.
    """

    burst: str
    slowest_s: float
    steady_s: float
    absorbed_s: float

    def to_json(self) -> dict[str, Any]:
        """Give all fields, times rounded to 0.1 ms."""
        times = {name: _rounded(getattr(self, name)) for name in ("slowest_s", "steady_s", "absorbed_s")}
        return {"burst": self.burst, **times}


@dataclass(frozen=True, slots=True)
class StepResult:
    """How one step of the profile went so far. Times in seconds.

    `ttft_first_s`, `ttft_best_s` and `ttft_last_s` are the slowest request of the step in its first, best and
    latest pass: what a user would have waited without warm-up, and waits now. `tokens` counts prompt and
    output of all requests, `kernels` what was compiled while the step ran, `rounds` how often it ran. `stalls` has
    every burst that stalled, not the slowest one alone.
    """

    name: str
    kind: str
    requests: int = 0
    tokens: int = 0
    ttft_first_s: float | None = None
    ttft_best_s: float | None = None
    ttft_last_s: float | None = None
    kernels: int = 0
    state: StepState = "pending"
    detail: str = ""
    seconds: float = 0.0
    rounds: int = 0
    stalls: tuple[Stall, ...] = ()

    @property
    def stall_s(self) -> float:
        """Sum up what all bursts waited beyond their best pass, in seconds."""
        return sum(each.absorbed_s for each in self.stalls)

    def to_json(self) -> dict[str, Any]:
        """Give all fields, times rounded to 0.1 ms; of the stalls their number and sum."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "stalls"}
        values |= {"stalls": len(self.stalls), "stall_s": self.stall_s}
        for name in ("ttft_first_s", "ttft_best_s", "ttft_last_s", "seconds", "stall_s"):
            values[name] = _rounded(values[name])
        return values


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """A picture of a warm-up that still runs, given after every burst.

    `activity`: what it does now. `phase`: `replay`, `rounds`, `search` or `draws`.
    """

    profile: str
    round: int
    activity: str
    steps: tuple[StepResult, ...]
    kernels: Mapping[str, int]
    requests: int
    seconds: float
    phase: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give the picture in the shape of `/status`, with outcome `running`."""
        return {
            "outcome": "running",
            "sentence": self.activity,
            "phase": self.phase,
            "profile": self.profile,
            "round": self.round,
            "steps": [step.to_json() for step in self.steps],
            "kernels": dict(self.kernels),
            "requests": self.requests,
            "seconds": _rounded(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class WarmResult:
    """How a warm-up ended. `disabled`: nobody wants one; `unwarmed`: nothing could be sent to this engine.

    `reason` is a short word for metrics (`warmup_http_500`, `budget`, …), `sentence` the same for people.
    `kernels` counts what was compiled per family, `killers` names the bursts (`step/burst`) during which the
    engine died, so that the next warm-up of this pod leaves them out. `residual_risk` is the share of the
    traffic mix that may still compile, at 95 % confidence; None when no random draws were made.

    `searched` counts the requests of the search, `open` names ranges of sizes that are not covered, `idle_ranks`
    data-parallel ranks that no request has reached. `replayed`
    counts the bursts of earlier pods that were sent again, `lost` names the kernels that they compiled again
    although an earlier pod had compiled them, `lost_kernels` counts these per family. `coverage` is what the next
    pod can go on from; None when nothing is known that helps it.
    """

    outcome: WarmOutcome
    sentence: str
    reason: str = ""
    profile: str = ""
    rounds: int = 0
    kernels: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[StepResult, ...] = ()
    requests: int = 0
    seconds: float = 0.0
    unsupported: tuple[str, ...] = ()
    killers: tuple[str, ...] = ()
    draws: int = 0
    residual_risk: float | None = None
    notes: tuple[str, ...] = ()
    searched: int = 0
    open: tuple[str, ...] = ()
    idle_ranks: tuple[str, ...] = ()
    replayed: int = 0
    lost: tuple[str, ...] = ()
    lost_kernels: Mapping[str, int] = field(default_factory=dict)
    coverage: Coverage | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the result in the shape of `/status`."""
        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "reason": self.reason,
            "profile": self.profile,
            "round": self.rounds,
            "rounds": self.rounds,
            "kernels": dict(self.kernels),
            "steps": [step.to_json() for step in self.steps],
            "requests": self.requests,
            "seconds": _rounded(self.seconds),
            "unsupported": list(self.unsupported),
            "killers": list(self.killers),
            "draws": self.draws,
            "residual_risk": self.residual_risk,
            "notes": list(self.notes),
            "searched": self.searched,
            "open": list(self.open),
            "idle_ranks": list(self.idle_ranks),
            "replayed": self.replayed,
            "lost": list(self.lost),
            "lost_kernels": dict(self.lost_kernels),
            "matters": len(self.coverage.matters) if self.coverage else 0,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One answer that was looked at: `passed`, or `detail` says what is wrong with it."""

    name: str
    passed: bool
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """How the output check ended.

    `degenerate`: the engine answers, and what it says can't be right. `wrong`: it is not what a golden file has.
    `unchecked`: it can't be compared with one. `skipped`: nothing that tells could be asked. `refuses`: it failed because the
    engine answers with errors, which is not load; for callers, and in no JSON.
    """

    outcome: VerifyOutcome
    sentence: str
    checks: tuple[Check, ...] = ()
    refuses: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give the result in the shape of `/status`."""
        checks = [{**dataclasses.asdict(check), "seconds": _rounded(check.seconds)} for check in self.checks]
        return {"outcome": self.outcome, "sentence": self.sentence, "checks": checks}
