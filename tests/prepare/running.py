"""Run one child process of the test run with a deadline, its output passed through.

What is run and what its end means is decided in `stages.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

#: What `run` gives for a child that had to be ended at its deadline; the same number as timeout(1).
TIMED_OUT = 124
#: What it gives once the test run was stopped by hand, as shells do after Ctrl-C.
STOPPED = 130

_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_stopped = threading.Event()


def run(
    command: Sequence[str],
    *,
    folder: Path,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    output: TextIO | None = None,
) -> int:
    """Run a command to its end and give its exit status; past the deadline its whole group is ended.

    `output` takes what it prints; without one that goes where ours goes.
    """
    print(f"\n$ {' '.join(command)}", file=output, flush=True)
    stderr = None if output is None else subprocess.STDOUT
    try:
        with _lock:
            if _stopped.is_set():
                return STOPPED
            child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=stderr,
                start_new_session=True,
                env=environment,
            )
            _running.add(child)
    except OSError as error:
        print(f"{command[0]} can't be started: {error}", file=output, flush=True)
        return 127
    try:
        return child.wait(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        # Also after a normal end: what a test left running would hold ports and memory of the next stage.
        _end_group(child)
        _running.discard(child)


def stop() -> None:
    """End the children that run in other threads, and start no more: they are in sessions of their own, without our Ctrl-C."""
    with _lock:
        _stopped.set()
        for child in tuple(_running):
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGTERM if child.poll() is None else signal.SIGKILL)
        child.wait(timeout=10)
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
