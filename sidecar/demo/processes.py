"""Starting the demo's processes, and ending them and all they started: by pid, never by name.

What the processes are is not known here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

#: Stem of the file that the sidecar drops into the control directory and runs as its child.
LAUNCHER = "launcher"

#: How long a sidecar or an engine may take to end before it is killed. vLLM on CPU takes 1 s.
END_S = 30.0

#: As much of a log as fits on a screen.
LINES_SHOWN = 15


class Program:
    """One running command whose output goes into a log.

    It has a session of its own, so that Ctrl-C in the terminal reaches the demo alone, which then ends it in
    order.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Give the exit code, None while it runs."""
        return self._process.poll()

    def tree(self) -> list[psutil.Process]:
        """List the process and all that descend from it and live."""
        return tree_of(self.pid)

    def end(self) -> None:
        """Ask it to end, wait, and kill what is left of it and of what it started."""
        known = self.tree()
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            known = [*known, *self.tree()]
        # psutil compares start times too, so a pid that was given to somebody else meanwhile is left alone.
        for process in known:
            with suppress(psutil.Error):
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        # Whoever comes next needs their ports and folders.
        psutil.wait_procs(known, END_S)

    def last_lines(self, count: int = LINES_SHOWN) -> list[str]:
        """Give the end of the log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return [f"({self.log} can't be read: {error.strerror})"]
        return text.splitlines()[-count:]


def tree_of(pid: int) -> list[psutil.Process]:
    """List a process and its living descendants; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def engine_root(sidecar_pid: int) -> int | None:
    """Find the process that started the engine: the sidecar's child that runs the launcher."""
    try:
        children = psutil.Process(sidecar_pid).children()
    except psutil.Error:
        return None
    for child in children:
        with suppress(psutil.Error):
            if any(Path(word).stem == LAUNCHER for word in child.cmdline()):
                return child.pid
    return None
