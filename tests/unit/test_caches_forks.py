"""Claims about work in forked processes: all of it is done or known to be lost, and no process stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sidecar.caches.forks import Lost, Note, spread
from tests.own_processes import children

ROOT = Path(__file__).parents[2]
PIECES = range(6)


def nothing(_note: Any) -> None:
    """Take a note and do nothing with it."""


def test_every_piece_is_done_once_and_its_notes_arrive() -> None:
    def work(piece: int, note: Note) -> Any:
        note([piece, os.getpid()])
        return {"piece": piece}

    notes: list[Any] = []
    found = list(spread(PIECES, 3, work, notes.append))
    assert dict(found) == {piece: {"piece": piece} for piece in PIECES}
    assert sorted(piece for piece, _ in notes) == list(PIECES)
    assert os.getpid() not in {pid for _, pid in notes}
    assert children() == []


@pytest.mark.parametrize("end", ["killed", "raises"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_only_the_piece_of_a_process_that_dies_is_lost(end: str, jobs: int, capfd: pytest.CaptureFixture[str]) -> None:
    def work(piece: int, _note: Note) -> int:
        if piece == 1 and end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 // (piece - 1)

    found = dict(spread(PIECES, jobs, work, nothing))
    assert found == {piece: Lost() if piece == 1 else 10 // (piece - 1) for piece in PIECES}
    assert children() == []
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (end == "raises")


def test_a_disk_error_in_a_process_is_raised_here_and_ends_the_others() -> None:
    def work(piece: int, _note: Note) -> int:
        if piece == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if piece > 2:
            signal.pause()
        return piece

    with pytest.raises(OSError, match="No space left") as caught:
        list(spread(PIECES, 3, work, nothing))
    assert caught.value.errno == errno.ENOSPC
    assert children() == []


def test_who_stops_listening_leaves_no_process() -> None:
    def work(piece: int, _note: Note) -> int:
        return piece if piece == 0 else signal.pause() or 0

    results = spread(PIECES, 3, work, nothing)
    assert next(results) == (0, 0)
    assert len(children()) == 3
    results.close()
    assert children() == []


def test_where_nothing_can_be_forked_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", full)
    before = len(os.listdir("/proc/self/fd"))
    assert dict(spread(PIECES, 3, lambda piece, _note: [piece, os.getpid()], nothing)) == {
        piece: [piece, os.getpid()] for piece in PIECES
    }
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_process_outlives_the_one_that_started_it() -> None:
    script = """
import os, signal
from sidecar.caches.forks import spread
def work(piece, note):
    note(os.getpid())
    signal.pause()
for _ in spread(range(3), 3, work, lambda pid: print(pid, flush=True)):
    pass
"""
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(3)]
    assert all(map(psutil.pid_exists, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    ends = time.monotonic() + 20
    while alive := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        if time.monotonic() > ends:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(alive)} processes are still there")
        time.sleep(0.01)
