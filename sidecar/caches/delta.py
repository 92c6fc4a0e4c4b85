"""What a publisher adds to a generation that is already there: a union by kernel entry, never less than before.

Entries are taken whole, because their files belong together: ninja's log fits only the objects it was written with.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sidecar.caches.families import BY_NAME, Family, is_restless
from sidecar.caches.file_table import CHUNK as RUN
from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.kernel_entries import Entries
from sidecar.caches.listing import Listing
from sidecar.caches.snapshot import Snapshot

CHUNK = 1024 * 1024


class Added:
    """Files of one family to add, entry by entry, as rows of its listing; and the parent's rows that each replaces."""

    def __init__(self) -> None:
        self.rows = array("I")
        self._ends = array("I")
        self._replaced: dict[int, Sequence[int]] = {}

    def add(self, rows: Sequence[int], replaced: Sequence[int]) -> None:
        """Add files of one entry, and say which of the parent's files go for them."""
        if replaced:
            self._replaced[len(self._ends)] = replaced
        self.rows.extend(rows)
        self._ends.append(len(self.rows))

    def entries(self) -> Iterator[tuple[array[int], Sequence[int]]]:
        """Yield for each entry the rows to add and those of the parent that go for them."""
        begin = 0
        for number, end in enumerate(self._ends):
            yield self.rows[begin:end], self._replaced.get(number, ())
            begin = end


# What to add, by family.
Delta = dict[str, Added]


class Digests:
    """Digests of live files, each computed once: a publisher that loses a race compares again."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[tuple[str, int], str] = {}

    def of(self, family: Family, row: int) -> str:
        """Return the SHA-256 of a live file, empty when it can't be read."""
        if (family.name, row) not in self._known:
            self._known[family.name, row] = _digest(self._snapshot.place(family, row))
        return self._known[family.name, row]


def compute(
    snapshot: Snapshot,
    parent: FileTable,
    origin: Callable[[], FileTable],
    digests: Digests,
    is_whole: Callable[[Family, Sequence[int]], bool],
    own: Collection[str] = (),
) -> Delta:
    """Compare the snapshot with the newest generation, and with the one this live cache was restored from.

    An entry that the parent lacks is added. One that both have and that differs stays the parent's, unless the engine
    rebuilt what was restored from just this version (then the stored one is of no use), or changed what an earlier
    publish of this live cache put into one of its `own` packs, or the live one has more files. `origin` and `is_whole`
    are asked about few entries: one reads a manifest, the other opens files. Both tables are ordered.
    """
    delta: Delta = {}
    for name, listing in snapshot.listings.items():
        family, stored = BY_NAME[name], parent.rows_of(name)
        parents = Entries(family, parent.paths, stored)
        added = Added()
        for entry in snapshot.entries(family).touched(_different(listing, parent, stored)):
            rows, theirs = snapshot.publishable(family, entry), parents.rows(entry)
            chosen = _Choice(family, listing, rows, [parent[row] for row in theirs], origin, digests, own).rows()
            if chosen and is_whole(family, rows):
                added.add(chosen, theirs if len(chosen) == len(rows) else ())
        if added.rows:
            delta[name] = added
    return delta


def _different(listing: Listing, table: FileTable, stored: range) -> Iterator[int]:
    """Yield the live files that a generation lacks or has with another size, time or target; `stored` are its rows.

    Nearly always nothing differs, and columns are compared many times as fast as files.
    """
    row, other = 0, stored.start
    while row < len(listing) and other < stored.stop:
        more = min(RUN, len(listing) - row, stored.stop - other)
        end = row + more
        if _is_same_run(listing, table, row, other, more):
            row, other = end, other + more
        while row < end and other < stored.stop:
            ours, theirs = listing.paths[row], table.paths[other]
            if ours < theirs or (ours == theirs and not _is_same(listing, table, row, other)):
                yield row
            row, other = row + (ours <= theirs), other + (ours >= theirs)
    yield from range(row, len(listing))


def _is_same_run(listing: Listing, table: FileTable, row: int, other: int, count: int) -> bool:
    end, until = row + count, other + count
    return (
        listing.mtimes[row:end] == table.mtimes[other:until]
        and listing.sizes[row:end] == table.sizes[other:until]
        and listing.paths.run(row, end) == table.paths.run(other, until)
        and _has_none(listing.links, row, end)
        and _has_none(table.links, other, until)
    )


def _has_none(links: Mapping[int, str], row: int, end: int) -> bool:
    return not links or links.keys().isdisjoint(range(row, end))


def _is_same(listing: Listing, table: FileTable, row: int, other: int) -> bool:
    if row in listing.links or other in table.links:
        return listing.links.get(row) == table.links.get(other)
    return listing.sizes[row] == table.sizes[other] and listing.mtimes[row] == table.mtimes[other]


def came_with(table: FileTable, family: Family, listing: Listing, rows: Sequence[int]) -> bool:
    """Say whether any of some live files is one of a generation: restored files keep their times to the nanosecond.

    The table is ordered. Links have no time that says something.
    """
    for row in rows:
        other = table.row_of(family.name, listing.paths[row])
        if other >= 0 and other not in table.links and _is_same(listing, table, row, other):
            return True
    return False


class _Choice:
    """Decide about one entry."""

    def __init__(
        self,
        family: Family,
        listing: Listing,
        rows: Sequence[int],
        stored: Sequence[StoredFile],
        origin: Callable[[], FileTable],
        digests: Digests,
        own: Collection[str],
    ) -> None:
        self._family = family
        self._live: Mapping[str, int] = {listing.paths[row]: row for row in rows}
        self._listing = listing
        self._stored: Mapping[str, StoredFile] = {file.path: file for file in stored}
        self._origin = origin
        self._digests = digests
        self._own = own

    def rows(self) -> list[int]:
        """Name the live files of the entry to add: all of them, the extra ones, or none."""
        live = list(self._live.values())
        extra = [row for path, row in self._live.items() if path not in self._stored]
        if len(extra) == len(live):
            return live
        if all(self._same(path, row) for path, row in self._live.items() if path in self._stored):
            return extra
        covers = self._live.keys() >= self._stored.keys()
        return live if covers and (extra or self._is_rebuilt()) else []

    def _is_rebuilt(self) -> bool:
        """Say whether the parent's version is the one this live cache was restored from, or that was published from it."""
        # Links lie in no pack: they are whose files they go with.
        told = {path: file for path, file in self._stored.items() if not file.link} or self._stored
        others = [path for path, file in told.items() if file.pack not in self._own]
        if not others:
            return True
        origin = self._origin()
        found = {path: origin.row_of(self._family.name, path) for path in others}
        return all(row >= 0 and origin[row].sha256 == self._stored[path].sha256 for path, row in found.items())

    def _same(self, path: str, row: int) -> bool:
        theirs, link = self._stored[path], self._listing.links.get(row, "")
        if is_restless(self._family, path):
            return True
        if link or theirs.link:
            return link == theirs.link
        if self._listing.sizes[row] != theirs.size:
            return False
        # Restored files keep their times to the nanosecond, so equal times mean equal bytes.
        return self._listing.mtimes[row] == theirs.mtime_ns or self._digests.of(self._family, row) == theirs.sha256


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while data := stream.read(CHUNK):
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()
