"""What the test run consists of, in order: each stage prepares something, or is one check or a run of pytest.

How a child is run: `running.py`. What comes out: `outcome.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.prepare import apiserver, container_image, debian, engine, kubernetes_tools
from tests.prepare.outcome import Outcome, failed, from_pytest, passed
from tests.prepare.running import TIMED_OUT, run, stop

ROOT = Path(__file__).resolve().parents[2]

#: The folders of tests that need nothing but this environment; `bench` measures and is run by .ci/long.
FOLDERS = ("unit", "contract", "kubernetes", "faults", "integration")

#: So many stages run at the same time: each of them waits for about a third of its time, and two cores are there.
TOGETHER = 3


@dataclass(frozen=True)
class Stage:
    """One stage: its name for --only, what it does, whether --quick leaves it out, and the code.

    `run` prints into the file that it is given, None: where all else is printed. With `beside` it may run at the same time
    as the stage before it. Of such stages the longest comes first.
    """

    name: str
    does: str
    quick: bool
    run: Callable[[TextIO | None], Outcome]
    beside: bool = False


def groups(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Put stages together that run at the same time, where this machine has a second core."""
    found: list[list[Stage]] = []
    for stage in stages:
        if stage.beside and found and (os.cpu_count() or 1) > 1:
            found[-1].append(stage)
        else:
            found.append([stage])
    return found


def run_together(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages at the same time, `TOGETHER` at most.

    The first prints at once, what the others print follows whole, one after the other.
    """
    first, *others = stages
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in others]
        pool = opened.enter_context(ThreadPoolExecutor(max_workers=TOGETHER))
        printing = pool.submit(first.run, None)
        begun = [pool.submit(stage.run, file) for stage, file in zip(others, files, strict=True)]
        try:
            outcomes = [printing.result()]
            for stage, file, work in zip(others, files, begun, strict=True):
                print(f"\n=== {stage.name}, which ran at the same time: {stage.does}", flush=True)
                outcomes.append(work.result())
                file.seek(0)
                shutil.copyfileobj(file, sys.stdout)
                sys.stdout.flush()
        except KeyboardInterrupt:
            stop()
            raise
    return outcomes


def _alone(prepare: Callable[[], Outcome]) -> Callable[[TextIO | None], Outcome]:
    """Take a stage that always prints where all else is printed."""
    return lambda _output: prepare()


def _environment() -> dict[str, str]:
    # Settings of the person who runs the tests must not decide how they end.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    return {**kept, "PATH": debian.search_path()}


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _check(stage: str, *command: str, deadline_s: float = 600) -> Callable[[TextIO | None], Outcome]:
    def check(output: TextIO | None) -> Outcome:
        started = time.monotonic()
        words = [_tool(command[0]), *command[1:]]
        code = run(words, folder=ROOT, deadline_s=deadline_s, environment=_environment(), output=output)
        seconds = time.monotonic() - started
        if code == 0:
            return passed(stage, seconds)
        if code == TIMED_OUT:
            return failed(stage, seconds, f"not done within {deadline_s:.0f} s")
        if code == 127:
            return failed(stage, seconds, f"{command[0]} is not installed: pip install -e '.[test]'")
        return failed(stage, seconds, f"{' '.join(command)} ended with exit code {code}")

    return check


def _pytest(
    stage: str, marked: str, deadline_s: float, folders: Sequence[str], *more: str
) -> Callable[[TextIO | None], Outcome]:
    def test(output: TextIO | None) -> Outcome:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="warmup-sidecar-tests-") as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", "--durations=12", "-m", marked, f"--junitxml={report}", *more]
            command += [f"tests/{name}" for name in folders]
            code = run(command, folder=ROOT, deadline_s=deadline_s, environment=_environment(), output=output)
            seconds = time.monotonic() - started
            if code == TIMED_OUT:
                return failed(stage, seconds, f"not done within {deadline_s:.0f} s")
            return from_pytest(stage, code, report, seconds)

    return test


STAGES = (
    Stage(debian.STAGE, "install Debian packages, where root may", False, _alone(lambda: debian.install(ROOT))),
    Stage(engine.STAGE, "prepare the CPU build of vLLM and a tiny model", False, _alone(engine.prepare_engine)),
    Stage(apiserver.STAGE, "build a real kube-apiserver, once", False, _alone(apiserver.prepare_apiserver)),
    Stage(kubernetes_tools.STAGE, "fetch kubectl and Helm", False, _alone(kubernetes_tools.prepare_tools)),
    Stage("lint", "ruff", True, _check("lint", "ruff", "check", ".")),
    Stage("types", "mypy, strict", True, _check("types", "mypy")),
    Stage("layers", "import-linter", True, _check("layers", "lint-imports", "--no-logo")),
    Stage("docs", "generated tables are up to date", True, _check("docs", "warmup-sidecar", "docs", "--check")),
    Stage("tests", "units and contracts", True, _pytest("tests", "not engine", 3000, FOLDERS[:2])),
    # An engine that starts keeps one core busy, and there are dozens of starts.
    Stage(
        "integration",
        "everything that needs the real vLLM on CPU",
        False,
        _pytest("integration", "engine", 4200, FOLDERS),
        beside=True,
    ),
    Stage(
        "faults",
        "faults, and all else that needs no engine",
        True,
        _pytest("faults", "not engine", 3000, ["faults", "integration"]),
        beside=True,
    ),
    Stage("pods", "Kubernetes", True, _pytest("pods", "not engine", 3000, ["kubernetes"]), beside=True),
)

#: Run by .ci/long with --slow: minutes each, and what they measure is quoted in the README.
SLOW = (
    Stage(engine.STAGE, "prepare the CPU build of vLLM and a tiny model", False, _alone(engine.prepare_engine)),
    Stage(kubernetes_tools.CHECKOV_STAGE, "install checkov", False, _alone(kubernetes_tools.prepare_checkov)),
    Stage(container_image.STAGE, "make a base for the container image", False, _alone(container_image.prepare_image)),
    Stage(
        "slow",
        "slow tests and measurements",
        False,
        _pytest("slow", "slow", 6 * 3600, (*FOLDERS, "bench"), "--slow", "-s"),
    ),
)
