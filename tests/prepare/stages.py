"""What the test run consists of, in order: each stage prepares something, or is one check or a run of pytest.

How a child is run: `running.py`. What comes out: `outcome.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.prepare import apiserver, container_image, debian, engine, kubernetes_tools
from tests.prepare.outcome import Outcome, failed, from_pytest, passed
from tests.prepare.running import TIMED_OUT, run

ROOT = Path(__file__).resolve().parents[2]

#: The folders of tests that need nothing but this environment; `bench` measures and is run by .ci/long.
FOLDERS = ("unit", "contract", "kubernetes", "faults", "integration")


@dataclass(frozen=True)
class Stage:
    """One stage: its name for --only, what it does, whether --quick leaves it out, and the code."""

    name: str
    does: str
    quick: bool
    run: Callable[[], Outcome]


def _environment() -> dict[str, str]:
    # Settings of the person who runs the tests must not decide how they end.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    return {**kept, "PATH": debian.search_path()}


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _check(stage: str, *command: str, deadline_s: float = 600) -> Callable[[], Outcome]:
    def check() -> Outcome:
        started = time.monotonic()
        code = run([_tool(command[0]), *command[1:]], folder=ROOT, deadline_s=deadline_s, environment=_environment())
        seconds = time.monotonic() - started
        if code == 0:
            return passed(stage, seconds)
        if code == TIMED_OUT:
            return failed(stage, seconds, f"not done within {deadline_s:.0f} s")
        if code == 127:
            return failed(stage, seconds, f"{command[0]} is not installed: pip install -e '.[test]'")
        return failed(stage, seconds, f"{' '.join(command)} ended with exit code {code}")

    return check


def _pytest(stage: str, marked: str, deadline_s: float, folders: Sequence[str], *more: str) -> Callable[[], Outcome]:
    def test() -> Outcome:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="warmup-sidecar-tests-") as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", "-m", marked, f"--junitxml={report}", *more]
            command += [f"tests/{name}" for name in folders]
            code = run(command, folder=ROOT, deadline_s=deadline_s, environment=_environment())
            seconds = time.monotonic() - started
            if code == TIMED_OUT:
                return failed(stage, seconds, f"not done within {deadline_s:.0f} s")
            return from_pytest(stage, code, report, seconds)

    return test


STAGES = (
    Stage(debian.STAGE, "install Debian packages, where root may", False, lambda: debian.install(ROOT)),
    Stage(engine.STAGE, "prepare the CPU build of vLLM and a tiny model", False, engine.prepare_engine),
    Stage(apiserver.STAGE, "build a real kube-apiserver, once", False, apiserver.prepare_apiserver),
    Stage(kubernetes_tools.STAGE, "fetch kubectl and Helm", False, kubernetes_tools.prepare_tools),
    Stage("lint", "ruff", True, _check("lint", "ruff", "check", ".")),
    Stage("types", "mypy, strict", True, _check("types", "mypy")),
    Stage("layers", "import-linter", True, _check("layers", "lint-imports", "--no-logo")),
    Stage("docs", "generated tables are up to date", True, _check("docs", "warmup-sidecar", "docs", "--check")),
    Stage(
        "tests",
        "everything that needs no engine",
        True,
        _pytest("tests", "not engine", 3000, FOLDERS),
    ),
    Stage(
        "integration",
        "everything that needs the real vLLM on CPU",
        False,
        _pytest("integration", "engine", 3600, FOLDERS),
    ),
)

#: Run by .ci/long with --slow: minutes each, and what they measure is quoted in the README.
SLOW = (
    Stage(engine.STAGE, "prepare the CPU build of vLLM and a tiny model", False, engine.prepare_engine),
    Stage(kubernetes_tools.CHECKOV_STAGE, "install checkov", False, kubernetes_tools.prepare_checkov),
    Stage(container_image.STAGE, "make a base for the container image", False, container_image.prepare_image),
    Stage(
        "slow",
        "slow tests and measurements",
        False,
        _pytest("slow", "slow", 6 * 3600, (*FOLDERS, "bench"), "--slow", "-s"),
    ),
)
