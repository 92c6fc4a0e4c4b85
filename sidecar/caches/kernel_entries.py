"""Which rows of a sorted column of paths belong to one kernel entry, without an object for each path.

What an entry is, is said by the family's row in the table; whether it is whole, by `validity`.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from sidecar.caches.families import Family
from sidecar.caches.file_table import Paths
from sidecar.caches.validity import entry_of


class Entries:
    """The entries of one family among the rows of a sorted column of paths."""

    def __init__(self, family: Family, paths: Paths, rows: range) -> None:
        self._family = family
        self._paths = paths
        self._rows = rows
        # A pattern of one group at its beginning names entries by how their paths begin.
        self._by_prefix = not family.unit or (family.unit[0] == "(" and re.compile(family.unit).groups == 1)
        self._known: dict[str, array[int]] | None = None

    def rows(self, entry: str) -> Sequence[int]:
        """Give the rows of an entry, ascending."""
        if not self._by_prefix:
            if self._known is None:
                self._known = grouped(self._family, self._paths, self._rows)
            return self._known.get(entry, ())
        found = []
        for row in range(bisect_left(self._paths, entry, self._rows.start, self._rows.stop), self._rows.stop):
            path = self._paths[row]
            if not path.startswith(entry):
                break
            if entry_of(self._family, path) == entry:
                found.append(row)
        return found

    def touched(self, rows: Iterable[int]) -> Iterator[str]:
        """Name each entry that has one of some rows, once."""
        seen: set[str] = set()
        last = ""
        for row in rows:
            path = self._paths[row]
            entry = entry_of(self._family, path)
            if entry == last or entry in seen:
                continue
            last = entry
            if entry != path:
                seen.add(entry)
            yield entry


def grouped(family: Family, paths: Paths, rows: Iterable[int]) -> dict[str, array[int]]:
    """Group rows by entry."""
    found: dict[str, array[int]] = {}
    for row in rows:
        found.setdefault(entry_of(family, paths[row]), array("I")).append(row)
    return found
