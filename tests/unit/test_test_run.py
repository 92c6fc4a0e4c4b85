"""`python -m tests` itself: what did not pass is not counted as passed, and each skip has its reason."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from tests import __main__ as whole_run
from tests.prepare import running
from tests.prepare.outcome import Outcome, failed, from_pytest, passed, skipped
from tests.prepare.running import TIMED_OUT, run
from tests.prepare.stages import TOGETHER, Stage, groups, run_together
from tests.prepare.summary import exit_status, render


def report(folder: Path, *cases: str) -> Path:
    path = folder / "report.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
    return path


PASSED = '<testcase classname="a" name="good"/>'
FAILED = '<testcase classname="a" name="bad"><failure message="no"/></testcase>'
SKIPPED = '<testcase classname="a" name="not"><skipped message="no GPU\n here"/></testcase>'
TEARDOWN = '<testcase classname="a" name="good"><error message="late"/></testcase>'


def test_passed_failed_and_skipped_are_counted_with_reasons(tmp_path: Path):
    outcome = from_pytest("tests", 1, report(tmp_path, PASSED, FAILED, SKIPPED, SKIPPED), 2.0)
    assert outcome == Outcome("tests", 1, 1, {"no GPU here": 2}, 2.0)


def test_a_test_that_fails_while_it_is_torn_down_has_failed_once(tmp_path: Path):
    outcome = from_pytest("tests", 1, report(tmp_path, PASSED, TEARDOWN), 0)
    assert (outcome.passed, outcome.failed) == (0, 1)


def test_an_error_outside_of_any_test_is_a_failure(tmp_path: Path):
    assert from_pytest("tests", 3, report(tmp_path, PASSED), 0).failed == 1


def test_no_test_at_all_is_a_failure_that_says_so(tmp_path: Path):
    outcome = from_pytest("tests", 5, report(tmp_path), 0)
    assert outcome.failed == 1
    assert "no test" in outcome.note


def test_a_report_that_is_not_there_is_a_failure(tmp_path: Path):
    assert from_pytest("tests", 0, tmp_path / "none.xml", 0).failed == 1


def test_the_last_line_counts_everything():
    outcomes = [
        passed("lint", 1.0),
        failed("types", 2.0, "mypy ended with exit code 1"),
        skipped("engine", "no g++"),
    ]
    lines = render(outcomes).splitlines()
    assert lines[-1] == "1 passed, 1 failed, 1 skipped"
    assert any("no g++" in line for line in lines)


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([passed("lint", 0), skipped("engine", "no g++")], 0),
        ([passed("lint", 0), failed("types", 0, "")], 1),
        ([skipped("engine", "no g++")], 1),
        ([], 1),
    ],
)
def test_the_exit_status_is_good_only_when_something_passed_and_nothing_failed(outcomes: list[Outcome], status: int):
    assert exit_status(outcomes) == status


def test_a_child_past_its_deadline_is_ended_with_its_own_children(tmp_path: Path):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    assert run([sys.executable, "-c", child], folder=tmp_path, deadline_s=0.5) == TIMED_OUT


def test_a_program_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["/nonexistent/ruff"], folder=tmp_path, deadline_s=1) == 127
    assert "/nonexistent/ruff can't be started" in capsys.readouterr().out


def stage(name: str, work: Callable[[TextIO | None], Outcome], beside: bool = False) -> Stage:
    return Stage(name, f"the work of {name}", True, work, beside)


def test_stages_that_may_run_at_the_same_time_do_and_the_second_ones_words_follow_whole(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    met = threading.Barrier(2, timeout=20)

    def work(name: str) -> Callable[[TextIO | None], Outcome]:
        def run_it(output: TextIO | None) -> Outcome:
            met.wait()
            code = run([sys.executable, "-c", f"print('{name} at work')"], folder=tmp_path, deadline_s=20, output=output)
            met.wait()
            return passed(name, 1.0) if code == 0 else failed(name, 1.0, "")

        return run_it

    outcomes = run_together([stage("first", work("first")), stage("second", work("second"), beside=True)])
    assert [(one.stage, one.passed) for one in outcomes] == [("first", 1), ("second", 1)]
    said = capfd.readouterr().out
    order = ["first at work\n", "=== second, which ran at the same time: the work of second", "second at work\n"]
    assert [said.rindex(each) for each in order] == sorted(said.rindex(each) for each in order)


def test_of_stages_that_may_run_at_the_same_time_no_more_than_the_cores_bear_do():
    begun = threading.Semaphore(0)
    go_on = threading.Event()

    def work(name: str) -> Callable[[TextIO | None], Outcome]:
        def run_it(_output: TextIO | None) -> Outcome:
            begun.release()
            assert go_on.wait(20)
            return passed(name, 1.0)

        return run_it

    names = [str(number) for number in range(TOGETHER + 2)]
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(run_together, [stage(name, work(name), beside=True) for name in names])
        for _ in range(TOGETHER):
            assert begun.acquire(timeout=20)
        one_too_many = begun.acquire(timeout=0.2)
        go_on.set()
        assert [one.stage for one in outcomes.result(20)] == names
    assert not one_too_many


def test_ctrl_c_ends_the_children_of_all_stages_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(running, "_stopped", threading.Event())
    met, codes = threading.Barrier(2, timeout=20), list[int]()
    interrupt = (
        f"import os, signal, time; time.sleep(0.2); os.kill({os.getpid()}, signal.SIGINT); time.sleep(60)",
        "import time; time.sleep(60)",
    )

    def work(program: str) -> Callable[[TextIO | None], Outcome]:
        def run_it(output: TextIO | None) -> Outcome:
            met.wait()
            codes.append(run([sys.executable, "-c", program], folder=tmp_path, deadline_s=60, output=output))
            codes.append(run([sys.executable, "-c", program], folder=tmp_path, deadline_s=60, output=output))
            return passed("", 1.0)

        return run_it

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_together([stage("a", work(interrupt[0])), stage("b", work(interrupt[1]), beside=True)])
    assert time.monotonic() - began < 30
    assert codes.count(running.STOPPED) >= 2


def test_quick_leaves_out_what_needs_an_engine_and_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def work(name: str) -> Callable[[TextIO | None], Outcome]:
        return lambda _output: passed(name, 1.0)

    stages = [stage("a", work("a")), stage("b", work("b"), beside=True), stage("c", work("c"), beside=True)]
    for left_out in (0, 1):
        monkeypatch.setattr(
            whole_run, "STAGES", [replace(one, quick=at != left_out) for at, one in enumerate(stages)]
        )
        assert whole_run.main(["--quick"]) == 0
        said = capsys.readouterr().out
        assert "2 passed, 0 failed, 1 skipped" in said
        assert f"the work of {stages[left_out].name}" not in said


@pytest.mark.parametrize(("cores", "expected"), [(2, [["a", "b"], ["c"]]), (1, [["a"], ["b"], ["c"]])])
def test_stages_run_one_after_the_other_on_a_single_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: list[list[str]]
):
    monkeypatch.setattr("os.cpu_count", lambda: cores)

    def work(_output: TextIO | None) -> Outcome:
        return passed("", 0)

    found = groups([stage("a", work), stage("b", work, beside=True), stage("c", work)])
    assert [[one.name for one in group] for group in found] == expected
