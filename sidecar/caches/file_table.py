"""The files of a generation column by column: hundreds of thousands of them take some 130 bytes each, and no objects.

What an entry must look like is checked in `manifest`; no file is opened here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import accumulate, count, islice
from operator import add, lt
from typing import Any, NamedTuple, Self, overload

ENCODING, ERRORS = "utf-8", "surrogatepass"
# Rows that are turned into objects at a time when all are gone through.
CHUNK = 512
DIGEST_BYTES = 32
NO_DIGEST = bytes(DIGEST_BYTES)


class StoredFile(NamedTuple):
    """One file or link of a generation.

    `path` is relative to the family's directory; `size` in bytes; `mtime_ns` since the epoch; `mode` permission bits;
    `pack` the digest of the archive that holds it, and `offset` where in the unpacked archive its bytes begin. A link
    has a `link` target and no bytes.
    """

    family: str
    path: str
    size: int
    sha256: str
    mtime_ns: int
    mode: int
    pack: str
    offset: int
    link: str = ""


class Paths(Sequence[str]):
    """Paths in one piece of memory, each ended by a zero byte; bytes compare as the texts do."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("I", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            first, last, _ = row.indices(len(self))
            return self._text[self._ends[first] : self._ends[last]].decode(ENCODING, ERRORS).split("\0")[:-1]
        if row < 0:
            row = range(len(self))[row]
        return self._text[self._ends[row] : self._ends[row + 1] - 1].decode(ENCODING, ERRORS)

    def __iter__(self) -> Iterator[str]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[str]:
        """Go through some of them."""
        for begin in range(first, last, CHUNK):
            yield from self[begin : min(begin + CHUNK, last)]

    def run(self, first: int, last: int) -> bytearray:
        """Give the bytes of some of them: equal ones are the same paths."""
        return self._text[self._ends[first] : self._ends[last]]

    def append(self, path: str) -> None:
        """Add one."""
        self._text += path.encode(ENCODING, ERRORS) + b"\0"
        self._ends.append(len(self._text))

    def extend(self, paths: Sequence[str]) -> None:
        """Add several at once."""
        text = "\0".join((*paths, ""))
        data = text.encode(ENCODING, ERRORS)
        plain = len(data) == len(text)
        sizes = map(len, paths) if plain else (len(path.encode(ENCODING, ERRORS)) for path in paths)
        # Each has a zero byte of its own after it.
        self._ends.extend(map(add, accumulate(sizes), count(len(self._text) + 1)))
        self._text += data

    def copy_from(self, other: Paths, first: int, last: int) -> None:
        """Add some of another's."""
        moved = len(self._text) - other._ends[first]
        self._text += other.run(first, last)
        self._ends.extend(array("I", [end + moved for end in other._ends[first + 1 : last + 1]]))


