"""Claims about swapping staged families into the live cache."""

from __future__ import annotations

from pathlib import Path

from sidecar.caches.commit import commit, sweep
from sidecar.caches.live_cache import LiveMarker, read_marker, write_marker
from sidecar.caches.messages import CommitEntry
from tests.fakes.live_cache import put


def entry(live: Path, family: str = "triton") -> CommitEntry:
    return CommitEntry(family=family, staged=str(live / ".staging/1" / family), live=str(live / family))


def test_a_family_is_replaced_whole_and_the_marker_of_the_old_files_goes(tmp_path: Path) -> None:
    put(tmp_path / "triton/OLD/k.cubin", b"old")
    put(tmp_path / ".staging/1/triton/NEW/k.cubin", b"new")
    write_marker(tmp_path, LiveMarker(exact_key="e", toolchain_key="t", attempt="a"))
    report = commit(tmp_path, [entry(tmp_path)])
    assert report.committed == ("triton",)
    assert [path.name for path in (tmp_path / "triton").iterdir()] == ["NEW"]
    assert list((tmp_path / ".trash").iterdir()) == []
    assert read_marker(tmp_path) is None


def test_a_family_whose_staged_files_are_gone_is_left_empty_and_the_others_are_committed(tmp_path: Path) -> None:
    put(tmp_path / "triton/OLD/k.cubin", b"old")
    put(tmp_path / ".staging/1/nv/1", b"new")
    report = commit(tmp_path, [entry(tmp_path), entry(tmp_path, "nv")])
    assert report.committed == ("nv",)
    assert set(report.failed) == {"triton"}
    assert not (tmp_path / "triton").exists()


def test_stale_families_are_cleared_and_nothing_outside_the_live_cache_is(tmp_path: Path) -> None:
    live = tmp_path / "live"
    put(live / "inductor/ab/x.so", b"stale")
    put(tmp_path / "precious/file", b"keep")
    report = commit(
        live, [], [str(live / "inductor"), str(tmp_path / "precious"), str(live), str(live / "../precious")]
    )
    assert not (live / "inductor").exists()
    assert (tmp_path / "precious/file").exists()
    assert len(report.failed) == 3


def test_what_earlier_attempts_left_is_swept_and_this_attempts_staging_is_not(tmp_path: Path) -> None:
    put(tmp_path / ".staging/old/triton/x", b"")
    put(tmp_path / ".staging/now/triton/x", b"")
    put(tmp_path / ".trash/inductor.1/x", b"")
    sweep(tmp_path, keep_attempt="now")
    assert [path.name for path in (tmp_path / ".staging").iterdir()] == ["now"]
    assert list((tmp_path / ".trash").iterdir()) == []
    sweep(tmp_path / "nothing")


def test_no_lock_of_an_engine_that_was_killed_waits_for_the_next_one(tmp_path: Path) -> None:
    put(tmp_path / ".staging/1/triton/NEW/k.cubin", b"new")
    orphan = put(tmp_path / "torch_ext/py311/lock", b"")
    commit(tmp_path, [entry(tmp_path)])
    assert not orphan.exists()
