"""The total transition table: what every event does in every phase.

Pure: handlers build the next snapshot and name commands. A pair that is missing fails at import, not at 3 a.m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sidecar.lifecycle import events as e
from sidecar.lifecycle import output
from sidecar.lifecycle.output import Result
from sidecar.lifecycle.states import SUSPENDING, Mode, Phase, Policy, Snapshot, Suspension

Handler = Callable[[Snapshot, Any, Policy], Result]

#: Two deaths before ready on one generation condemn it; one may have had another cause.
DEATHS_TO_QUARANTINE = 2

#: What of the watcher's words means that no process answers any more. A time-out is not among them: it is load.
GONE = frozenset({"gone", "unreachable", "starting", "not_an_engine"})


class ImpossibleTransition(Exception):
    """An event came in a phase in which it can't: a bug of ours, told with the snapshot."""


def step(snapshot: Snapshot, event: e.Event, policy: Policy) -> Result:
    """Give the next snapshot and the commands to carry out, in order."""
    return TABLE[snapshot.phase, type(event)](snapshot, event, policy)


def _stay(s: Snapshot, event: e.Event, policy: Policy) -> Result:
    return s, ()


def _impossible(s: Snapshot, event: e.Event, policy: Policy) -> Result:
    raise ImpossibleTransition(f"{event!r} can't happen in phase {s.phase.value}; snapshot: {s!r}")


# --- starting -------------------------------------------------------------------------------------------------------


def _started(s: Snapshot, event: e.Started, policy: Policy) -> Result:
    if event.adoptable:
        adopted = replace(
            s,
            phase=Phase.VERIFYING,
            work=s.work + 1,
            identity=event.adoptable,
            attempt=event.attempt,
            had_attempt=bool(event.attempt),
            served=True,
            generation=event.generation,
            restore="skipped",
            warm="adopted",
            adopting=True,
            warm_sentence="Adopted: this engine was proven before the sidecar restarted.",
            fallback=event.fallback,
            tried=event.fallback,
            trusted=event.fallback > 0,
        )
        return adopted, (e.Verify(adopted.work, canary=True),)
    if s.mode is Mode.BESIDE:
        if event.engine_runs:
            return replace(s, phase=Phase.AWAITING_ENGINE, restore=event.restore, generation=event.generation), ()
        return _restore(s, "fresh")
    return replace(s, phase=Phase.AWAITING_LAUNCHER), ((e.Launch(),) if s.mode is Mode.CHILD else ())


def _restore(s: Snapshot, plan: str, *before: e.Command) -> Result:
    after = s.cleared(Phase.RESTORING, work=s.work + 1, identity="", restore="", engine_detail="")
    return after, (*before, e.Restore(after.work, after.attempt, plan, after.fallback, after.tried))


# --- attempts: one start of the engine each -------------------------------------------------------------------------


def _open(s: Snapshot, event: e.AttemptOpened, policy: Policy) -> Result:
    if event.attempt == s.attempt:
        return s, ()
    before: tuple[e.Command, ...] = (e.Cancel(), e.Unprove())
    if s.attempt and s.phase in _BEFORE_READY:
        s, died = _death(s, "its container started again.", counts=True, by_itself=True)
        before += died
    plan = "cold" if s.cold_next else "keep" if s.had_attempt and not s.crashed else "fresh"
    opened = replace(
        s,
        attempt=event.attempt,
        had_attempt=True,
        served=False,
        crashed=False,
        relaunch=False,
        drained_by="",
        broken=0,
        impossible=event.impossible,
    )
    return _restore(opened, plan, *before)


def _engine_started(s: Snapshot, event: e.AttemptStarted, policy: Policy) -> Result:
    if s.phase is Phase.RESTORING and event.attempt == s.attempt and event.by == "launcher":
        s = output.miss_fallback(s)
        return replace(s, phase=Phase.AWAITING_ENGINE, restore="late", fallback=0, fallback_why=""), (e.Cancel(),)
    if s.phase is Phase.AWAITING_LAUNCHER:
        return replace(
            s,
            phase=Phase.AWAITING_ENGINE,
            attempt=event.attempt,
            had_attempt=True,
            restore="skipped",
            identity="",
            fallback=event.fallback,
            tried=max(s.tried, event.fallback),
        ), ()
    return s, ()


