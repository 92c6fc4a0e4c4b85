"""A packed tree tells the same as a plain mapping of paths to entries."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.caches import folder_blocks
from sidecar.caches.folder_tree import FolderTree
from sidecar.caches.packed_folder import Entry, PackedFolder
from sidecar.caches.scan import scan_tree

_NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=4)
_ENTRIES = st.builds(
    Entry,
    st.integers(0, 2**63),
    st.integers(-(2**62), 2**62),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**17),
    st.sampled_from(["", "x", "a/b"]),
)


def packed(files: dict[str, Entry]) -> FolderTree:
    folders: dict[str, list[tuple[str, Entry]]] = {}
    for path, entry in files.items():
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, []).append((name, entry))
    return FolderTree((prefix, PackedFolder.of(each)) for prefix, each in sorted(folders.items()))


@given(st.dictionaries(st.builds("/".join, st.lists(_NAMES, min_size=1, max_size=3)), _ENTRIES, max_size=12))
def test_a_packed_tree_is_the_mapping_it_was_made_of(files: dict[str, Entry]):
    tree = packed(files)
    assert len(tree) == len(files)
    assert dict(tree.items()) == files
    assert sorted(tree) == sorted(files)
    assert {path: tree[path] for path in files} == files
    assert sorted(tree.values()) == sorted(files.values())
    assert sum(row.folder.bytes() for row in tree.folders) == sum(entry.size for entry in files.values())


@given(
    st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e/f/g"]), _ENTRIES),
    st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e/f/g"]), _ENTRIES),
)
def test_what_is_unlike_holds_every_difference(one: dict[str, Entry], other: dict[str, Entry]):
    here, there = packed(one), packed(other)
    assert (here == there) == (one == other)
    differing = {path for path in {*one, *other} if one.get(path) != other.get(path)}
    assert differing <= {*here.unlike(there), *there.unlike(here)}
    assert here.unlike(there).items() <= one.items()


@pytest.mark.parametrize("path", ["missing", "a/missing", "nowhere/a", ""])
def test_a_path_that_is_not_there_is_a_key_error(path: str):
    tree = packed({"a/b": Entry(1, 2, 3, 4)})
    assert path not in tree
    with pytest.raises(KeyError):
        tree[path]


def test_names_that_are_no_text_survive(tmp_path: Path):
    name = os.fsdecode(b"\xff\xfe.so")
    (tmp_path / name).write_bytes(b"abc")
    tree = scan_tree(tmp_path)
    assert (list(tree), tree[name].size) == ([name], 3)


def test_a_tree_of_many_folders_finds_each_in_its_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_blocks, "BLOCK", 3)
    files = {f"{folder}/k": Entry(number, 2, 3, 4) for number, folder in enumerate(["a", "a-b", "a/b", *"cdefghi"])}
    tree = packed(files)
    assert len(list(tree.folders.blocks())) == 4
    assert {path: tree[path] for path in files} == files
    assert tree == packed(files)
    assert [row.prefix for row in tree.folders] == sorted(row.prefix for row in tree.folders)


def test_folders_come_in_the_order_of_their_paths_whatever_a_disk_says(tmp_path: Path):
    for path in ("b/x", "a/b/x", "a-b/x", "a/x", "c", "a.b/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert [row.prefix for row in scan_tree(tmp_path).folders] == ["", "a-b/", "a.b/", "a/", "a/b/", "b/"]


def test_a_file_takes_less_than_twenty_bytes():
    names = ("k.cubin", "k.json", "k.ptx", "k.ttgir", "__grp__k.json")
    tracemalloc.start()
    try:
        tree = FolderTree(
            (
                f"{number * 7919:052X}/",
                PackedFolder.of((name, Entry(1000 + number, 1_700_000_000_123 * number, 50 + number, 33188)) for name in names),
            )
            for number in range(2000)
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tree) == 10_000
    assert kept < 20 * len(tree)
    assert peak < 1_000_000
