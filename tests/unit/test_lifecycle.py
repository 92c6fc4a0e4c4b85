"""The state machine keeps its promises in every reachable state, and the walk that says so can tell when it doesn't."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from sidecar import lifecycle as lc
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot, Suspension
from tests.unit.lifecycle_walk import Step, Walked, walk

POLICIES = (
    Policy(),
    Policy(on_unwarmed="hold", on_golden_failed=("hold",)),
    Policy(on_golden_failed=("retry-cold", "serve")),
)


@functools.cache
def _walked(mode: Mode, policy: Policy) -> Walked:
    return walk(mode, policy)


@pytest.mark.parametrize("policy", POLICIES, ids=("default", "hold", "serve"))
@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_every_reachable_state_keeps_every_promise(mode: Mode, policy: Policy) -> None:
    found = _walked(mode, policy)
    assert found.broken == []
    assert {snapshot.phase for snapshot in found.snapshots} >= set(Phase) - (
        {Phase.AWAITING_LAUNCHER} if mode is Mode.BESIDE else set()
    )


def test_the_table_names_every_phase_and_event() -> None:
    events = set(lc.Event.__args__)
    assert set(lc.TABLE) == {(phase, event) for phase in Phase for event in events}


def test_the_walk_visits_every_cell_of_the_table() -> None:
    visited = set().union(*(_walked(mode, Policy()).pairs for mode in Mode))
    never = {cell for cell in lc.TABLE if cell not in visited}
    # Started outside of starting, and attempts before it, can't happen: the supervisor posts Started first.
    assert all(event is lc.Started or phase is Phase.STARTING for phase, event in never)


def _mutant(change: str) -> Step:
    def believes_stale_endings(s, event, policy):
        if isinstance(event, lc.WarmEnded):
            event = replace(event, work=s.work)
        return lc.step(s, event, policy)

    def skips_the_check(s, event, policy):
        after, commands = lc.step(s, event, policy)
        if after.phase is Phase.VERIFYING and isinstance(event, lc.WarmEnded):
            return replace(after, phase=Phase.READY), ()
        return after, commands

    def ignores_death_after_ready(s, event, policy):
        if s.phase is Phase.READY and isinstance(event, lc.EngineObserved) and event.state == "gone":
            return s, ()
        return lc.step(s, event, policy)

    def ignores_another_engine(s, event, policy):
        if s.phase is Phase.READY and isinstance(event, lc.EngineObserved) and event.state == "up":
            return s, ()
        return lc.step(s, event, policy)

    def takes_load_for_death(s, event, policy):
        if isinstance(event, lc.EngineObserved) and event.state == "busy":
            event = replace(event, state="gone")
        return lc.step(s, event, policy)

    def never_cancels(s, event, policy):
        after, commands = lc.step(s, event, policy)
        return after, tuple(command for command in commands if not isinstance(command, lc.Cancel))

    def forgets_that_the_next_start_is_cold(s, event, policy):
        after, commands = lc.step(s, event, policy)
        return after, tuple(replace(c, plan="fresh") if isinstance(c, lc.Restore) else c for c in commands)

    def restores_when_an_engine_dies(s, event, policy):
        after, commands = lc.step(s, event, policy)
        if s.phase is Phase.READY and after.phase is Phase.AWAITING_ENGINE:
            after = replace(after, phase=Phase.RESTORING, work=s.work + 1)
            return after, (*commands, lc.Restore(after.work, "a", "fresh"))
        return after, commands

    def goes_on_after_the_end(s, event, policy):
        if s.phase is Phase.STOPPED and isinstance(event, lc.EngineObserved):
            return replace(s, phase=Phase.READY), ()
        return lc.step(s, event, policy)

    def never_leaves_suspension(s, event, policy):
        if s.phase is Phase.SUSPENDED and not isinstance(event, (lc.StopAsked, lc.ChildExited)):
            return s, ()
        return lc.step(s, event, policy)

    def keeps_a_lost_engine_proven(s, event, policy):
        after, commands = lc.step(s, event, policy)
        return after, tuple(command for command in commands if not isinstance(command, lc.Unprove))

    def renews_what_has_served(s, event, policy):
        asked = isinstance(event, lc.VerifyEnded) and event.restart and event.work == s.work
        return lc.step(replace(s, served=False) if asked else s, event, policy)

    return locals()[change]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("believes_stale_endings", "stale"),
        ("skips_the_check", "ready without an output check"),
        ("ignores_death_after_ready", "still ready though the engine is gone"),
        ("ignores_another_engine", "another"),
        ("takes_load_for_death", "withdrawn for a busy engine"),
        ("never_cancels", "work was left running"),
        ("forgets_that_the_next_start_is_cold", "suspect generation"),
        ("restores_when_an_engine_dies", "restore without a launcher"),
        ("goes_on_after_the_end", "stopped is not the end"),
        ("never_leaves_suspension", "no way to ready"),
        ("keeps_a_lost_engine_proven", "stays proven"),
        ("renews_what_has_served", "users' requests"),
    ],
)
def test_the_walk_catches_a_planted_bug(change: str, complaint: str) -> None:
    broken = walk(Mode.LAUNCHER, Policy(), _mutant(change)).broken
    assert any(complaint in line for line in broken), broken[:3]


def _run(snapshot: Snapshot, *events: lc.Event, policy: Policy = POLICIES[0]) -> tuple[Snapshot, list[lc.Command]]:
    commands: list[lc.Command] = []
    for event in events:
        snapshot, more = lc.step(snapshot, event, policy)
        commands.extend(more)
    return snapshot, commands


def _ready(mode: Mode = Mode.LAUNCHER) -> Snapshot:
    snapshot, _ = _run(
        Snapshot(mode),
        lc.Started(),
        lc.AttemptOpened("a"),
        lc.RestoreEnded(1, "hit", "g"),
        lc.EngineObserved("up", "e1"),
        lc.WarmEnded(2, "converged"),
        lc.VerifyEnded(3, "passed"),
    )
    assert snapshot.phase is Phase.READY
    return snapshot


def _dead_twice(outcome: str, generation: str) -> list[lc.Command]:
    """Let the engine die before it is ready on a generation, and again on what a second restore found; give the commands."""
    _, commands = _run(
        Snapshot(Mode.LAUNCHER),
        lc.Started(),
        lc.AttemptOpened("a"),
        lc.RestoreEnded(1, "hit", "g"),
        lc.AttemptClosed("a", "exit 1.", counts=True),
        lc.AttemptOpened("b"),
        lc.RestoreEnded(2, outcome, generation),
        lc.AttemptClosed("b", "exit 1.", counts=True),
        lc.AttemptOpened("c"),
    )
    return commands


def test_two_deaths_before_ready_on_one_generation_quarantine_it_and_the_next_start_is_cold() -> None:
    commands = _dead_twice("hit", "g")
    assert [c.generation for c in commands if isinstance(c, lc.Quarantine)] == ["g"]
    assert [c.plan for c in commands if isinstance(c, lc.Restore)] == ["fresh", "fresh", "cold"]


def test_a_death_on_files_that_came_with_no_generation_is_not_laid_to_the_one_before() -> None:
    commands = _dead_twice("kept", "")
    assert [c.generation for c in commands if isinstance(c, lc.RecordBoot)] == ["g"]
    assert not [c for c in commands if isinstance(c, lc.Quarantine)]


def test_deaths_with_another_known_cause_never_quarantine() -> None:
    snapshot = Snapshot(Mode.LAUNCHER)
    snapshot, commands = _run(snapshot, lc.Started())
    for attempt in "abcd":
        snapshot, more = _run(
            snapshot,
            lc.AttemptOpened(attempt),
            lc.RestoreEnded(snapshot.work + 1, "hit", "g"),
            lc.AttemptClosed(attempt, "out of memory.", counts=False),
        )
        commands += more
    assert not any(isinstance(command, lc.Quarantine) for command in commands)


def test_an_engine_that_dies_after_ready_does_not_count_against_its_generation() -> None:
    snapshot = _ready()
    for attempt, follower in (("a", "b"), ("b", "c"), ("c", "d")):
        snapshot, commands = _run(
            snapshot,
            lc.EngineObserved("gone"),
            lc.AttemptClosed(attempt, "crash.", counts=True),
            lc.AttemptOpened(follower),
        )
        assert not any(isinstance(command, lc.Quarantine) for command in commands)
        assert [c.plan for c in commands if isinstance(c, lc.Restore)] == ["fresh"]
        snapshot, _ = _run(snapshot, lc.RestoreEnded(snapshot.work, "hit", "g"), lc.EngineObserved("up", follower))
        snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
        snapshot, _ = _run(snapshot, lc.VerifyEnded(snapshot.work, "passed"))
        assert snapshot.phase is Phase.READY


def test_the_pods_own_cache_is_kept_after_an_end_that_was_no_crash() -> None:
    _, commands = _run(
        _ready(), lc.AttemptTerminating("a"), lc.AttemptClosed("a", "ended.", counts=False), lc.AttemptOpened("b")
    )
    assert [c.plan for c in commands if isinstance(c, lc.Restore)] == ["keep"]


def test_degenerate_output_restarts_the_engine_cold_once_and_then_holds() -> None:
    verifying, _ = _run(
        Snapshot(Mode.LAUNCHER),
        lc.Started(),
        lc.AttemptOpened("a"),
        lc.RestoreEnded(1, "hit", "g"),
        lc.EngineObserved("up", "e1"),
        lc.WarmEnded(2, "converged"),
    )
    retried, commands = _run(verifying, lc.VerifyEnded(3, "degenerate", "all one token."))
    assert [type(command) for command in commands] == [lc.Quarantine, lc.RestartEngine]
    again, commands = _run(
        retried,
        lc.EngineObserved("up", "e1", steady=True),
        lc.AttemptClosed("a", "restart.", counts=True, restarting=True),
        lc.AttemptOpened("b"),
    )
    assert [c.plan for c in commands if isinstance(c, lc.Restore)] == ["cold"]
    held, _ = _run(again, lc.RestoreEnded(again.work, "miss"), lc.EngineObserved("up", "e2"))
    held, _ = _run(held, lc.WarmEnded(held.work, "converged"))
    held, commands = _run(held, lc.VerifyEnded(held.work, "degenerate", "all one token."))
    # As bad with empty caches: the generation had no part in it.
    acquitted = lc.Acquit("g", "with empty caches its output was degenerate too: all one token.")
    assert (held.suspension, commands) == (Suspension.DEGENERATE, [acquitted])


def test_a_launcher_that_started_first_makes_the_restore_late() -> None:
    snapshot, commands = _run(
        Snapshot(Mode.LAUNCHER), lc.Started(), lc.AttemptOpened("a"), lc.AttemptStarted("a", "launcher")
    )
    assert (snapshot.phase, snapshot.restore, commands[-1]) == (Phase.AWAITING_ENGINE, "late", lc.Cancel())


def test_a_proven_engine_is_adopted_without_a_restore() -> None:
    snapshot, commands = _run(
        Snapshot(Mode.LAUNCHER), lc.Started(adoptable="e1", attempt="a", generation="g"), lc.VerifyEnded(1, "passed")
    )
    assert snapshot.phase is Phase.READY
    assert [type(command) for command in commands] == [lc.Verify, lc.Prove, lc.Publish]


def test_a_proven_engine_whose_canary_fails_is_warmed_again() -> None:
    snapshot, commands = _run(Snapshot(Mode.LAUNCHER), lc.Started(adoptable="e1"), lc.VerifyEnded(1, "failed"))
    assert snapshot.phase is Phase.WARMING
    assert lc.Unprove() in commands


def test_a_child_that_ends_gives_the_daemon_its_exit_code() -> None:
    _, commands = _run(_ready(Mode.CHILD), lc.ChildExited(7))
    assert commands[-1] == lc.Exit(7)


def _dies(snapshot: Snapshot, attempt: str, restored: str, counts: bool = True) -> tuple[Snapshot, list[lc.Command]]:
    return _run(
        snapshot,
        lc.AttemptOpened(attempt),
        lc.RestoreEnded(snapshot.work + 1, "hit" if restored else "disabled", restored),
        lc.AttemptClosed(attempt, "exit 1.", counts),
        lc.ChildExited(1),
    )


def test_a_child_that_dies_twice_on_restored_caches_is_started_cold_and_then_gives_its_exit_code() -> None:
    snapshot, _ = _run(Snapshot(Mode.CHILD), lc.Started())
    snapshot, first = _dies(snapshot, "a", "g")
    snapshot, second = _dies(snapshot, "b", "g")
    snapshot, third = _dies(snapshot, "c", "")
    assert lc.Launch() in first
    assert lc.Launch() in second
    assert [c.generation for c in second if isinstance(c, lc.Quarantine)] == ["g"]
    assert [c.plan for c in third if isinstance(c, lc.Restore)] == ["cold"]
    assert third[-1] == lc.Exit(1)


def test_a_child_that_ends_when_it_is_asked_to_is_not_told_as_one_that_died_on_its_caches() -> None:
    snapshot, _ = _run(_ready(Mode.CHILD), lc.StopAsked(), lc.AttemptClosed("a", "It was asked to end.", counts=False))
    assert lc.gate(snapshot).sentence == "The engine ended, as it was asked to: It was asked to end."


def test_a_child_whose_death_has_another_known_cause_is_not_started_again() -> None:
    snapshot, _ = _run(Snapshot(Mode.CHILD), lc.Started())
    _, commands = _dies(snapshot, "a", "g", counts=False)
    assert commands[-1] == lc.Exit(1)


def test_a_child_that_dies_after_it_was_ready_is_not_started_again() -> None:
    _, commands = _run(_ready(Mode.CHILD), lc.AttemptClosed("a", "crash.", counts=True), lc.ChildExited(1))
    assert commands[-1] == lc.Exit(1)


def test_a_child_that_dies_while_the_end_is_asked_for_is_not_started_again() -> None:
    snapshot, _ = _run(Snapshot(Mode.CHILD), lc.Started(), lc.AttemptOpened("a"), lc.RestoreEnded(1, "hit", "g"))
    _, commands = _run(snapshot, lc.StopAsked(), lc.AttemptClosed("a", "exit 1.", counts=True), lc.ChildExited(1))
    assert commands[-1] == lc.Exit(1)


@pytest.mark.parametrize("code", [0, 130, 143])
def test_a_stop_that_was_asked_for_ends_with_0(code: int) -> None:
    _, commands = _run(_ready(Mode.CHILD), lc.StopAsked(), lc.ChildExited(code))
    assert commands[-1] == lc.Exit(0)


def test_an_impossible_event_is_told_with_the_snapshot() -> None:
    with pytest.raises(lc.ImpossibleTransition, match=r"Started.*ready"):
        lc.step(_ready(), lc.Started(), Policy())
