"""The files below one directory, packed folder by folder: hundreds of thousands take some 60 bytes each, and no objects.

What they are compared for is decided in `scan`; nothing is read from a disk here.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Self

_STAMP = Struct("<QqQI")
#: The latest time that an entry may have, in ns since the epoch; the earliest is as far before it.
LATEST_NS = (1 << 63) - 1
_ENCODING, _ERRORS = "utf-8", "surrogatepass"


class Entry(NamedTuple):
    """One file or link: size in bytes, modification time in ns, inode, full mode, target of a link (else empty)."""

    size: int
    mtime_ns: int
    inode: int
    mode: int
    link: str = ""


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """The files and links of one folder, in the order of their names, without its sub-folders. Equal ones are the same."""

    names_: bytes = b""
    stamps: bytes = b""
    links: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, files: Iterable[tuple[str, Entry]]) -> Self:
        """Pack entries by name."""
        ordered = sorted(files)
        return cls(
            "\0".join(name for name, _ in ordered).encode(_ENCODING, _ERRORS),
            b"".join(_STAMP.pack(*entry[:4]) for _, entry in ordered),
            tuple((name, entry.link) for name, entry in ordered if entry.link),
        )

    def __len__(self) -> int:
        return len(self.stamps) // _STAMP.size

    def names(self) -> list[str]:
        """List the names."""
        return self.names_.decode(_ENCODING, _ERRORS).split("\0") if self.stamps else []

    def entries(self) -> Iterator[Entry]:
        """Go through the entries, in the order of the names."""
        if not self.links:
            return (Entry._make((*stamp, "")) for stamp in _STAMP.iter_unpack(self.stamps))
        links = dict(self.links)
        stamps = _STAMP.iter_unpack(self.stamps)
        return (Entry._make((*stamp, links.get(name, ""))) for name, stamp in zip(self.names(), stamps, strict=True))

    def items(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """Go through the files by path; `prefix` is the folder's own, with a slash at its end, or empty."""
        return zip((prefix + name for name in self.names()), self.entries(), strict=True)

    def bytes(self) -> int:
        """Sum the sizes, in bytes."""
        return sum(stamp[0] for stamp in _STAMP.iter_unpack(self.stamps))


class FolderTree(Mapping[str, Entry]):
    """Entries by path relative to one directory. `folders` maps each folder's path, with a slash at its end, to its files."""

    __slots__ = ("_count", "folders")

    def __init__(self, folders: Mapping[str, PackedFolder]) -> None:
        self.folders = {prefix: folder for prefix, folder in folders.items() if folder.stamps}
        self._count = sum(map(len, self.folders.values()))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (prefix + name for prefix, folder in self.folders.items() for name in folder.names())

    def __getitem__(self, path: str) -> Entry:
        folder, slash, name = path.rpartition("/")
        packed = self.folders[folder + slash]
        try:
            row = packed.names().index(name)
        except ValueError:
            raise KeyError(path) from None
        link = next((target for linked, target in packed.links if linked == name), "")
        return Entry._make((*_STAMP.unpack_from(packed.stamps, row * _STAMP.size), link))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FolderTree):
            return self.folders == other.folders
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
        for prefix, folder in self.folders.items():
            if other.folders.get(prefix) != folder:
                found.update(folder.items(prefix))
        return found


class _Items(ItemsView[str, Entry]):
    _mapping: FolderTree

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        for prefix, folder in self._mapping.folders.items():
            yield from folder.items(prefix)


class _Values(ValuesView[Entry]):
    _mapping: FolderTree

    def __iter__(self) -> Iterator[Entry]:
        for folder in self._mapping.folders.values():
            yield from folder.entries()
