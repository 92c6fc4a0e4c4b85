"""Peak memory of the daemon and of its cache worker, alone and with the processes it forks.

Looked at from a thread, since a worker takes its numbers with it when it ends.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Self

import psutil

from tests.bench.subject import Subject

LOOK_S = 0.05
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


class _Watch:
    """Look again and again from a thread while `with` lasts."""

    def __init__(self, name: str) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Peaks(_Watch):
    """Watch a running daemon while `with` lasts; `daemon` and `worker` are bytes, 0 while none was seen."""

    def __init__(self, subject: Subject) -> None:
        self.daemon = self.worker = 0
        self._process = subject.process
        super().__init__("peaks")

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            self.daemon = max(self.daemon, _peak(self._process.pid))
            try:
                children = self._process.children()
            except psutil.Error:
                return
            for child in children:
                if _is_worker(child.pid):
                    self.worker = max(self.worker, _peak(child.pid))


class FamilyPeak(_Watch):
    """Watch the children of this process while `with` lasts: `bytes` is the most that all of them took at a time.

    What they share counts once (proportional set size, proc(5) smaps_rollup).
    """

    def __init__(self) -> None:
        self.bytes = 0
        super().__init__("family-peak")

    def _run(self) -> None:
        this = psutil.Process()
        while not self._end.wait(LOOK_S):
            self.bytes = max(self.bytes, sum(_shared_out(one.pid) for one in this.children(recursive=True)))


def _shared_out(pid: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def peak_of_this() -> int:
    """Give the most memory that this process ever took, in bytes."""
    return _peak(os.getpid())


def _is_worker(pid: int) -> bool:
    try:
        return b"sidecar.caches.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _peak(pid: int) -> int:
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
