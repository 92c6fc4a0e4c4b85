"""Which files of a generation are wanted, or staged: rows of its table, family by family.

Why a file is wanted or dropped is decided in `restore`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sidecar.caches.families import Family
from sidecar.caches.file_table import FileTable
from sidecar.caches.kernel_entries import grouped
from sidecar.caches.validity import entry_of


def paths_of(table: FileTable, rows: array[int]) -> Iterator[str]:
    """Go through the paths of some ascending rows; mostly they are all of a family, which lie side by side."""
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        return table.paths.between(rows[0], rows[-1] + 1)
    return map(table.paths.__getitem__, rows)


@dataclass
class Selection:
    """Some files of one family, as ascending rows of an ordered table."""

    family: Family
    table: FileTable
    rows: array[int]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """What the files take."""
        return sum(map(self.table.sizes.__getitem__, self.rows))

    def paths(self) -> Iterator[str]:
        """Go through their paths."""
        return paths_of(self.table, self.rows)

    def links(self) -> array[int]:
        """Give the rows that are links."""
        return array("I", [row for row in self.rows if row in self.table.links]) if self.table.links else array("I")

    def without(self, gone: Iterable[int]) -> Selection:
        """Leave out some rows."""
        left_out = frozenset(gone)
        if not left_out:
            return self
        return Selection(self.family, self.table, array("I", [row for row in self.rows if row not in left_out]))

    def of_entries(self, entries: frozenset[str]) -> list[int]:
        """Give the rows that belong to some kernel entries."""
        return [row for row in self.rows if entry_of(self.family, self.table.paths[row]) in entries]

    def slices(self, files: int) -> Iterator[array[int]]:
        """Cut into pieces of at least so many files, the last one aside, none of which ends within an entry."""
        found = array("I")
        for rows in self._entries():
            found.extend(rows)
            if len(found) >= files:
                yield found
                found = array("I")
        if found:
            yield found

    def _entries(self) -> Iterator[Iterable[int]]:
        """Yield the rows of each entry; where all lie side by side, nothing is gathered."""
        if self.family.unit is None:
            return ((row,) for row in self.rows)
        ends = self._ends()
        if ends is None:
            return iter(grouped(self.family, self.table.paths, self.rows).values())
        return (self.rows[begin:end] for begin, end in zip((0, *ends), ends, strict=False))

    def _ends(self) -> array[int] | None:
        """Say where entries end among the rows; None when the files of some are apart."""
        ends, last = array("I"), ""
        for at, path in enumerate(self.paths()):
            name = f"{entry_of(self.family, path)}/"
            if name != last:
                # Names that only ever grow can't come back, nor do those of folders, whose files lie side by side.
                if name < last and not self.family.one_piece:
                    return None
                if at:
                    ends.append(at)
                last = name
        ends.append(len(self.rows))
        return ends
