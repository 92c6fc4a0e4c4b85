"""Restored is not hit: what the engine read, rebuilt and compiled beside it is told apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.caches import effectiveness
from sidecar.caches.effectiveness import Effect, measure, records_reads
from sidecar.caches.folder_tree import FolderTree
from sidecar.caches.packed_folder import Entry
from sidecar.caches.scan import scan_live_cache

RESTORED_NS = 1_700_000_000_000_000_000


@pytest.fixture
def live(tmp_path: Path) -> Path:
    if not records_reads(tmp_path):
        pytest.skip("this filesystem is mounted noatime, so reads can't be seen")
    for name in "abcd":
        restore(tmp_path, name)
    return tmp_path


def kernel(live: Path, name: str) -> Path:
    return live / "triton" / (name.upper() * 8) / f"{name}.cubin"


def restore(live: Path, name: str) -> None:
    path = kernel(live, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode())
    os.utime(path, ns=(RESTORED_NS, RESTORED_NS))


def effect(live: Path, *, reads: str = "", rebuilds: str = "", compiles: str = "", removes: str = "") -> Effect:
    laid = scan_live_cache(live)
    for name in reads:
        kernel(live, name).read_bytes()
    for name in rebuilds + compiles:
        path = kernel(live, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"compiled")
    for name in removes:
        kernel(live, name).unlink()
    return measure(live, laid, ["triton"])["triton"]


def test_an_engine_that_reads_what_was_restored_has_used_it_all(live: Path) -> None:
    found = effect(live, reads="abcd")
    assert (found.read, found.ratio) == (4, 1.0)


def test_a_folder_of_many_rebuilt_files_is_not_searched_for_each_of_them(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(_tree: FolderTree, path: str) -> Entry:
        raise AssertionError(f"{path} is looked up among all names of its folder")

    monkeypatch.setattr(FolderTree, "__getitem__", look_up)
    assert effect(live, rebuilds="abcd").rebuilt == 4


def test_kernels_that_this_start_did_not_need_are_no_loss(live: Path) -> None:
    assert effect(live, reads="a").ratio == 1.0


def test_kernels_that_were_rebuilt_count_against_it(live: Path) -> None:
    found = effect(live, reads="ab", rebuilds="cd")
    assert (found.rebuilt, found.ratio) == (2, 0.5)


def test_kernels_that_vanished_count_as_rebuilt(live: Path) -> None:
    assert effect(live, reads="abc", removes="d").rebuilt == 1


def test_an_engine_that_compiles_beside_an_untouched_copy_has_used_nothing(live: Path) -> None:
    found = effect(live, compiles="wxyz")
    assert (found.untouched, found.ratio) == (True, 0.0)
    said = effectiveness.sentence({"triton": found})
    assert "triton (0%: the engine read none of it" in said
    assert "looks in another directory" in said


def test_a_family_that_was_not_restored_is_not_judged(live: Path) -> None:
    assert measure(live, scan_live_cache(live), ["inductor"]) == {}


def test_nothing_is_said_about_families_that_were_used(live: Path) -> None:
    assert effectiveness.sentence({"triton": effect(live, reads="abcd")}) == ""


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    records_reads(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_the_sidecar_itself_writes_tells_nothing_about_the_engine(live: Path) -> None:
    coverage = live / "warmup_coverage" / "coverage.json"
    coverage.parent.mkdir()
    coverage.write_text("{}", encoding="utf-8")
    laid = scan_live_cache(live)
    coverage.write_text('{"more": 1}', encoding="utf-8")
    assert list(measure(live, laid, ["triton", "warmup_coverage"])) == ["triton"]
