"""What the state machine is told (events) and what it asks for (commands).

Plain frozen data: no event does anything, no command knows how it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """The daemon is up. `adoptable` names a proven engine that still runs; `engine_runs` that one answers already.

    `restore` is how an earlier process of this pod ended the restore for that engine, from `generation`; `fallback` is the
    number of the fallback with which the proven engine runs.
    """

    adoptable: str = ""
    attempt: str = ""
    generation: str = ""
    engine_runs: bool = False
    restore: str = "skipped"
    fallback: int = 0


@dataclass(frozen=True)
class AttemptOpened:
    """A launcher handed over its facts and waits. `impossible` are the fallbacks that can't be applied to its command."""

    attempt: str
    impossible: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AttemptStarted:
    """A launcher started the engine, with this fallback; `by` whom the start was decided: `sidecar` or `launcher`."""

    attempt: str
    by: str
    fallback: int = 0


@dataclass(frozen=True)
class AttemptTerminating:
    """The engine's container was asked to end and drains."""

    attempt: str


@dataclass(frozen=True)
class StartStuck:
    """The engine of this attempt hangs while it starts, and another start without what it is blamed on may not."""

    attempt: str
    reason: str


@dataclass(frozen=True)
class AttemptClosed:
    """A launcher and its engine are gone. `counts`: the cause may be the restored cache.

    `passing`: it was none of the cache's doing, and another start on what lies in it gets further. `by_itself`: nobody
    asked it to end or killed it.
    """

    attempt: str
    detail: str
    counts: bool
    restarting: bool = False
    passing: bool = False
    by_itself: bool = False


@dataclass(frozen=True)
class ChildExited:
    """The daemon's own child is gone with this exit code."""

    code: int


@dataclass(frozen=True)
class EngineObserved:
    """How the engine looks now; told on every poll. `steady`: unchanged for several polls."""

    state: str
    identity: str = ""
    detail: str = ""
    steady: bool = False


@dataclass(frozen=True)
class RestoreEnded:
    """A restore ended, in whatever way, and the launcher may go on, with the fallback of this number.

    `why`: the fallback was remembered from an earlier pod, with what was wrong without it.
    """

    work: int
    outcome: str
    generation: str = ""
    detail: str = ""
    fallback: int = 0
    why: str = ""


@dataclass(frozen=True)
class WarmEnded:
    """A warm-up ended: converged, exhausted, failed, disabled, unwarmed or engine_gone.

    `on_unwarmed` is the profile's word on what becomes of a pod that is not converged; empty: the setting's.
    """

    work: int
    outcome: str
    sentence: str = ""
    on_unwarmed: str = ""


@dataclass(frozen=True)
class VerifyEnded:
    """The output check ended: passed, skipped (nothing that tells could be asked), degenerate, wrong (not what the golden
    file has), unchecked (the golden file or the comparison with it can't be used), failed (no answer) or engine_gone.

    `restart` says why the engine is restarted before any traffic comes, now that it is good; empty: it is not. Whoever
    asks for it has made sure that it is not asked for again.
    """

    work: int
    outcome: str
    sentence: str = ""
    restart: str = ""


@dataclass(frozen=True)
class RetryDue:
    """The pause before another try is over."""

    work: int


@dataclass(frozen=True)
class RewarmAsked:
    """Somebody asked for another warm-up."""


@dataclass(frozen=True)
class CheckAsked:
    """Somebody asked for another check of the output, or a sample of it was bad: then `suspicion` says what."""

    suspicion: str = ""


@dataclass(frozen=True)
class DrainAsked:
    """Somebody asked that no more traffic comes."""

    by: str = "operator"


@dataclass(frozen=True)
class StopAsked:
    """The daemon was told to end."""


Event = (
    Started
    | AttemptOpened
    | AttemptStarted
    | AttemptTerminating
    | StartStuck
    | AttemptClosed
    | ChildExited
    | EngineObserved
    | RestoreEnded
    | WarmEnded
    | VerifyEnded
    | RetryDue
    | RewarmAsked
    | CheckAsked
    | DrainAsked
    | StopAsked
)


@dataclass(frozen=True)
class Launch:
    """Start the engine's command through the launcher as the daemon's own child."""


@dataclass(frozen=True)
class Restore:
    """Lay the caches down and let the launcher go on. `plan`: fresh, keep (this pod's own cache) or cold.

    `fallback` is the number of the fallback that this pod has come to; 0: none, unless an earlier pod's is remembered with
    a higher number than `tried`.
    """

    work: int
    attempt: str
    plan: str
    fallback: int = 0
    tried: int = 0


@dataclass(frozen=True)
class Warm:
    """Send warm-up traffic until the evidence says that nothing is left to compile."""

    work: int


@dataclass(frozen=True)
class Verify:
    """Check that output is good; with `canary` by one request only."""

    work: int
    canary: bool = False


@dataclass(frozen=True)
class Publish:
    """Publish what is new once the live cache is quiet, and go on doing so while serving."""


@dataclass(frozen=True)
class Cancel:
    """End whatever work is in progress; its ending is stale from now on."""


@dataclass(frozen=True)
class Prove:
    """Remember this engine as proven, so that a restarted daemon can adopt it."""

    identity: str


@dataclass(frozen=True)
class Unprove:
    """Forget the proven engine."""


@dataclass(frozen=True)
class RecordBoot:
    """Write into the store how a boot on this generation ended: ready or died."""

    generation: str
    outcome: str


@dataclass(frozen=True)
class Quarantine:
    """Mark the generation as bad in the store."""

    generation: str
    reason: str


@dataclass(frozen=True)
class Acquit:
    """Take back that this pod quarantined the generation: it was not to blame."""

    generation: str
    reason: str


@dataclass(frozen=True)
class Remember:
    """Write into the store that the engine is good with this fallback and was not without it, for pods to come."""

    fallback: int
    why: str


@dataclass(frozen=True)
class RestartEngine:
    """Ask the launcher to end the engine and to open a new attempt."""

    attempt: str
    reason: str


@dataclass(frozen=True)
class RetryLater:
    """Come back with RetryDue after a pause."""

    work: int


@dataclass(frozen=True)
class StopEngine:
    """Pass the stop on to the daemon's own child."""


@dataclass(frozen=True)
class Exit:
    """End the daemon with this code."""

    code: int


Command = (
    Launch
    | Restore
    | Warm
    | Verify
    | Publish
    | Cancel
    | Prove
    | Unprove
    | RecordBoot
    | Quarantine
    | Acquit
    | Remember
    | RestartEngine
    | RetryLater
    | StopEngine
    | Exit
)
