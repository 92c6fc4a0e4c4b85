"""The files below one directory: hundreds of thousands take some 15 bytes each, and no objects.

What they are compared for is decided in `scan`; nothing is read from a disk here.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import zip_longest

from sidecar.caches.folder_blocks import FolderBlocks, Row
from sidecar.caches.packed_folder import Entry, PackedFolder


class FolderTree(Mapping[str, Entry]):
    """Entries by path relative to one directory.

    `folders` are given in the order of their paths, which have a slash at their end. Not for several threads at once.
    """

    __slots__ = ("_count", "folders")

    def __init__(self, folders: Iterable[tuple[str, PackedFolder]]) -> None:
        self.folders = FolderBlocks(Row(prefix, folder) for prefix, folder in folders if folder.stamps)
        self._count = self.folders.files

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (row.prefix + name for row in self.folders for name in row.folder.names())

    def __getitem__(self, path: str) -> Entry:
        folder, slash, name = path.rpartition("/")
        row = self.folders.get(folder + slash)
        entry = row.folder.entry(name) if row else None
        if entry is None:
            raise KeyError(path)
        return entry

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FolderTree):
            return self._count == other._count and all(a == b for a, b in zip_longest(self.folders, other.folders))
        return dict(self.items()) == dict(other.items()) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> ItemsView[str, Entry]:
        """Go through paths and entries without a look-up for each."""
        return _Items(self)

    def values(self) -> ValuesView[Entry]:
        """Go through the entries without a look-up for each."""
        return _Values(self)

    def unlike(self, other: FolderTree) -> dict[str, Entry]:
        """Give the entries of those folders that the other tree has not, or not with the same files."""
        found: dict[str, Entry] = {}
        for row in self.folders:
            if other.folders.get(row.prefix) != row:
                found.update(row.folder.items(row.prefix))
        return found


class _Items(ItemsView[str, Entry]):
    _mapping: FolderTree

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        for row in self._mapping.folders:
            yield from row.folder.items(row.prefix)


class _Values(ValuesView[Entry]):
    _mapping: FolderTree

    def __iter__(self) -> Iterator[Entry]:
        for row in self._mapping.folders:
            yield from row.folder.entries()
