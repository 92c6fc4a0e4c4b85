"""Phases, modes and the snapshot that the state machine turns into the next one.

No transition is decided here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any


class Phase(enum.Enum):
    """Where the pod is. The order is the order of a start."""

    STARTING = "starting"
    AWAITING_LAUNCHER = "awaiting_launcher"
    RESTORING = "restoring"
    AWAITING_ENGINE = "awaiting_engine"
    WARMING = "warming"
    VERIFYING = "verifying"
    READY = "ready"
    SUSPENDED = "suspended"
    DRAINING = "draining"
    STOPPED = "stopped"


LIVE_PHASES = tuple(phase for phase in Phase if phase is not Phase.STOPPED)


class Mode(enum.Enum):
    """Who starts the engine: its container through the launcher, the daemon itself, or somebody we don't see."""

    LAUNCHER = "launcher"
    CHILD = "child"
    BESIDE = "beside"


class Suspension(enum.Enum):
    """Why a pod that has an engine takes no traffic."""

    ASLEEP = "asleep"
    STALLED = "stalled"
    DEGENERATE = "degenerate"
    WRONG = "wrong"
    UNCHECKED = "unchecked"
    BROKEN = "broken"
    UNWARMED = "unwarmed"
    GPU_LOST = "gpu_lost"


#: States of an engine that is there and can't work; it is warmed again when it is up.
SUSPENDING = {"asleep": Suspension.ASLEEP, "stalled": Suspension.STALLED, "gpu_lost": Suspension.GPU_LOST}


@dataclass(frozen=True)
class Policy:
    """What to do where evidence is missing or bad: the settings of the same names."""

    on_unwarmed: str = "serve"
    on_golden_failed: tuple[str, ...] = ("retry-cold", "hold")


@dataclass(frozen=True)
class Snapshot:
    """Everything the next decision depends on.

    `work` numbers the restore, warm-up or check in progress: an ending that carries another number is stale.
    `attempt` is the launcher's name for one start of the engine; `identity` tells one engine process from the next.
    `deaths` counts engine deaths before ready on `generation`; `served` says that this attempt was ready once, so that
    its end is no such death; `crashed` that the last attempt ended badly, so that its live cache is not kept as it is;
    `blamed` is the generation whose output was bad, as long as it is not known whether it would be without it;
    `cold_next` makes the next restore a cold start; `relaunch` that the daemon's own child is started again, because it
    died on a restored cache and may live without it, or gets further on what it compiled.

    `restarted` says that the engine was restarted as it was, because its output turned bad while it served; `broken` counts
    checks in a row that got no answer.

    `fallbacks` are the changes of the engine's command that may be tried, in order, and never change. `fallback` is the
    number of the one that this attempt has or the next one gets, from 1, and 0 is the command as it was asked for;
    `fallback_why` says what was wrong without it. `tried` is the highest number so far: each is tried once in a pod.
    `failed_starts` counts deaths before ready with it; `trusted` says that an engine with it was good before.
    `impossible` are those that can't be applied to this command; `missed` counts starts that were to have one and went
    without, because the launcher did not wait.
    """

    mode: Mode
    phase: Phase = Phase.STARTING
    work: int = 0
    attempt: str = ""
    identity: str = ""
    restore: str = ""
    generation: str = ""
    warm: str = ""
    warm_sentence: str = ""
    verify: str = ""
    verify_sentence: str = ""
    suspension: Suspension | None = None
    engine_detail: str = ""
    deaths: int = 0
    died: str = ""
    had_attempt: bool = False
    served: bool = False
    crashed: bool = False
    cold_next: bool = False
    cold_retried: bool = False
    blamed: str = ""
    restarted: bool = False
    broken: int = 0
    relaunch: bool = False
    adopting: bool = False
    stopping: bool = False
    drained_by: str = ""
    fallbacks: tuple[str, ...] = ()
    fallback: int = 0
    fallback_why: str = ""
    tried: int = 0
    failed_starts: int = 0
    trusted: bool = False
    impossible: frozenset[int] = frozenset()
    missed: int = 0

    @property
    def unproven(self) -> bool:
        """Say whether this pod takes traffic by policy, without full proof."""
        return self.warm not in ("converged", "adopted") or self.verify != "passed"

    @property
    def flagged(self) -> bool:
        """Say whether people should know more of a pod than that it is ready: unproven, or not as it was asked for."""
        return self.unproven or self.fallback > 0

    @property
    def next_fallback(self) -> int:
        """Give the number of the next fallback; 0: none is left."""
        left = range(self.tried + 1, len(self.fallbacks) + 1)
        return next((number for number in left if number not in self.impossible), 0)

    def cleared(self, phase: Phase, **changes: Any) -> Snapshot:
        """Enter a phase without anything that the last warm-up, check or suspension left behind."""
        clean = replace(
            self, phase=phase, warm="", warm_sentence="", verify="", verify_sentence="", suspension=None, adopting=False
        )
        return replace(clean, **changes)
