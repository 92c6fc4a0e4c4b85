"""Claims about the table of a generation's files: it holds what was put in, in little room, and joins as sets do."""

from __future__ import annotations

import io
import os
import tempfile
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.caches import manifest as manifests
from sidecar.caches import selection
from sidecar.caches.delta import _different
from sidecar.caches.families import BY_NAME
from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.kernel_entries import Entries
from sidecar.caches.listing import listing_of
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.selection import Selection
from sidecar.caches.validity import entries
from tests.fakes.live_cache import put

PACKS = ("aa" * 32, "bb" * 32)
NAMES = st.text(st.sampled_from("ab-.é\udcff"), min_size=1, max_size=4).filter(lambda name: name.strip("."))
PLACES = st.tuples(st.sampled_from(["triton", "inductor"]), st.lists(NAMES, min_size=1, max_size=3).map("/".join))


def a_file(family: str, path: str, number: int = 0) -> StoredFile:
    if number % 5 == 4:
        return StoredFile(family, path, 0, "", number, 0o777, "", 0, "k")
    return StoredFile(family, path, number, f"{number:064x}", 10**18 + number, 0o644, PACKS[number % 2], 512 * number)


FILES = st.lists(PLACES, unique=True, max_size=12).map(
    lambda places: [a_file(*place, number) for number, place in enumerate(places)]
)


@given(FILES)
def test_a_table_gives_back_what_was_added(files: list[StoredFile]) -> None:
    table = FileTable(files)
    assert list(table) == files == [table[row] for row in range(len(table))]
    assert list(table.in_order()) == sorted(files)
    assert table.is_ordered == (files == sorted(files))
    assert table.used_packs() == {file.pack for file in files} - {""}


@given(FILES, FILES, st.sets(st.integers(0, 11)))
def test_joined_tables_hold_what_is_new_and_what_is_neither_gone_nor_replaced(
    files: list[StoredFile], more: list[StoredFile], out: set[int]
) -> None:
    old, new = FileTable(sorted(files)), FileTable(sorted(file._replace(mtime_ns=7) for file in more))
    gone = sorted(row for row in out if row < len(old))
    expected = {file[:2]: file for row, file in enumerate(old) if row not in gone} | {file[:2]: file for file in new}
    joined = old.joined(gone, new)
    assert list(joined) == sorted(expected.values())
    assert joined.is_ordered
    assert all(joined.row_of(*file[:2]) == row for row, file in enumerate(joined))


def test_files_that_move_leave_the_table_they_were_in_as_it_is() -> None:
    table = FileTable(a_file("triton", f"K{number}") for number in range(3))
    before = list(table)
    moved = table.with_places([(1, "cc" * 32, 4096)])
    assert list(table) == before
    assert [(file.pack, file.offset) for file in moved] == [(PACKS[0], 0), ("cc" * 32, 4096), (PACKS[0], 0)]


def test_a_table_of_many_files_takes_little_more_than_their_names_and_digests() -> None:
    count = 20_000
    files = (a_file("triton", f"{number:052X}/k.cubin", 5 * number) for number in range(count))
    packs = tuple(Pack(digest=digest, bytes=1 << 40, unpacked=1 << 40) for digest in PACKS)
    head: dict[str, Any] = {"scope": "toolchain", "key": "k", "name": "n", "parent": None, "created_unix_s": 1.0}
    made = Manifest(**head, created_by="t", packs=packs, files=FileTable(files))
    document = b"".join(manifests.lines(made))
    tracemalloc.start()
    found = manifests.read(io.BytesIO(document))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == made
    assert kept < 190 * count
    assert peak < kept + 12_000_000


