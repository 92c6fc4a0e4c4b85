"""An exhaustive walk of the state machine: every reachable snapshot, every event, every promise checked on the way.

No test lives here; `test_lifecycle.py` walks the real machine and machines with planted bugs.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from sidecar import lifecycle as lc
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot, Suspension

Step = Callable[[Snapshot, lc.Event, Policy], tuple[Snapshot, tuple[lc.Command, ...]]]

WORKING = {lc.Restore: Phase.RESTORING, lc.Warm: Phase.WARMING, lc.Verify: Phase.VERIFYING}
ENDINGS = (lc.RestoreEnded, lc.WarmEnded, lc.VerifyEnded)
_SAME_CHECKS = {"engine_gone": "failed", "wrong": "degenerate"}
STATES = ("up", "busy", "gone", "unreachable", "starting", "asleep", "stalled", "gpu_lost", "not_an_engine")


@dataclass
class Walked:
    """What a walk found: every reachable snapshot, the edges between them, and the promises that were broken."""

    snapshots: set[Snapshot] = field(default_factory=set)
    edges: dict[Snapshot, set[Snapshot]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    pairs: set[tuple[Phase, type]] = field(default_factory=set)


def alphabet(s: Snapshot) -> Iterator[lc.Event]:
    """Give every event that may come, with values that matter: current and stale work, same and other engine."""
    if s.phase is Phase.STARTING:
        yield from (lc.Started(), lc.Started(engine_runs=True), lc.Started(adoptable="e1", attempt="a", generation="g"))
        yield lc.Started(engine_runs=True, restore="hit", generation="g")
    else:
        other = "b" if s.attempt == "a" else "a"
        for attempt in (s.attempt or "a", other):
            yield lc.AttemptOpened(attempt)
            yield lc.AttemptTerminating(attempt)
            yield lc.StartStuck(attempt, "it hangs.")
            yield from (lc.AttemptStarted(attempt, by) for by in ("sidecar", "launcher"))
            yield from (
                lc.AttemptClosed(attempt, "ended.", counts, restarting)
                for counts, restarting in itertools.product((True, False), repeat=2)
            )
            yield lc.AttemptClosed(attempt, "compiled too long.", counts=False, passing=True)
            if s.fallbacks:
                yield lc.AttemptClosed(attempt, "refuses its arguments.", counts=False, by_itself=True)
    for identity in ("", "e1", "e2"):
        yield lc.EngineObserved("up", identity, "", steady=True)
    for state in STATES[1:]:
        yield lc.EngineObserved(state, s.identity, "", steady=True)
    yield lc.EngineObserved("up", "e1", "", steady=False)
    yield from _endings(s)
    stale = s.work - 1
    yield from (lc.RestoreEnded(stale, "hit", "g"), lc.WarmEnded(stale, "converged"), lc.WarmEnded(stale, "engine_gone"))
    yield from (lc.VerifyEnded(stale, "passed"), lc.VerifyEnded(stale, "wrong"), lc.RetryDue(stale))
    yield from (lc.CheckAsked(), lc.CheckAsked("it repeats."))
    yield from (lc.RewarmAsked(), lc.DrainAsked(), lc.StopAsked(), lc.ChildExited(0), lc.ChildExited(1))


def _endings(s: Snapshot) -> Iterator[lc.Event]:
    """Give every way in which the work in progress may end."""
    work = s.work
    yield from (
        lc.RestoreEnded(work, outcome, generation)
        for outcome, generation in (("hit", "g"), ("kept", ""), ("miss", ""), ("failed", ""), ("late", ""))
    )
    if s.fallbacks:
        yield lc.RestoreEnded(work, "miss", fallback=s.fallback)
        yield lc.RestoreEnded(work, "hit", "g", fallback=len(s.fallbacks), why="an earlier pod was bad.")
    yield from (
        lc.WarmEnded(work, outcome)
        for outcome in ("converged", "exhausted", "failed", "engine_gone", "disabled", "unwarmed")
    )
    yield from (
        lc.VerifyEnded(work, outcome)
        for outcome in ("passed", "skipped", "degenerate", "wrong", "unchecked", "failed", "engine_gone")
    )
    yield lc.VerifyEnded(work, "passed", restart="it had started cold.")
    yield lc.RetryDue(work)


def canonical(s: Snapshot) -> Snapshot:
    """Forget what only counts up, and rename what is interchangeable, so that the walk is finite and short."""
    return replace(
        s,
        work=1,
        died="",
        engine_detail="",
        warm_sentence="",
        verify_sentence="",
        drained_by="",
        attempt="a" if s.attempt else "",
        identity="e1" if s.identity else "",
        restore="hit" if s.restore in ("hit", "kept") else "miss" if s.restore else "",
        warm="exhausted" if s.warm in ("exhausted", "failed", "disabled", "unwarmed", "engine_gone") else s.warm,
        verify=_SAME_CHECKS.get(s.verify, s.verify),
        suspension=Suspension.DEGENERATE if s.suspension is Suspension.WRONG else s.suspension,
        fallback_why="",
        # Whose blame is taken back changes no phase, and every check without an answer may be the one that is too many.
        blamed="",
        broken=2,
        missed=min(s.missed, 1) if s.fallbacks else 0,
    )


def walk(mode: Mode, policy: Policy, step: Step = lc.step, fallbacks: tuple[str, ...] = ()) -> Walked:
    """Visit everything reachable from birth, breadth first, until a promise is broken."""
    found = Walked()
    queue = deque([canonical(Snapshot(mode, fallbacks=fallbacks))])
    while queue and not found.broken:
        before = queue.popleft()
        if before in found.snapshots:
            continue
        found.snapshots.add(before)
        targets = found.edges.setdefault(before, set())
        for event in alphabet(before):
            found.pairs.add((before.phase, type(event)))
            after, commands = step(before, event, policy)
            if complaint := check(before, event, after, commands, policy):
                found.broken.append(f"{complaint}: {before.phase.value} --{event}--> {after.phase.value} {commands}")
            if after is before:
                continue
            target = canonical(after)
            if target not in targets:
                targets.add(target)
                queue.append(target)
    if found.broken:
        return found
    found.broken.extend(unreachable_goals(found))
    return found


def check(before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...], policy: Policy) -> str:
    """Name the promise that this step breaks, or nothing."""
    if after is before and not commands:
        return _loss(before, event, after, commands)
    checks = (
        _stale(before, event, after, commands),
        _ending(before, after, commands),
        _gate(before, event, after, policy),
        _work(before, event, after, commands),
        _cancelling(before, event, after, commands),
        _loss(before, event, after, commands),
        _live_cache(before, event, commands),
        _proof(after, commands),
        _launching(before, event, commands),
        _renewing(before, event, commands),
        _falling_back(before, event, after, commands, policy),
    )
    return next((complaint for complaint in checks if complaint), "")


def _gate(before: Snapshot, event: lc.Event, after: Snapshot, policy: Policy) -> str:
    if lc.gate(after).open != (after.phase is Phase.READY):
        return "the gate is not the phase"
    if after.phase is not Phase.READY or before.phase is Phase.READY:
        return ""
    if not isinstance(event, lc.VerifyEnded) or event.work != before.work or before.phase is not Phase.VERIFYING:
        return "ready without an output check that is its own"
    served = event.outcome in ("degenerate", "wrong", "unchecked") and "serve" in policy.on_golden_failed
    if event.outcome not in ("passed", "skipped") and not served:
        return "ready on bad output against policy"
    if after.warm not in ("converged", "adopted") and policy.on_unwarmed == "hold":
        return "ready unwarmed against policy"
    return (
        ""
        if lc.gate(after).flagged
        == (after.warm not in ("converged", "adopted") or event.outcome != "passed" or after.fallback > 0)
        else "flagged wrongly"
    )


def _work(before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    begun = [command for command in commands if type(command) in WORKING]
    if len(begun) > 1:
        return "two works at once"
    if begun and (
        begun[0].work != after.work or after.work <= before.work or WORKING[type(begun[0])] is not after.phase
    ):
        return "work with a stale number or in the wrong phase"
    entered = after.phase in WORKING.values() and (after.phase is not before.phase or after.work != before.work)
    return "a working phase was entered without work" if entered and not begun else ""


def _cancelling(before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    own_end = isinstance(event, ENDINGS) and event.work == before.work
    left = before.phase in WORKING.values() and (after.phase is not before.phase or after.work != before.work)
    cancelled = any(isinstance(command, lc.Cancel) for command in commands)
    return "work was left running" if left and not own_end and not cancelled else ""


def _stale(before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    stale = isinstance(event, (*ENDINGS, lc.RetryDue)) and event.work != before.work
    return "a stale ending had an effect" if stale and (after != before or commands) else ""


def _ending(before: Snapshot, after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    exits = sum(isinstance(command, lc.Exit) for command in commands)
    if before.phase is Phase.STOPPED:
        return "stopped is not the end" if after.phase is not Phase.STOPPED or commands else ""
    return "exit and stopped don't agree" if exits != (after.phase is Phase.STOPPED) else ""


def _loss(before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    if before.phase is not Phase.READY or not isinstance(event, lc.EngineObserved):
        return ""
    replaced = event.state == "up" and before.identity and event.identity not in ("", before.identity)
    bad = (
        event.state in ("gone", "unreachable", "starting", "not_an_engine", "asleep", "stalled", "gpu_lost") or replaced
    )
    if bad and lc.gate(after).open:
        return "still ready though the engine is gone, asleep, stalled or another"
    if bad and not any(isinstance(command, lc.Unprove) for command in commands):
        return "a lost engine stays proven"
    return "withdrawn for a busy engine" if event.state == "busy" and not lc.gate(after).open else ""


def _live_cache(before: Snapshot, event: lc.Event, commands: tuple[lc.Command, ...]) -> str:
    restoring = [command for command in commands if isinstance(command, lc.Restore)]
    if not restoring:
        return ""
    if before.mode is Mode.BESIDE:
        return "" if isinstance(event, (lc.Started, lc.AttemptOpened)) else "restore beside an engine"
    if not isinstance(event, lc.AttemptOpened):
        return "restore without a launcher that waits"
    if before.cold_next and restoring[0].plan != "cold":
        return "a suspect generation is restored again"
    return ""


def _proof(after: Snapshot, commands: tuple[lc.Command, ...]) -> str:
    proofs = [command for command in commands if isinstance(command, lc.Prove)]
    return "proven without being ready" if proofs and after.phase is not Phase.READY else ""


def _launching(before: Snapshot, event: lc.Event, commands: tuple[lc.Command, ...]) -> str:
    if not any(isinstance(command, lc.Launch) for command in commands):
        return ""
    if before.mode is not Mode.CHILD or not isinstance(event, (lc.Started, lc.ChildExited)):
        return "a second child beside one that may live"
    return "the engine is started again though the end was asked for" if before.stopping else ""


def _renewing(before: Snapshot, event: lc.Event, commands: tuple[lc.Command, ...]) -> str:
    asked = any(isinstance(command, lc.RestartEngine) for command in commands)
    healthy = isinstance(event, lc.VerifyEnded) and event.outcome == "passed"
    if not asked or not (healthy or isinstance(event, lc.StartStuck)):
        return ""
    served = before.served or before.adopting
    return "an engine is restarted for its own good although users' requests may run" if served else ""


def _falling_back(
    before: Snapshot, event: lc.Event, after: Snapshot, commands: tuple[lc.Command, ...], policy: Policy
) -> str:
    # One that the launcher did not wait for was not tried.
    missed = isinstance(event, (lc.AttemptStarted, lc.RestoreEnded)) and after.missed > before.missed
    if (after.tried < before.tried and not missed) or not 0 <= after.fallback <= len(after.fallbacks):
        return "a fallback is tried that was tried before, or that there is not"
    restoring = [command for command in commands if isinstance(command, lc.Restore)]
    if restoring and restoring[0].fallback != after.fallback:
        return "the command that is restored for is not the one that starts"
    known = [command for command in commands if isinstance(command, lc.Remember)]
    if known and not (after.phase is Phase.READY and after.verify == "passed" and known[0].fallback == after.fallback):
        return "a fallback is remembered that was not good"
    # One that can't generate three times in a row is as bad as bad output; `canonical` has it fail twice always.
    bad = ("degenerate", "wrong", "failed")
    asked = isinstance(event, lc.VerifyEnded) and event.work == before.work and event.outcome in bad
    taken = after.fallback > before.fallback and isinstance(event, lc.VerifyEnded)
    if taken and not (asked and "fallback" in policy.on_golden_failed and before.mode is not Mode.BESIDE):
        return "a fallback is taken that nobody asked for"
    restart = any(isinstance(command, lc.RestartEngine) for command in commands)
    return "a fallback is taken without a restart" if taken and not restart else ""


def unreachable_goals(found: Walked) -> Iterator[str]:
    """Name snapshots from which the pod can never become ready, or never stop: a dead end at 3 a.m."""
    for goal in (Phase.READY, Phase.STOPPED):
        reverse: dict[Snapshot, set[Snapshot]] = {}
        for source, targets in found.edges.items():
            for target in targets:
                reverse.setdefault(target, set()).add(source)
        reached = {snapshot for snapshot in found.snapshots if snapshot.phase is goal}
        queue = deque(reached)
        while queue:
            for source in reverse.get(queue.popleft(), set()) - reached:
                reached.add(source)
                queue.append(source)
        for snapshot in found.snapshots - reached:
            if snapshot.phase is not Phase.STOPPED:
                yield f"no way to {goal.value} from {snapshot}"
