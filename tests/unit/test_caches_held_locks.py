"""Claims about locks that somebody holds while an engine starts: which, for how long, and that looking changes nothing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sidecar.caches import held_locks
from sidecar.caches.held_locks import HeldLocks
from tests.fakes.live_cache import put


def test_a_lock_that_is_held_is_told_with_the_seconds_since_it_was_first_seen_so(tmp_path: Path) -> None:
    held, free = put(tmp_path / "flashinfer/x.lock", b""), put(tmp_path / "inductor/locks/y", b"")
    watch = HeldLocks()
    with open(held) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert watch.look(tmp_path, 100.0) == {str(held): 0.0}
        assert watch.look(tmp_path, 160.0) == {str(held): 60.0}
    assert watch.look(tmp_path, 170.0) == {}
    with open(held) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert watch.look(tmp_path, 180.0) == {str(held): 0.0}
    assert free.exists()


def test_a_baton_is_held_for_as_long_as_its_file_is_there_and_another_file_of_its_name_is_another_one(
    tmp_path: Path,
) -> None:
    baton = put(tmp_path / "torch_ext/py312/ext/lock", b"")
    watch = HeldLocks()
    watch.look(tmp_path, 0.0)
    assert watch.look(tmp_path, 9.0) == {str(baton): 9.0}
    os.replace(put(tmp_path / "torch_ext/py312/ext/new", b""), baton)
    assert watch.look(tmp_path, 10.0) == {str(baton): 0.0}


def test_looking_takes_no_lock_away_from_others(tmp_path: Path) -> None:
    held = put(tmp_path / "triton/x.lock", b"")
    HeldLocks().look(tmp_path, 0.0)
    with open(held) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_no_lock_file_and_our_own_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path / ".staging/1/triton/lock", b"")
    put(tmp_path / "lock", b"")
    os.mkfifo(tmp_path / "pipe.lock")
    (tmp_path / "triton").mkdir()
    os.mkfifo(tmp_path / "triton/pipe.lock")
    (tmp_path / "triton/lock").symlink_to(put(tmp_path / "elsewhere", b""))
    assert HeldLocks().look(tmp_path, 0.0) == {}
    assert HeldLocks().look(tmp_path / "nowhere", 0.0) == {}


def test_a_look_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        put(tmp_path / f"torch_ext/{number}/lock", b"")
    assert len(HeldLocks().look(tmp_path, 0.0)) == 5
    monkeypatch.setattr(held_locks, "ENTRIES", 8)
    assert 0 < len(HeldLocks().look(tmp_path, 0.0)) < 5
