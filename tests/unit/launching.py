"""A stage with a real control directory, real launchers and small real engines; no test lives here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sidecar.handshake import AttemptState, CommitEntry, ControlDirectory, Decision, LauncherSettings

Found = TypeVar("Found")
SHELL = "/bin/sh"
#: Far beyond what any step takes, on a machine with other work.
PATIENCE_S = 90.0
#: Interpreters run without site, which takes longer than the launcher itself.
QUICK = (sys.executable, "-I", "-S")


def until(look: Callable[[], Found | None], what: str) -> Found:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.002)
    raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}")


@dataclass
class Stage:
    """One pod's shared volume and what runs on it."""

    root: Path
    changes: Mapping[str, Any] = field(default_factory=dict)
    launched: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control, self.live = self.root / "control", self.root / "live"
        (self.root / "home").mkdir()
        # An interpreter that tells nothing: facts are not what most tests are about.
        (self.root / "bin").mkdir()
        (self.root / "bin" / "python3").symlink_to("/bin/false")
        self.sidecar = ControlDirectory(self.control, "b007")
        self.sidecar.prepare(self.settings(**self.changes))

    def settings(self, **changes: Any) -> LauncherSettings:
        """Give settings under which nothing waits for long."""
        usual: dict[str, Any] = {
            "version": "1",
            "engine_url": "http://127.0.0.1:9",
            "live_cache": str(self.live),
            "settle_s": 0.0,
            "environment": {"TRITON_CACHE_DIR": f"{self.live}/triton"},
            "directories": (f"{self.live}/triton",),
        }
        return LauncherSettings(**{**usual, **changes})

    def environment(self, **more: str) -> dict[str, str]:
        """Give a small environment for a launcher."""
        return {"PATH": str(self.root / "bin"), "HOME": str(self.root / "home"), **more}

    def launch(
        self, *command: str, python: tuple[str, ...] = QUICK, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Start a launcher for this command."""
        process = subprocess.Popen(
            [*python, str(self.control / "launcher.py"), "--", *command],
            env=self.environment(**(env or {})),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )
        self.launched.append(process)
        return process

    def waiting(self) -> AttemptState:
        """Wait for a launcher that has handed over its facts."""

        def look() -> AttemptState | None:
            state = self.sidecar.current()
            return state if state is not None and state.waiting else None

        return until(look, "a launcher that waits")

    def state(self, attempt: str, look: Callable[[AttemptState], object], what: str) -> AttemptState:
        """Wait until an attempt stands so."""

        def seen() -> AttemptState | None:
            state = self.sidecar.state(attempt)
            return state if look(state) else None

        return until(seen, what)

    def started(self, *command: str, decision: Decision | None = None, **more: Any) -> tuple[str, Any]:
        """Start a launcher, let it go on, and give attempt and process once the engine runs."""
        process = self.launch(*command, **more)
        attempt = self.waiting().attempt
        assert self.sidecar.decide(attempt, decision or Decision("miss"))
        self.state(attempt, lambda state: state.started or state.exited, "an engine")
        return attempt, process

    def engine(self, attempt: str) -> int:
        """Give the process ID of an attempt's engine."""
        started = self.state(attempt, lambda state: state.started, "an engine").started
        assert started is not None
        return started.pid

    def staged(self, attempt: str, family: str, files: Mapping[str, str]) -> CommitEntry:
        """Stage a family as a restore does."""
        staged = self.live / ".staging" / attempt / family
        write(staged, files)
        return CommitEntry(family, str(staged), str(self.live / family))

    def close(self) -> None:
        """End what still runs."""
        for process in self.launched:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        self.sidecar.close()


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Make a folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def files_in(folder: Path) -> dict[str, str]:
    """Read all files of a folder; none where there is no folder."""
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}


def runs(pid: int) -> bool:
    """Tell whether a process is there and not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """List the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def output(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """Give what a launcher printed, once it has ended."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return out, err.decode()


def open_pipe() -> tuple[int, int]:
    """Make a pipe."""
    return os.pipe()
