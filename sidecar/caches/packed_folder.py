"""The files of one folder in three pieces of memory, without an object for each.

Which folders there are is told by `folder_tree`; nothing is read from a disk here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Self

_STAMP = Struct("<QqQI")
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

    def parts(self) -> tuple[bytes, bytes, tuple[tuple[str, str], ...]]:
        """Give what it is made of."""
        return self.names_, self.stamps, self.links

    def entry(self, name: str) -> Entry | None:
        """Find a file by its name."""
        try:
            row = self.names().index(name)
        except ValueError:
            return None
        link = next((target for linked, target in self.links if linked == name), "")
        return Entry._make((*_STAMP.unpack_from(self.stamps, row * _STAMP.size), link))

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
