"""Run pip as a child and tell how far it is: bytes that were downloaded, packages that were installed.

What is installed is decided by the caller; nothing here knows about engines.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: Lines kept for an error message; the whole output is in the log file.
LINES_KEPT = 60

#: Seconds between two looks at the number of installed packages, which pip itself does not tell.
LOOK_EVERY = 0.5

_DOWNLOADING = re.compile(r"^\s*(?:Downloading|Using cached|Processing) (\S+)")
_PROGRESS = re.compile(r"^\s*Progress (\d+) of (\d+)")
_INSTALLING = re.compile(r"^Installing collected packages: (.+)")


@dataclass(frozen=True)
class PipState:
    """How far pip is: `done` and `total` are bytes while `step` is "download", packages in "install"."""

    step: str
    detail: str
    done: int
    total: int | None


class PipOutput:
    """Turn pip's lines (with --progress-bar=raw, pip 24.1 and newer) into states."""

    def __init__(self) -> None:
        self._finished = 0
        self._current = 0
        self._file = ""
        self.packages: int | None = None

    def feed(self, line: str) -> PipState | None:
        """Read one line and give the new state, or None when the line tells nothing."""
        if found := _PROGRESS.match(line):
            self._current = int(found[1])
            return PipState("download", self._file, self._finished + self._current, None)
        if found := _DOWNLOADING.match(line):
            self._finished += self._current
            self._current = 0
            self._file = found[1].rpartition("/")[2].split("-")[0]
            return PipState("download", self._file, self._finished, None)
        if found := _INSTALLING.match(line):
            self.packages = len(found[1].split(","))
            return PipState("install", "", 0, self.packages)
        return None


class PipFailed(Exception):
    """pip ended with an error; `lines` are the last it printed."""

    def __init__(self, code: int, lines: Sequence[str]) -> None:
        super().__init__(f"pip ended with exit code {code}")
        self.code = code
        self.lines = tuple(lines)


def run_pip(
    command: Sequence[str],
    log: Path,
    on_state: Callable[[PipState], None],
    count_installed: Callable[[], int],
    keep_open: Collection[int] = (),
) -> None:
    """Run a pip command to its end, its output appended to `log`, telling each change through `on_state`.

    `count_installed` gives the number of packages now in the environment; descriptors in `keep_open` are
    inherited. Raises PipFailed. When the caller
    is interrupted, pip and its children are ended too.
    """
    last: deque[str] = deque(maxlen=LINES_KEPT)
    parser = PipOutput()
    with log.open("a", encoding="utf-8") as record:
        record.write(f"$ {' '.join(command)}\n")
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )
        assert child.stdout is not None
        try:
            _follow(child.stdout, parser, record, last, on_state, count_installed)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if code != 0:
        raise PipFailed(code, last)


def _follow(
    output: IO[str],
    parser: PipOutput,
    record: IO[str],
    last: deque[str],
    on_state: Callable[[PipState], None],
    count_installed: Callable[[], int],
) -> None:
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(output, lines), name="pip output", daemon=True)
    reader.start()
    before: int | None = None
    while True:
        try:
            line = lines.get(timeout=LOOK_EVERY)
        except queue.Empty:
            if parser.packages is not None:
                before = count_installed() if before is None else before
                on_state(PipState("install", "", max(0, count_installed() - before), parser.packages))
            continue
        if line is None:
            break
        state = parser.feed(line)
        if state is None or state.step != "download" or not _PROGRESS.match(line):
            record.write(line)
            record.flush()
            last.append(line.rstrip())
        if state is not None:
            on_state(state)
    reader.join()
    output.close()


def _read(output: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in output:
        lines.put(line)
    lines.put(None)


def _end(child: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=5)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
