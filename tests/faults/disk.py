"""A hostile disk for real processes: the preload shim, compiled once, and the ways to start something on it.

What the shim can do is told in `tests/fakes/disk_shim.c`; what must hold on such a disk, in the tests.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests/fakes/disk_shim.c"
PATIENT_S = 60
WORKER = (sys.executable, "-m", "sidecar.caches.worker")


@cache
def shim() -> Path:
    """Compile the shim, once for all tests of this process; without a compiler the test is skipped."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("a disk that lies needs a C compiler")
    folder = tempfile.mkdtemp(prefix="disk-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder, "disk_shim.so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True, timeout=PATIENT_S)
    return made


@dataclass(frozen=True, kw_only=True)
class Mount:
    """How one process sees the files below `root`; each process started with it is a mount of its own."""

    root: Path
    faults: tuple[str, ...] = ()
    late_s: float = 0.0
    own_late: bool = False
    locks_lie: bool = False
    log: Path | None = None
    clock_jumps: tuple[float, ...] = ()

    def variables(self) -> dict[str, str]:
        """Give the environment variables that make a process see the disk so."""
        said = {
            "LD_PRELOAD": str(shim()),
            "DISK_ROOT": str(self.root),
            "DISK_FAULTS": ",".join(self.faults),
            "DISK_LATE_S": str(self.late_s),
            "DISK_OWN_LATE": "1" if self.own_late else "",
            "DISK_LOCKS_LIE": "1" if self.locks_lie else "",
            "DISK_LOG": str(self.log or ""),
            "CLOCK_JUMPS": ",".join(map(str, self.clock_jumps)),
        }
        return {name: value for name, value in said.items() if value}

    def command(self, *argv: str) -> list[str]:
        """Give a command that starts another one on this mount, for whoever starts processes itself."""
        return ["env", *(f"{name}={value}" for name, value in self.variables().items()), *argv]

    def worker(self) -> list[str]:
        """Give the command of the real cache worker on this mount."""
        return self.command(*WORKER)


class Worker:
    """The real cache worker at work on one task, in a directory of its own: relative paths are the same for every pod."""

    def __init__(
        self, task: dict[str, Any], cwd: Path, mount: Mount | None = None, command: Sequence[str] = WORKER
    ) -> None:
        self.process = subprocess.Popen(
            mount.command(*command) if mount else command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for the result."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        try:
            said = [json.loads(line) for line in self.process.stdout]
        finally:
            self.process.stdin.close()
        assert self.process.stderr is not None
        words = self.process.stderr.read()
        self.process.stderr.close()
        self.process.stdout.close()
        self.process.wait(timeout=PATIENT_S)
        assert said, words
        assert said[-1]["kind"] == "result", words
        found: dict[str, Any] = said[-1]["result"]
        return found


def calls(log: Path) -> list[tuple[str, str]]:
    """Read a shim's log: the operation and the path of each call."""
    pairs = [line.split(" ", 1) for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    return [(op, path) for op, path in pairs]


@dataclass
class Subject:
    """One process that does tasks of the cache worker on a disk whose faults are changed between them."""

    root: Path
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            Mount(root=self.root).command(sys.executable, "-m", "tests.faults.disk_tasks"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=PATIENT_S)

    def do(self, task: dict[str, Any], *faults: str) -> dict[str, Any]:
        """Do a task with these faults; gives the result, and under `calls` how often each fault's call was made."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**task, "faults": ",".join(faults)}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process of the faults ended"
        found: dict[str, Any] = json.loads(line)
        assert "raised" not in found, f"{faults}: {found['raised']}"
        return found