class FileTable(Sequence[StoredFile]):
    """The files of a generation, in the order they were added; read as a sequence of `StoredFile`."""

    def __init__(self, files: Iterable[StoredFile] = ()) -> None:
        self.paths = Paths()
        self.links: dict[int, str] = {}
        self.sizes, self.mtimes, self.offsets = array("Q"), array("Q"), array("Q")
        self.modes = array("H")
        self._digests = bytearray()
        self._family_column, self._pack_column = array("H"), array("I")
        self._families: dict[str, int] = {}
        self._packs: dict[str, int] = {"": 0}
        self._family_names: list[str] = []
        self._pack_names = [""]
        self._is_ordered = True
        for file in files:
            self.add(file)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, row: int) -> StoredFile: ...

    @overload
    def __getitem__(self, row: slice) -> list[StoredFile]: ...

    def __getitem__(self, row: int | slice) -> StoredFile | list[StoredFile]:
        if isinstance(row, slice):
            first, last, step = row.indices(len(self))
            return [self[one] for one in range(first, last, step)]
        if row < 0:
            row = range(len(self))[row]
        link = self.links.get(row, "")
        return StoredFile(
            self._family_names[self._family_column[row]],
            self.paths[row],
            self.sizes[row],
            "" if link else self.sha256(row),
            self.mtimes[row],
            self.modes[row],
            self._pack_names[self._pack_column[row]],
            self.offsets[row],
            link,
        )

    def __iter__(self) -> Iterator[StoredFile]:
        return self.each(range(len(self)))

    def each(self, rows: Iterable[int]) -> Iterator[StoredFile]:
        """Go through some rows in the order given; those that follow each other cost a third of what single ones do."""
        first = last = 0
        for row in rows:
            if row != last or last - first == CHUNK:
                yield from self._between(first, last)
                first = row
            last = row + 1
        yield from self._between(first, last)

    def _between(self, first: int, last: int) -> Iterator[StoredFile]:
        for row, file in enumerate(map(StoredFile, *self.columns(first, last)), first):
            yield file._replace(sha256="", link=self.links[row]) if row in self.links else file

    def columns(self, first: int, last: int) -> tuple[Sequence[Any], ...]:
        """Give the fields of some rows column by column, in the order of `StoredFile` and without the links."""
        digests = self._digests[first * DIGEST_BYTES : last * DIGEST_BYTES].hex()
        step = 2 * DIGEST_BYTES
        return (
            list(map(self._family_names.__getitem__, self._family_column[first:last])),
            self.paths[first:last],
            self.sizes[first:last],
            [digests[begin : begin + step] for begin in range(0, len(digests), step)],
            self.mtimes[first:last],
            self.modes[first:last],
            list(map(self._pack_names.__getitem__, self._pack_column[first:last])),
            self.offsets[first:last],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(StoredFile.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def sha256(self, row: int) -> str:
        """Give the digest of a file, in hexadecimal."""
        return self._digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES].hex()

    def family(self, row: int) -> str:
        """Name the family of a file."""
        return self._family_names[self._family_column[row]]

    def pack(self, row: int) -> str:
        """Name the pack of a file; empty for a link."""
        return self._pack_names[self._pack_column[row]]

    def sizes_by_pack(self) -> Iterator[tuple[str, int]]:
        """Go through the packs of all files that have one, with the bytes of each file."""
        names = map(self._pack_names.__getitem__, self._pack_column)
        return ((pack, size) for pack, size in zip(names, self.sizes, strict=True) if pack)

    def used_packs(self) -> set[str]:
        """Name the packs that hold any of the files."""
        return {self._pack_names[number] for number in set(self._pack_column)} - {""}

    def families(self) -> Iterator[tuple[str, int, int]]:
        """Yield the families with the first row and the one after the last. Only where `is_ordered`."""
        for name in sorted(self._families):
            rows = self.rows_of(name)
            if rows:
                yield name, rows.start, rows.stop

    def rows_of(self, family: str) -> range:
        """Give the rows of a family. Only where `is_ordered`."""
        first = bisect_left(range(len(self)), family, key=self.family)
        return range(first, bisect_right(range(len(self)), family, first, key=self.family))

    def add(self, file: StoredFile) -> None:
        """Add a file."""
        row = len(self)
        if self._is_ordered and row:
            self._is_ordered = (self.family(row - 1), self.paths[row - 1]) < file[:2]
        if file.link:
            self.links[row] = file.link
        self.paths.append(file.path)
        self.sizes.append(file.size)
        self.mtimes.append(file.mtime_ns)
        self.modes.append(file.mode)
        self.offsets.append(file.offset)
        self._digests += bytes.fromhex(file.sha256) if file.sha256 else NO_DIGEST
        self._family_column.append(self._number_of_family(file.family))
        self._pack_column.append(self.number_of_pack(file.pack))

    def add_columns(
        self,
        families: Sequence[str],
        paths: Sequence[str],
        numbers: tuple[array[int], array[int], array[int], array[int]],
        digests: bytes,
        packs: Sequence[str],
    ) -> None:
        """Add files that are no links; `numbers` are sizes, times, modes and offsets. Nothing is checked."""
        last = (self.family(-1), self.paths[-1]) if len(self) else ("", "")
        if self._is_ordered:
            if min(families) == max(families):
                self._is_ordered = last < (families[0], paths[0]) and all(map(lt, paths, islice(paths, 1, None)))
            else:
                keys = list(zip(families, paths, strict=True))
                self._is_ordered = last < keys[0] and all(map(lt, keys, islice(keys, 1, None)))
        for family in set(families):
            self._number_of_family(family)
        for pack in set(packs):
            self.number_of_pack(pack)
        self._family_column.extend(map(self._families.__getitem__, families))
        self.paths.extend(paths)
        for column, more in zip((self.sizes, self.mtimes, self.modes, self.offsets), numbers, strict=True):
            column.extend(more)
        self._digests += digests
        self._pack_column.extend(map(self._packs.__getitem__, packs))

    @property
    def is_ordered(self) -> bool:
        """Say whether the files are sorted by family and path, none twice."""
        return self._is_ordered

    def in_order(self) -> FileTable:
        """Give the same files sorted by family and path; one that is there twice stays so."""
        if self._is_ordered:
            return self
        return self.taken(sorted(range(len(self)), key=lambda row: (self.family(row), self.paths[row])))

    def taken(self, rows: Iterable[int]) -> FileTable:
        """Give a table of some rows, in the order given."""
        found = self._without_rows()
        first = last = 0
        for row in rows:
            if row != last:
                found._copy_rows(self, first, last)
                first = row
            last = row + 1
        found._copy_rows(self, first, last)
        return found

    def joined(self, gone: Iterable[int], new: FileTable) -> FileTable:
        """Give these files but those in `gone`, ascending, and the new ones, which replace those of the same path.

        Both are ordered, and so is what comes out.
        """
        if not len(self):
            return new
        found, position = self._without_rows(), 0
        leaving = iter(gone)
        left = next(leaving, len(self))

        def keep(until: int) -> None:
            nonlocal position, left
            while left < until:
                found._copy_rows(self, position, left)
                position, left = left + 1, next(leaving, len(self))
            found._copy_rows(self, position, until)
            position = max(position, until)

        for file in new:
            at = self._place(file, position)
            keep(at)
            if at < len(self) and (self.family(at), self.paths[at]) == file[:2]:
                position = at + 1
                if left == at:
                    left = next(leaving, len(self))
            found.add(file)
        keep(len(self))
        return found

    def row_of(self, family: str, path: str) -> int:
        """Find a file; -1 when there is none. Only where `is_ordered`."""
        rows = self.rows_of(family)
        at = bisect_left(self.paths, path, rows.start, rows.stop)
        return at if at < rows.stop and self.paths[at] == path else -1

    def with_places(self, places: Iterable[tuple[int, str, int]]) -> FileTable:
        """Give a table in which some rows lie elsewhere: row, pack and offset. The other columns are shared."""
        found = copy(self)
        found._pack_column, found.offsets = self._pack_column[:], self.offsets[:]
        found._packs, found._pack_names = dict(self._packs), list(self._pack_names)
        for row, pack, offset in places:
            found._pack_column[row] = found.number_of_pack(pack)
            found.offsets[row] = offset
        return found

    def number_of_pack(self, pack: str) -> int:
        """Give the number that stands for a pack in this table."""
        if pack not in self._packs:
            self._packs[pack] = len(self._pack_names)
            self._pack_names.append(pack)
        return self._packs[pack]

    def set_pack(self, first: int, pack: str) -> None:
        """Say which pack holds the files from a row on; links are in none."""
        number = self.number_of_pack(pack)
        for row in range(first, len(self)):
            if row not in self.links:
                self._pack_column[row] = number

    def _number_of_family(self, family: str) -> int:
        if family not in self._families:
            self._families[family] = len(self._family_names)
            self._family_names.append(family)
        return self._families[family]

    def _place(self, file: StoredFile, first: int) -> int:
        """Say before which row a file belongs, at `first` or later."""
        return bisect_left(range(len(self)), file[:2], first, key=lambda row: (self.family(row), self.paths[row]))

    def _without_rows(self) -> Self:
        found = type(self)()
        found._families, found._family_names = dict(self._families), list(self._family_names)
        found._packs, found._pack_names = dict(self._packs), list(self._pack_names)
        return found

    def _copy_rows(self, other: FileTable, first: int, last: int) -> None:
        """Add some rows of the table that this one's names of families and packs were taken from."""
        if first >= last:
            return
        row = len(self)
        if self._is_ordered:
            before = (self.family(row - 1), self.paths[row - 1]) if row else ("", "")
            self._is_ordered = other._is_ordered and before < (other.family(first), other.paths[first])
        near = range(first, last) if last - first < len(other.links) else other.links
        self.links.update(
            {row + one - first: other.links[one] for one in near if first <= one < last and one in other.links}
        )
        self.paths.copy_from(other.paths, first, last)
        for name in ("sizes", "mtimes", "modes", "offsets", "_family_column", "_pack_column"):
            getattr(self, name).extend(getattr(other, name)[first:last])
        self._digests += other._digests[first * DIGEST_BYTES : last * DIGEST_BYTES]