@given(FILES)
def test_a_listing_is_sorted_as_a_manifest_is(files: list[StoredFile]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = set()
        for file in files:
            try:
                made.add(put(Path(folder, file.path), b"x").relative_to(folder))
            except (OSError, ValueError):
                continue
        listing = listing_of(folder)
        paths = list(listing.paths)
        assert paths == sorted(paths)
        assert {Path(path) for path in paths} == made
        assert [listing.seen(row)[0] for row in range(len(listing))] == [1] * len(paths)


def test_a_listing_has_links_and_passes_over_sockets_and_what_is_older_than_time(tmp_path: Path) -> None:
    put(tmp_path / "d" / "k", b"12")
    (tmp_path / "d" / "link").symlink_to("k")
    os.mkfifo(tmp_path / "fifo")
    put(tmp_path / "old", b"", mtime_ns=-5)
    listing = listing_of(str(tmp_path))
    assert list(listing.paths) == ["d/k", "d/link"]
    assert listing.links == {1: "k"}
    assert listing.before_1970 == 1
    assert len(listing_of(str(tmp_path / "nothing"))) == 0


def test_what_differs_from_a_generation_is_found_wherever_it_lies(tmp_path: Path) -> None:
    names = [f"K{number:04}/k" for number in range(1500)]
    for name in names:
        put(tmp_path / name, b"ab")
    listing = listing_of(str(tmp_path))

    rows = {path: row for row, path in enumerate(listing.paths)}

    def stored(path: str, **changes: Any) -> StoredFile:
        row = rows[path]
        file = StoredFile("triton", path, 2, "ab" * 32, listing.mtimes[row], 0o644, PACKS[0], 0)
        return file._replace(**changes)

    odd = {names[3]: {"size": 3}, names[700]: {"mtime_ns": 1}, names[1499]: {"size": 0}}
    table = FileTable(stored(name, **odd.get(name, {})) for name in names if name != names[600])
    more = table.joined([], FileTable([stored(names[0])._replace(path="K0599/gone")]))
    for one in (table, more):
        found = [listing.paths[row] for row in _different(listing, one, one.rows_of("triton"))]
        assert found == [names[3], names[600], names[700], names[1499]]
    for change in ({"mtime_ns": 1}, {"size": 3}):
        one = FileTable(stored(name, **(change if name == names[9] else {})) for name in names)
        assert [listing.paths[row] for row in _different(listing, one, one.rows_of("triton"))] == [names[9]]
    nothing = FileTable()
    assert len(list(_different(listing, nothing, nothing.rows_of("triton")))) == len(names)


@pytest.mark.parametrize(
    ("family", "paths"),
    [
        ("triton", ["A-C/k", "A/k", "A/l", "AB/k", "alone"]),
        ("deep_gemm", ["cache/a/k", "cache/b/k", "cache/b/l", "other"]),
        ("flashinfer", ["c/cached_ops/m/x", "c/cached_ops/n/x", "c/generated/m/x", "c/generated/n/x", "c/log"]),
        ("tilelang", ["a/b/k", "a/c", "a/d/k", "b"]),
        ("inductor", ["a/x", "b"]),
        ("inductor", [f"t/{'K' * 52}/k", f"t/{'K' * 52}/l", f"t/{'K' * 52}.k", f"t/{'K' * 52}0", "t/k", "t/k.so", "u"]),
    ],
)
def test_entries_are_found_and_never_cut_however_their_files_lie(family: str, paths: list[str]) -> None:
    table = FileTable(a_file(family, path) for path in sorted(paths))
    expected = entries(BY_NAME[family], sorted(paths))
    known = Entries(BY_NAME[family], table.paths, table.rows_of(family))
    assert {entry: [table.paths[row] for row in known.rows(entry)] for entry in expected} == expected
    assert sorted(known.touched(range(len(table)))) == sorted(expected)
    rows = Selection(BY_NAME[family], table, array("I", range(len(table))))
    for size in (1, 2, 3):
        slices = [{table.paths[row] for row in one} for one in rows.slices(size)]
        assert set().union(*slices) == set(paths)
        for members in expected.values():
            assert sum(1 for one in slices if not one.isdisjoint(members)) == 1


def test_files_beside_kernels_of_triton_are_not_gathered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile cache may hold hundreds of thousands, and a list for each of them is what the worker has no memory for."""
    paths = [f"t/{'K' * 52}/k", "t/k", "t/k-1", "t/k.so"]
    table = FileTable(a_file("inductor", path) for path in sorted(paths))
    monkeypatch.setattr(selection, "grouped", None)
    rows = Selection(BY_NAME["inductor"], table, array("I", range(len(table))))
    assert [len(one) for one in rows.slices(1)] == [1, 1, 1, 1]