def _terminating(s: Snapshot, event: e.AttemptTerminating, policy: Policy) -> Result:
    if event.attempt != s.attempt:
        return s, ()
    return _drain(s, e.DrainAsked("the engine's container, which is ending"), policy)


def _stuck(s: Snapshot, event: e.StartStuck, policy: Policy) -> Result:
    if event.attempt != s.attempt or not output.renewable(s):
        return s, ()
    after = s.cleared(Phase.AWAITING_LAUNCHER, identity="", restore="", died=event.reason)
    return after, (e.RestartEngine(s.attempt, event.reason),)


def _closed(s: Snapshot, event: e.AttemptClosed, policy: Policy) -> Result:
    if event.attempt != s.attempt:
        return s, ()
    commands: tuple[e.Command, ...] = (e.Cancel(), e.Unprove())
    if not event.restarting:
        changed = event.by_itself and s.fallback > 0 and not s.trusted
        worth_it = changed or event.passing or (event.counts and s.generation != "")
        relaunch = s.mode is Mode.CHILD and worth_it and not s.served
        s, died = _death(replace(s, relaunch=relaunch), event.detail, event.counts, event.by_itself)
        commands += died
    return s.cleared(Phase.AWAITING_LAUNCHER, attempt="", identity="", restore=""), commands


def _closed_while_draining(s: Snapshot, event: e.AttemptClosed, policy: Policy) -> Result:
    if event.attempt != s.attempt:
        return s, ()
    after = s.cleared(Phase.AWAITING_LAUNCHER, attempt="", identity="", restore="", died=event.detail)
    return after, (e.Unprove(),)


def _death(s: Snapshot, detail: str, counts: bool, by_itself: bool) -> tuple[Snapshot, tuple[e.Command, ...]]:
    s = replace(s, died=detail, crashed=s.crashed or counts)
    if by_itself:
        s = output.give_up_fallback(s, detail)
    if not counts or s.served:
        return s, ()
    s = replace(s, deaths=s.deaths + 1)
    record = (e.RecordBoot(s.generation, "died"),) if s.generation else ()
    if s.deaths < DEATHS_TO_QUARANTINE:
        return s, record
    condemned: tuple[e.Command, ...] = ()
    if s.generation:
        reason = f"The engine died {s.deaths} times before it was ready on this generation; last: {detail}"
        condemned = (e.Quarantine(s.generation, reason),)
    return replace(s, deaths=0, cold_next=True, generation=""), record + condemned


def _child_exited(s: Snapshot, event: e.ChildExited, policy: Policy) -> Result:
    # Nobody else starts it again: in a container of its own the kubelet does.
    if s.relaunch and not s.stopping:
        return s.cleared(Phase.AWAITING_LAUNCHER, relaunch=False), (e.Cancel(), e.Launch())
    # A shell's word for "ended by the signal that we sent" is not a failure of a stop that was asked for.
    code = 0 if s.stopping and event.code in (0, 130, 143) else event.code
    return s.cleared(Phase.STOPPED), (e.Cancel(), e.Unprove(), e.Exit(code))


# --- restoring ------------------------------------------------------------------------------------------------------


def _restore_ended(s: Snapshot, event: e.RestoreEnded, policy: Policy) -> Result:
    if event.work != s.work:
        return s, ()
    deaths = s.deaths if event.generation == s.generation else 0
    number = min(event.fallback, len(s.fallbacks))
    if not number and event.outcome in ("late", "failed"):
        s = output.miss_fallback(s)
    return replace(
        s,
        phase=Phase.AWAITING_ENGINE,
        restore=event.outcome,
        generation=event.generation,
        deaths=deaths,
        cold_next=False,
        fallback=number,
        fallback_why=(event.why or s.fallback_why) if number else "",
        tried=max(s.tried, number),
        trusted=number > 0 and (bool(event.why) or (s.trusted and number == s.fallback)),
    ), ()


