"""Restarts that give something back: once after a cold start before traffic comes, and on what a stalled compile left."""

from __future__ import annotations

import pytest

from sidecar import lifecycle as lc
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot

WHY = "it had started cold."


def _run(snapshot: Snapshot, *events: lc.Event) -> tuple[Snapshot, list[lc.Command]]:
    commands: list[lc.Command] = []
    for event in events:
        snapshot, more = lc.step(snapshot, event, Policy())
        commands += more
    return snapshot, commands


def _verifying(mode: Mode = Mode.LAUNCHER) -> Snapshot:
    opened = () if mode is Mode.BESIDE else (lc.AttemptOpened("a"),)
    return _run(
        Snapshot(mode),
        lc.Started(),
        *opened,
        lc.RestoreEnded(1, "miss"),
        lc.EngineObserved("up", "e1"),
        lc.WarmEnded(2, "converged"),
    )[0]


@pytest.mark.parametrize("mode", [Mode.LAUNCHER, Mode.CHILD])
def test_a_cold_engine_is_restarted_before_it_is_ready_and_keeps_its_cache(mode: Mode) -> None:
    restarting, commands = _run(_verifying(mode), lc.VerifyEnded(3, "passed", restart=WHY))
    assert commands == [lc.RestartEngine("a", WHY)]
    assert restarting.phase is Phase.AWAITING_LAUNCHER
    again, commands = _run(
        restarting,
        lc.EngineObserved("up", "e1", steady=True),
        lc.AttemptClosed("a", "restart.", counts=False, restarting=True),
        lc.AttemptOpened("b"),
    )
    assert again.phase is Phase.RESTORING
    assert [command.plan for command in commands if isinstance(command, lc.Restore)] == ["keep"]


def test_an_engine_that_has_served_is_not_restarted_after_a_rewarm() -> None:
    rewarmed, _ = _run(_verifying(), lc.VerifyEnded(3, "passed"), lc.RewarmAsked(), lc.WarmEnded(4, "converged"))
    ready, commands = _run(rewarmed, lc.VerifyEnded(5, "passed", restart=WHY))
    assert ready.phase is Phase.READY
    assert not any(isinstance(command, lc.RestartEngine) for command in commands)


def test_without_a_launcher_nothing_is_restarted() -> None:
    ready, commands = _run(_verifying(Mode.BESIDE), lc.VerifyEnded(3, "passed", restart=WHY))
    assert ready.phase is Phase.READY
    assert not any(isinstance(command, lc.RestartEngine) for command in commands)


def test_bad_output_is_dealt_with_before_any_memory() -> None:
    held, commands = _run(_verifying(), lc.VerifyEnded(3, "degenerate", restart=WHY))
    assert held.phase is Phase.SUSPENDED
    assert commands == []


def _stalled(mode: Mode, generation: str) -> tuple[Snapshot, list[lc.Command]]:
    warming, _ = _run(
        Snapshot(mode),
        lc.Started(),
        lc.AttemptOpened("a"),
        lc.RestoreEnded(1, "hit" if generation else "miss", generation),
        lc.EngineObserved("up", "e1"),
    )
    return _run(warming, lc.AttemptClosed("a", "compile stall.", counts=False, passing=True))


@pytest.mark.parametrize("generation", ["", "g"])
def test_a_compile_stall_keeps_the_live_cache_and_quarantines_nothing(generation: str) -> None:
    snapshot, commands = _stalled(Mode.LAUNCHER, generation)
    assert not any(isinstance(command, lc.Quarantine | lc.RecordBoot) for command in commands)
    for attempt in ("b", "c", "d"):
        snapshot, commands = _run(snapshot, lc.AttemptOpened(attempt))
        assert [command.plan for command in commands if isinstance(command, lc.Restore)] == ["keep"]
        snapshot, commands = _run(
            snapshot,
            lc.RestoreEnded(snapshot.work, "kept"),
            lc.EngineObserved("up", attempt),
            lc.AttemptClosed(attempt, "compile stall.", counts=False, passing=True),
        )
        assert not any(isinstance(command, lc.Quarantine | lc.RecordBoot) for command in commands)


def test_a_child_that_ended_in_a_compile_stall_is_started_again() -> None:
    stalled, _ = _stalled(Mode.CHILD, "")
    assert "started once more" in lc.gate(stalled).sentence
    _, commands = _run(stalled, lc.ChildExited(1))
    assert lc.Launch() in commands


def test_a_child_that_stalled_while_serving_ends_with_its_code() -> None:
    ready, _ = _run(_verifying(Mode.CHILD), lc.VerifyEnded(3, "passed"))
    _, commands = _run(ready, lc.AttemptClosed("a", "compile stall.", counts=False, passing=True), lc.ChildExited(1))
    assert lc.Exit(1) in commands
