"""How a stage of the test run ended: counts, seconds, and the reasons of what was skipped.

Nothing is run and nothing is printed here.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """One line of the summary. `skips` counts tests by the reason for which they were not run."""

    stage: str
    passed: int = 0
    failed: int = 0
    skips: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""

    @property
    def skipped(self) -> int:
        """Give the number of tests that were not run."""
        return sum(self.skips.values())


def passed(stage: str, seconds: float, note: str = "") -> Outcome:
    """Count a stage that is one check as one that passed."""
    return Outcome(stage, passed=1, seconds=seconds, note=note)


def failed(stage: str, seconds: float, note: str) -> Outcome:
    """Count a stage that is one check as one that failed."""
    return Outcome(stage, failed=1, seconds=seconds, note=note)


def skipped(stage: str, reason: str, seconds: float = 0.0) -> Outcome:
    """Count a stage that could not be run as one skip."""
    return Outcome(stage, skips={reason: 1}, seconds=seconds)


def from_pytest(stage: str, code: int, report: Path, seconds: float) -> Outcome:
    """Read pytest's JUnit report. `code` is its exit status, which decides where the report can't.

    pytest documentation, "Exit codes": 0 all passed, 1 tests failed, 5 nothing collected, others are errors.
    """
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return failed(stage, seconds, f"pytest ended with exit code {code} and left no report")
    if code == 5:
        return failed(stage, seconds, "pytest found no test where there should be some")
    skips = Counter(
        " ".join((skip.get("message") or "no reason given").split())
        for case in cases
        if (skip := case.find("skipped")) is not None
    )
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    # A test that passes and then fails in its teardown has two entries of the same name.
    names = {(case.get("classname"), case.get("name")) for case in bad}
    good = {(case.get("classname"), case.get("name")) for case in cases if case.find("skipped") is None} - names
    if code != 0 and not names:
        return Outcome(stage, len(good), 1, skips, seconds, f"pytest ended with exit code {code}")
    return Outcome(stage, len(good), len(names), skips, seconds)