def _observed_restoring(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    if s.mode is Mode.BESIDE and event.state == "up":
        return _warm(replace(s, restore="skipped"), event.identity, e.Cancel())
    return s, ()


# --- the engine as it looks from its port ---------------------------------------------------------------------------


def _warm(s: Snapshot, identity: str, *before: e.Command) -> Result:
    after = s.cleared(Phase.WARMING, work=s.work + 1, identity=identity, engine_detail="", drained_by="")
    return after, (*before, e.Warm(after.work))


def _observed_without_launcher(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    # An engine whose container lacks the launcher answers for good; one that is just ending does not stay steady.
    if event.state == "up" and event.steady and s.mode is Mode.LAUNCHER and not s.attempt:
        return _warm(replace(s, restore="skipped"), event.identity)
    return s, ()


def _observed_awaiting(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    if event.state == "up":
        return _warm(s, event.identity)
    return replace(s, engine_detail=event.detail), ()


def _observed_working(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    if event.state in GONE:
        return _lost(s, event, e.Cancel())
    if event.state == "asleep":
        return s.cleared(Phase.SUSPENDED, suspension=Suspension.ASLEEP, broken=0), (e.Cancel(),)
    if event.state == "up" and event.identity and s.identity and event.identity != s.identity:
        return _warm(s, event.identity, e.Cancel())
    if event.state == "up" and event.identity and not s.identity:
        return replace(s, identity=event.identity), ()
    return s, ()


def _observed_ready(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    if event.state in GONE:
        return _lost(s, event, e.Cancel(), e.Unprove())
    if (cause := SUSPENDING.get(event.state)) is not None:
        return s.cleared(Phase.SUSPENDED, suspension=cause, engine_detail=event.detail), (e.Cancel(), e.Unprove())
    if event.state == "up" and event.identity and event.identity != s.identity:
        if not s.identity:
            return replace(s, identity=event.identity), (() if s.unproven else (e.Prove(event.identity),))
        return _warm(s, event.identity, e.Cancel(), e.Unprove())
    return s, ()


def _observed_suspended(s: Snapshot, event: e.EngineObserved, policy: Policy) -> Result:
    if event.state in GONE:
        return _lost(s, event, e.Cancel())
    woke = s.suspension in SUSPENDING.values()
    other = bool(event.identity and s.identity and event.identity != s.identity)
    if event.state == "up" and (woke or other):
        return _warm(s, event.identity, e.Cancel())
    if event.state == "asleep" and s.suspension is not Suspension.ASLEEP:
        return s.cleared(Phase.SUSPENDED, suspension=Suspension.ASLEEP, broken=0), (e.Cancel(),)
    return s, ()


def _lost(s: Snapshot, event: e.EngineObserved, *commands: e.Command) -> Result:
    return s.cleared(Phase.AWAITING_ENGINE, identity="", engine_detail=event.detail), commands


# --- warming and verifying ------------------------------------------------------------------------------------------


def _warm_ended(s: Snapshot, event: e.WarmEnded, policy: Policy) -> Result:
    if event.work != s.work:
        return s, ()
    s = replace(s, warm=event.outcome, warm_sentence=event.sentence)
    if event.outcome == "engine_gone":
        return s.cleared(Phase.AWAITING_ENGINE, identity="", engine_detail=event.sentence), ()
    if event.outcome != "converged" and (event.on_unwarmed or policy.on_unwarmed) == "hold":
        return replace(s, phase=Phase.SUSPENDED, suspension=Suspension.UNWARMED), ()
    after = replace(s, phase=Phase.VERIFYING, work=s.work + 1)
    return after, (e.Verify(after.work),)


def _verify_ended(s: Snapshot, event: e.VerifyEnded, policy: Policy) -> Result:
    if event.work != s.work:
        return s, ()
    s = replace(s, verify=event.outcome, verify_sentence=event.sentence)
    if event.outcome == "engine_gone":
        return s.cleared(Phase.AWAITING_ENGINE, identity="", engine_detail=event.sentence), ()
    if event.restart and event.outcome == "passed" and output.renewable(s):
        return output.renew(s, event.restart)
    if event.outcome in ("passed", "skipped"):
        return output.ready(s)
    if s.adopting:
        return _warm(s, s.identity, e.Unprove())
    if event.outcome in output.BAD:
        return output.bad(s, policy)
    if event.outcome == "unchecked":
        return output.unchecked(s, policy)
    return output.broken(s, policy)


# --- people and time ------------------------------------------------------------------------------------------------


def _retry_due(s: Snapshot, event: e.RetryDue, policy: Policy) -> Result:
    if event.work != s.work or s.suspension not in (Suspension.BROKEN, Suspension.UNCHECKED):
        return s, ()
    # Nothing was wrong with the engine, so that it stays warm.
    return output.check(s, "") if s.suspension is Suspension.UNCHECKED else _warm(s, s.identity)


def _rewarm(s: Snapshot, event: e.RewarmAsked, policy: Policy) -> Result:
    if s.stopping or s.suspension is Suspension.ASLEEP:
        return s, ()
    return _warm(s, s.identity, e.Cancel(), e.Unprove())


def _check(s: Snapshot, event: e.CheckAsked, policy: Policy) -> Result:
    if output.is_checkable(s):
        return output.check(s, event.suspicion, e.Cancel(), e.Unprove())
    return s, ()


def _drain(s: Snapshot, event: e.DrainAsked, policy: Policy) -> Result:
    return s.cleared(Phase.DRAINING, drained_by=event.by), (e.Cancel(), e.Unprove())


def _stop(s: Snapshot, event: e.StopAsked, policy: Policy) -> Result:
    if s.mode is Mode.CHILD and s.phase is not Phase.STARTING:
        after = s.cleared(Phase.DRAINING, stopping=True, drained_by="the end of the sidecar")
        return after, (e.Cancel(), e.Unprove(), e.StopEngine())
    # The engine may outlive this daemon (a restart of the sidecar alone), so what was proven stays proven.
    return s.cleared(Phase.STOPPED, stopping=True), (e.Cancel(), e.Exit(0))


_BEFORE_READY = (Phase.RESTORING, Phase.AWAITING_ENGINE, Phase.WARMING, Phase.VERIFYING)


def _rows(handlers: Mapping[Phase, Handler], otherwise: Handler) -> dict[Phase, Handler]:
    return {phase: handlers.get(phase, otherwise) for phase in Phase}


def _everywhere(handler: Handler, *, but: Mapping[Phase, Handler] | None = None) -> dict[Phase, Handler]:
    return {**dict.fromkeys(Phase, handler), Phase.STOPPED: _stay, **(but or {})}


_BY_EVENT: dict[type[Any], dict[Phase, Handler]] = {
    e.Started: _rows({Phase.STARTING: _started}, otherwise=_impossible),
    e.AttemptOpened: _everywhere(_open, but={Phase.STARTING: _impossible}),
    e.AttemptStarted: _rows(
        {Phase.AWAITING_LAUNCHER: _engine_started, Phase.RESTORING: _engine_started}, otherwise=_stay
    ),
    e.AttemptTerminating: _everywhere(
        _terminating, but={Phase.STARTING: _impossible, Phase.DRAINING: _stay, Phase.AWAITING_LAUNCHER: _stay}
    ),
    e.StartStuck: _rows({Phase.AWAITING_ENGINE: _stuck}, otherwise=_stay),
    e.AttemptClosed: _everywhere(
        _closed,
        but={Phase.STARTING: _impossible, Phase.AWAITING_LAUNCHER: _stay, Phase.DRAINING: _closed_while_draining},
    ),
    e.ChildExited: _everywhere(_child_exited),
    e.EngineObserved: _rows(
        {
            Phase.AWAITING_LAUNCHER: _observed_without_launcher,
            Phase.RESTORING: _observed_restoring,
            Phase.AWAITING_ENGINE: _observed_awaiting,
            Phase.WARMING: _observed_working,
            Phase.VERIFYING: _observed_working,
            Phase.READY: _observed_ready,
            Phase.SUSPENDED: _observed_suspended,
        },
        otherwise=_stay,
    ),
    e.RestoreEnded: _rows({Phase.RESTORING: _restore_ended}, otherwise=_stay),
    e.WarmEnded: _rows({Phase.WARMING: _warm_ended}, otherwise=_stay),
    e.VerifyEnded: _rows({Phase.VERIFYING: _verify_ended}, otherwise=_stay),
    e.RetryDue: _rows({Phase.SUSPENDED: _retry_due}, otherwise=_stay),
    e.RewarmAsked: _rows({Phase.READY: _rewarm, Phase.SUSPENDED: _rewarm, Phase.DRAINING: _rewarm}, otherwise=_stay),
    e.CheckAsked: _rows({Phase.READY: _check, Phase.SUSPENDED: _check}, otherwise=_stay),
    e.DrainAsked: _everywhere(_drain, but={Phase.STARTING: _stay, Phase.DRAINING: _stay}),
    e.StopAsked: _everywhere(_stop),
}

#: Every phase and every event.
TABLE: Mapping[tuple[Phase, type[Any]], Handler] = {
    (phase, event): handler for event, row in _BY_EVENT.items() for phase, handler in row.items()
}
