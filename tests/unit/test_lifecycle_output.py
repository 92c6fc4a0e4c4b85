"""What follows bad output: policies in order, fallbacks one after the other, and when a pod's word on them is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar import lifecycle as lc
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot, Suspension, output
from tests.unit.lifecycle_walk import walk

ALL = Policy(on_golden_failed=("retry-cold", "fallback", "hold"))
TWO = ("--a 1", "--b 2")


def _run(snapshot: Snapshot, *events: lc.Event, policy: Policy = ALL) -> tuple[Snapshot, list[lc.Command]]:
    commands: list[lc.Command] = []
    for event in events:
        snapshot, more = lc.step(snapshot, event, policy)
        commands += more
    return snapshot, commands


def _verifying(
    snapshot: Snapshot,
    attempt: str = "a",
    restore: str = "miss",
    generation: str = "",
    fallback: int = 0,
    why: str = "",
) -> tuple[Snapshot, list[lc.Command]]:
    """Let an attempt come as far as the check of its output."""
    closing = (lc.AttemptClosed(snapshot.attempt, "restart.", False, restarting=True),) if snapshot.attempt else ()
    starting = (lc.Started(),) if snapshot.phase is Phase.STARTING else ()
    snapshot, first = _run(snapshot, *starting, *closing, lc.AttemptOpened(attempt))
    snapshot, second = _run(
        snapshot,
        lc.RestoreEnded(snapshot.work, restore, generation, fallback=fallback, why=why),
        lc.EngineObserved("up", f"e{attempt}"),
    )
    snapshot, third = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
    assert snapshot.phase is Phase.VERIFYING
    return snapshot, first + second + third


def _checked(snapshot: Snapshot, outcome: str, policy: Policy = ALL) -> tuple[Snapshot, list[lc.Command]]:
    return _run(snapshot, lc.VerifyEnded(snapshot.work, outcome, f"it was {outcome}."), policy=policy)


def _new(mode: Mode = Mode.LAUNCHER) -> Snapshot:
    return Snapshot(mode, fallbacks=TWO)


@pytest.mark.parametrize("mode", [Mode.LAUNCHER, Mode.CHILD])
@pytest.mark.slow
def test_every_reachable_state_with_a_fallback_keeps_every_promise(mode: Mode) -> None:
    assert walk(mode, ALL, fallbacks=("--a 1",)).broken == []


@pytest.mark.parametrize("outcome", ["degenerate", "wrong"])
def test_policies_are_followed_in_order_cold_then_each_fallback_then_hold(outcome: str) -> None:
    snapshot, _ = _verifying(_new(), restore="hit", generation="g")
    snapshot, commands = _checked(snapshot, outcome)
    assert [type(command) for command in commands] == [lc.Quarantine, lc.RestartEngine]
    snapshot, commands = _verifying(snapshot, "b", "disabled")
    assert [command for command in commands if isinstance(command, lc.Restore)] == [lc.Restore(4, "b", "cold", 0)]
    for number in (1, 2):
        snapshot, commands = _checked(snapshot, outcome)
        assert [type(command) for command in commands] == [lc.Acquit] * (number == 1) + [lc.RestartEngine]
        assert TWO[number - 1] in lc.gate(snapshot).sentence
        snapshot, commands = _verifying(snapshot, f"c{number}", fallback=number)
        assert [c.fallback for c in commands if isinstance(c, lc.Restore)] == [number]
    snapshot, commands = _checked(snapshot, outcome)
    assert (snapshot.phase, commands) == (Phase.SUSPENDED, [])
    assert snapshot.suspension is (Suspension.WRONG if outcome == "wrong" else Suspension.DEGENERATE)
    assert "None of the 2 fallbacks was good either" in lc.gate(snapshot).sentence


def _fallen_back() -> tuple[Snapshot, list[lc.Command]]:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    return _checked(_verifying(snapshot, "b", fallback=1)[0], "passed")


def test_a_fallback_that_is_good_makes_the_pod_ready_flagged_proven_and_remembered() -> None:
    snapshot, commands = _fallen_back()
    gate = lc.gate(snapshot)
    assert (gate.open, gate.flagged, snapshot.unproven) == (True, True, False)
    assert lc.Remember(1, "it was wrong.") in commands
    assert lc.Prove("eb") in commands
    assert gate.sentence.startswith(
        "The engine runs with fallback 1 of 2, `--a 1`, and not as it was asked to. Without it: it was"
    )


@pytest.mark.parametrize(("remembered", "following"), [(1, 2), (2, 0)])
def test_a_remembered_fallback_with_which_the_engine_never_gets_ready_is_given_up_in_the_end(
    remembered: int, following: int
) -> None:
    snapshot, _ = _run(_new(), lc.Started())
    for number in range(output.DEATHS_OF_TRUSTED):
        snapshot, commands = _run(snapshot, lc.AttemptOpened(f"a{number}"))
        [asked] = [command for command in commands if isinstance(command, lc.Restore)]
        assert (asked.fallback, asked.tried) == ((remembered, remembered) if number else (0, 0))
        snapshot, _ = _run(
            snapshot,
            lc.RestoreEnded(snapshot.work, "disabled", "", fallback=remembered, why="it was wrong there."),
            lc.AttemptClosed(f"a{number}", "crash.", counts=True, by_itself=True),
        )
    snapshot, commands = _run(snapshot, lc.AttemptOpened("b"))
    [asked] = [command for command in commands if isinstance(command, lc.Restore)]
    assert (asked.fallback, asked.tried) == (following, 2)
    assert not snapshot.trusted


def test_an_unproven_fallback_is_not_remembered() -> None:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    _, commands = _checked(_verifying(snapshot, "b", fallback=1)[0], "skipped")
    assert not any(isinstance(command, lc.Remember | lc.Prove) for command in commands)


def test_a_fallback_that_an_earlier_pod_came_to_is_taken_at_once_and_not_written_again() -> None:
    snapshot, _ = _verifying(_new(), fallback=2, why="it was wrong there.")
    ready, commands = _checked(snapshot, "passed")
    assert not any(isinstance(command, lc.Remember) for command in commands)
    assert "fallback 2 of 2" in lc.gate(ready).sentence
    assert "it was wrong there." in lc.gate(ready).sentence
    # The engine of the same pod starts with it again.
    _, commands = _run(ready, lc.AttemptClosed("a", "crash.", counts=True, by_itself=True), lc.AttemptOpened("b"))
    assert [c.fallback for c in commands if isinstance(c, lc.Restore)] == [2]


@pytest.mark.parametrize("mode", [Mode.LAUNCHER, Mode.CHILD])
def test_a_fallback_with_which_the_engine_dies_twice_is_given_up_for_the_next_and_at_last_for_none(mode: Mode) -> None:
    snapshot, _ = _checked(_verifying(_new(mode))[0], "wrong")
    started = []
    snapshot, _ = _run(snapshot, lc.AttemptClosed("a", "restart.", False, restarting=True))
    for attempt in ("b", "c", "d", "e", "f"):
        snapshot, commands = _run(snapshot, lc.AttemptOpened(attempt))
        number = next(command.fallback for command in commands if isinstance(command, lc.Restore))
        started.append(number)
        closed = lc.AttemptClosed(attempt, "refuses its arguments.", counts=False, by_itself=True)
        snapshot, _ = _run(snapshot, lc.RestoreEnded(snapshot.work, "miss", fallback=number), closed)
        if mode is Mode.CHILD:
            snapshot, commands = _run(snapshot, lc.ChildExited(2))
            assert any(isinstance(command, lc.Launch) for command in commands) == (number > 0)
        if snapshot.phase is Phase.STOPPED:
            break
    assert started == [1, 1, 2, 2, 0]


def test_a_container_that_is_killed_says_nothing_against_a_fallback() -> None:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    snapshot, _ = _run(snapshot, lc.AttemptClosed("a", "restart.", False, restarting=True))
    for attempt in ("b", "c", "d"):
        snapshot, commands = _run(snapshot, lc.AttemptOpened(attempt))
        assert [c.fallback for c in commands if isinstance(c, lc.Restore)] == [1]
        killed = lc.AttemptClosed(attempt, "killed.", counts=False)
        snapshot, _ = _run(snapshot, lc.RestoreEnded(snapshot.work, "miss", fallback=1), killed)


def test_a_launcher_that_went_on_by_itself_runs_the_command_as_it_was_asked_for() -> None:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    snapshot, _ = _run(
        snapshot,
        lc.AttemptClosed("a", "restart.", False, restarting=True),
        lc.AttemptOpened("b"),
        lc.AttemptStarted("b", "launcher"),
    )
    assert (snapshot.fallback, snapshot.restore) == (0, "late")


def test_without_a_launcher_bad_output_is_held_with_what_to_do_by_hand() -> None:
    snapshot, _ = _run(_new(Mode.BESIDE), lc.Started(engine_runs=True), lc.EngineObserved("up", "e1"))
    snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
    held, commands = _checked(snapshot, "wrong")
    assert (held.suspension, commands) == (Suspension.WRONG, [])
    assert "change it by hand (next to try: `--a 1`)" in lc.gate(held).sentence


def test_output_that_is_held_on_a_restored_generation_says_how_the_next_pod_comes_to_do_without_it() -> None:
    snapshot, _ = _run(_new(Mode.BESIDE), lc.Started())
    snapshot, _ = _run(
        snapshot, lc.RestoreEnded(snapshot.work, "hit", "00000003"), lc.EngineObserved("up", "e1")
    )  # fmt: skip
    snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
    held, _ = _checked(snapshot, "wrong")
    assert "restores generation 00000003 as well, unless" in lc.gate(held).sentence
    assert "`warmup-sidecar store quarantine`" in lc.gate(held).sentence
    cold, _ = _checked(replace(snapshot, restore="miss", generation=""), "wrong")
    assert "store quarantine" not in lc.gate(cold).sentence


def test_a_remembered_fallback_that_is_bad_and_the_last_says_how_it_is_lifted() -> None:
    held, commands = _checked(_verifying(_new(), fallback=2, why="it was wrong there.")[0], "wrong")
    assert (held.phase, commands) == (Phase.SUSPENDED, [])
    assert "`warmup-sidecar golden lift`" in lc.gate(held).sentence
    untried, _ = _checked(replace(_verifying(_new())[0], tried=2, fallback=2), "wrong")
    assert "golden lift" not in lc.gate(untried).sentence


@pytest.mark.parametrize(
    ("words", "phase"), [(("serve",), Phase.READY), (("retry-cold", "fallback", "hold"), Phase.SUSPENDED)]
)
def test_output_that_cant_be_compared_restarts_nothing_and_policy_decides(words: tuple[str, ...], phase: Phase) -> None:
    policy = Policy(on_golden_failed=words)
    after, commands = _checked(_verifying(_new(), restore="hit", generation="g")[0], "unchecked", policy)
    assert after.phase is phase
    assert not any(isinstance(command, lc.RestartEngine | lc.Quarantine) for command in commands)
    if phase is Phase.SUSPENDED:
        again, commands = _run(after, lc.RetryDue(after.work), policy=policy)
        assert commands == [lc.Verify(again.work)]
        assert _checked(again, "passed", policy)[0].unproven is False
    else:
        assert after.unproven


def test_a_bad_sample_withdraws_traffic_and_checks_everything() -> None:
    ready, _ = _checked(_verifying(_new())[0], "passed")
    checking, commands = _run(ready, lc.CheckAsked("it repeats."))
    assert commands == [lc.Cancel(), lc.Unprove(), lc.Verify(checking.work)]
    assert (lc.gate(checking).open, checking.suspension) == (False, Suspension.DEGENERATE)
    assert "it repeats." in lc.gate(checking).sentence
    again, _ = _checked(checking, "passed")
    assert (again.phase, again.suspension) == (Phase.READY, None)


@pytest.mark.parametrize("outcome", ["degenerate", "wrong"])
@pytest.mark.parametrize("by", ["sample", "wake-up"])
def test_bad_output_after_serving_blames_no_generation_and_no_command_before_a_restart_shows_it(
    outcome: str, by: str
) -> None:
    ready, _ = _checked(_verifying(_new(), restore="hit", generation="g")[0], "passed")
    if by == "sample":
        checking, _ = _run(ready, lc.CheckAsked("it repeats."))
    else:
        awake, _ = _run(ready, lc.EngineObserved("asleep"), lc.EngineObserved("up", "ea"))
        checking, _ = _run(awake, lc.WarmEnded(awake.work, "converged"))
    fallen, commands = _checked(checking, outcome)
    assert [type(command) for command in commands] == [lc.RestartEngine]
    assert (fallen.fallback, fallen.cold_next) == (0, False)
    assert "restarted as it was" in lc.gate(fallen).sentence
    # Good again: nothing was to blame but the process.
    restarted, commands = _verifying(fallen, "b", restore="kept")
    assert [command.plan for command in commands if isinstance(command, lc.Restore)] == ["keep"]
    good, commands = _checked(restarted, "passed")
    assert good.phase is Phase.READY
    assert not any(isinstance(command, lc.Remember | lc.Quarantine) for command in commands)
    # As bad: what lies in this pod's live cache is suspect, not what the store has.
    bad, commands = _checked(restarted, outcome)
    assert [type(command) for command in commands] == [lc.RestartEngine]
    assert bad.cold_next
    cold, _ = _verifying(bad, "c", restore="disabled")
    after, commands = _checked(cold, outcome)
    assert [type(command) for command in commands] == [lc.RestartEngine]
    assert after.fallback == 1


def test_an_engine_that_served_is_held_and_not_restarted_where_policy_knows_no_restart() -> None:
    hold = Policy(on_golden_failed=("hold",))
    ready, _ = _checked(_verifying(_new())[0], "passed", hold)
    checking, _ = _run(ready, lc.CheckAsked("it repeats."), policy=hold)
    held, commands = _checked(checking, "degenerate", hold)
    assert (held.phase, commands) == (Phase.SUSPENDED, [])


def _with_impossible(*numbers: int) -> Snapshot:
    snapshot, _ = _verifying(_new())
    return replace(snapshot, impossible=frozenset(numbers))


def test_a_fallback_that_cant_be_applied_costs_no_restart() -> None:
    after, commands = _checked(_with_impossible(1), "wrong")
    assert (after.fallback, [type(command) for command in commands]) == (2, [lc.RestartEngine])
    held, commands = _checked(_with_impossible(1, 2), "wrong")
    assert (held.phase, commands) == (Phase.SUSPENDED, [])
    assert "None of the 2 fallbacks is left; 2 can't be applied to this command" in lc.gate(held).sentence


def test_what_is_impossible_is_learnt_with_each_start() -> None:
    snapshot, _ = _run(_new(), lc.Started(), lc.AttemptOpened("a", frozenset({1})))
    assert snapshot.next_fallback == 2
    snapshot, _ = _run(snapshot, lc.AttemptClosed("a", "ended.", False), lc.AttemptOpened("b"))
    assert snapshot.next_fallback == 1


@pytest.mark.parametrize("outcome", ["late", "failed", "overtaken"])
def test_a_fallback_that_the_launcher_did_not_wait_for_is_tried_again_but_not_for_ever(outcome: str) -> None:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    started = []
    for attempt in ("b", "c", "d", "e"):
        closed = lc.AttemptClosed(snapshot.attempt, "restart.", False, restarting=True)
        snapshot, commands = _run(snapshot, closed, lc.AttemptOpened(attempt))
        started += [command.fallback for command in commands if isinstance(command, lc.Restore)]
        if outcome == "overtaken":
            snapshot, _ = _run(snapshot, lc.AttemptStarted(attempt, "launcher"))
        else:
            snapshot, _ = _run(snapshot, lc.RestoreEnded(snapshot.work, outcome))
        snapshot, _ = _run(snapshot, lc.EngineObserved("up", f"e{attempt}"))
        snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
        snapshot, commands = _checked(snapshot, "wrong")
        if snapshot.phase is Phase.SUSPENDED:
            break
    assert started == [1, 1, 1, 2]


def test_a_fallback_is_remembered_however_far_warm_up_came() -> None:
    snapshot, _ = _checked(_verifying(_new())[0], "wrong")
    snapshot, _ = _verifying(snapshot, "b", fallback=1)
    _, commands = _checked(replace(snapshot, warm="exhausted"), "passed")
    assert lc.Remember(1, "it was wrong.") in commands


def test_an_engine_that_gives_no_answer_again_and_again_goes_through_the_policies_and_is_never_served() -> None:
    policy = Policy(on_golden_failed=("retry-cold", "fallback", "serve"))
    snapshot, _ = _verifying(_new(), restore="hit", generation="g")
    for _ in range(2):
        snapshot, commands = _checked(snapshot, "failed", policy)
        assert (snapshot.suspension, [type(each) for each in commands]) == (Suspension.BROKEN, [lc.RetryLater])
        snapshot, _ = _run(snapshot, lc.RetryDue(snapshot.work))
        snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))
    snapshot, commands = _checked(snapshot, "failed", policy)
    assert [type(each) for each in commands] == [lc.Quarantine, lc.RestartEngine]
    for attempt, number in (("b", 1), ("c", 2), ("d", 0)):
        snapshot, _ = _verifying(snapshot, attempt, fallback=snapshot.fallback)
        snapshot, commands = _checked(replace(snapshot, broken=2), "failed", policy)
        assert (snapshot.fallback if number else 0) == number
    assert (snapshot.phase, snapshot.suspension) == (Phase.SUSPENDED, Suspension.BROKEN)
    assert [type(each) for each in commands] == [lc.RetryLater]


def test_checks_without_an_answer_from_an_engine_that_went_to_sleep_are_not_held_against_it() -> None:
    snapshot, _ = _verifying(_new(), restore="hit", generation="g")
    for _ in range(4):
        snapshot, commands = _checked(snapshot, "failed")
        assert [type(each) for each in commands] == [lc.RetryLater]
        snapshot, _ = _run(snapshot, lc.EngineObserved("asleep", "ea"), lc.EngineObserved("up", "ea"))
        snapshot, _ = _run(snapshot, lc.WarmEnded(snapshot.work, "converged"))


def test_kernels_of_an_engine_with_bad_output_are_not_published() -> None:
    serve = Policy(on_golden_failed=("serve",))
    for outcome, published in (("wrong", False), ("degenerate", False), ("unchecked", True), ("passed", True)):
        ready, commands = _checked(_verifying(_new())[0], outcome, serve)
        assert ready.phase is Phase.READY
        assert (lc.Publish() in commands) is published


def test_a_check_on_demand_is_not_sent_to_an_engine_that_sleeps() -> None:
    ready, _ = _checked(_verifying(_new())[0], "passed")
    asleep, _ = _run(ready, lc.EngineObserved("asleep"))
    assert _run(asleep, lc.CheckAsked()) == (asleep, [])
    awake, commands = _run(asleep, lc.EngineObserved("up", "ea"))
    assert commands[-1] == lc.Warm(awake.work)
    checking, commands = _run(awake, lc.WarmEnded(awake.work, "converged"))
    assert commands == [lc.Verify(checking.work)]


def test_an_adopted_engine_keeps_the_fallback_that_it_runs_with() -> None:
    adopted, _ = _run(_new(), lc.Started(adoptable="e1", attempt="a", fallback=1), lc.VerifyEnded(1, "passed"))
    assert (adopted.phase, adopted.fallback, adopted.flagged) == (Phase.READY, 1, True)
