"""Folders in the order of their paths, compressed many at a time: some 15 bytes for a file, and no objects.

What is in a folder is packed by `folder_tree`; nothing is read from a disk here.
"""

from __future__ import annotations

import marshal
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from sidecar.caches.packed_folder import PackedFolder

# Folders in a block: what is unpacked for one look-up, and what is packed anew when one of them changed.
BLOCK = 256
# More takes far longer, and saves little: times and inodes hardly shrink.
LEVEL = 1


class Row(NamedTuple):
    """One folder: its path with a slash at its end (empty for the root), its files, and what its owner notes about it."""

    prefix: str
    folder: PackedFolder
    note: tuple[int, ...] = ()


class Block(NamedTuple):
    """Neighbouring folders in one piece: the path of the first one, the count of their files, and the rest packed."""

    first: str
    files: int
    paths: bytes
    data: bytes

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        """Pack them."""
        paths, data = [(row.prefix, row.note) for row in rows], [row.folder.parts() for row in rows]
        return cls(rows[0].prefix, sum(len(row.folder) for row in rows), _packed(paths), _packed(data))

    def notes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Unpack paths and notes alone, which takes a fifth of the time."""
        found: list[tuple[str, tuple[int, ...]]] = _unpacked(self.paths)
        return found

    def rows(self) -> list[Row]:
        """Unpack them."""
        folders = _unpacked(self.data)
        return [Row(at, PackedFolder(*parts), note) for (at, note), parts in zip(self.notes(), folders, strict=True)]


def _packed(found: list[Any]) -> bytes:
    # These bytes never leave the process, so that what `marshal` is not made for does not matter.
    return zlib.compress(marshal.dumps(found), LEVEL)


def _unpacked(data: bytes) -> list[Any]:
    found: list[Any] = marshal.loads(zlib.decompress(data))
    return found


class FolderBlocks:
    """Folders that are added in the order of their paths, and then only looked at. Not for several threads at once."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._blocks: list[Block] = []
        self._tail: list[Row] = []
        self._near: dict[str, Row] = {}
        self._near_to = -1
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add one."""
        self._tail.append(row)
        if len(self._tail) >= BLOCK:
            self._pack()

    def append_block(self, block: Block) -> None:
        """Add neighbours that are packed already."""
        self._pack()
        self._blocks.append(block)

    def blocks(self) -> Iterator[Block]:
        """Go through all of them in pieces."""
        self._pack()
        return iter(self._blocks)

    def __iter__(self) -> Iterator[Row]:
        for block in self.blocks():
            yield from block.rows()

    @property
    def files(self) -> int:
        """Count the files."""
        return sum(block.files for block in self.blocks())

    def get(self, prefix: str) -> Row | None:
        """Find one by its path; quick for paths that are near each other."""
        self._pack()
        at = bisect_right(self._blocks, prefix, key=lambda block: block.first) - 1
        if at < 0:
            return None
        if at != self._near_to:
            self._near_to, self._near = at, {row.prefix: row for row in self._blocks[at].rows()}
        return self._near.get(prefix)

    def _pack(self) -> None:
        if self._tail:
            self._blocks.append(Block.of(self._tail))
            self._tail = []
