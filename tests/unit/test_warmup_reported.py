"""What other pods report of deadly bursts: who is believed, for how long, and for which plans."""

from __future__ import annotations

from typing import Any

from sidecar.warmup import reported
from sidecar.warmup.reported import OF_MORE_S, OF_ONE_S, Reported, believed

STEP = "prefill/8192"
PROBE = "search/1 at once, up to 300 of 302 tokens"
NOW = 2_000_000_000.0


def _report(boot: str, *names: str, ago: float = 60.0, plan: str = "p") -> dict[str, Any]:
    return {**reported.report(names, plan, NOW - ago), "boot": boot}


def _names(*records: dict[str, Any], plan: str = "p") -> list[str]:
    return [each.name for each in believed(records, plan, "mine", NOW)]


def test_a_burst_that_killed_an_engine_of_another_pod_lately_is_left_out() -> None:
    assert believed([_report("a", STEP)], "p", "mine", NOW) == (Reported(STEP, 1),)


def test_one_pods_word_is_tried_again_after_its_time() -> None:
    assert _names(_report("a", STEP, ago=OF_ONE_S + 1)) == []


def test_two_pods_word_is_believed_for_longer() -> None:
    old = OF_MORE_S - 1
    assert _names(_report("a", STEP, ago=old), _report("b", STEP, ago=old)) == [STEP]
    assert _names(_report("a", STEP, ago=OF_MORE_S + 1), _report("b", STEP, ago=old)) == []


def test_a_pod_that_reports_twice_counts_once() -> None:
    old = OF_ONE_S + 1
    assert _names(_report("a", STEP, ago=old), _report("a", STEP, ago=old + 5)) == []


def test_this_pods_own_reports_are_not_those_of_others() -> None:
    assert _names(_report("mine", STEP)) == []


def test_a_steps_burst_of_another_plan_may_be_another_size_but_a_named_extent_is_the_same() -> None:
    assert _names(_report("a", STEP, PROBE), plan="another") == [PROBE]


def test_a_report_from_the_future_and_what_is_none_are_passed_over() -> None:
    good = _report("a", STEP)
    bad: list[dict[str, Any]] = [
        _report("a", STEP, ago=-3600.0),
        {**good, "outcome": "died"},
        {**good, "at": "now"},
        {**good, "at": float("nan")},
        {**good, "at": True},
        {**good, "boot": None},
        {**good, "killers": "prefill/8192"},
        {**good, "killers": [7, None, "x" * 500, "\x1b[2J"]},
        {},
    ]
    for record in bad:
        assert _names(record) == [], record


def test_the_sentence_says_how_often_and_how_it_is_sent_again() -> None:
    said = reported.sentence([Reported(STEP, 2)], "0123456789abcdef0123")
    assert "prefill/8192 (2 pods)" in said
    assert "store killers 0123456789ab --forget" in said
