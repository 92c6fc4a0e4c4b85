"""Bring the files of a generation from the store into a staging area, in several processes where that helps.

Which files are wanted is decided in `restore`, as is what becomes of those that could not be had.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.forks import Lost, spread
from sidecar.caches.landing import Landing
from sidecar.caches.packs import PackReader
from sidecar.caches.selection import Selection
from sidecar.caches.staging import StagingArea
from sidecar.caches.store import Store
from sidecar.errors import StoreDamaged, StoreUnavailable

# Below this many bytes a second process costs more than it brings (a fork takes some 5 ms).
WORTH_BYTES = 8 << 20
# A process tells how far it is after this many files or bytes.
NOTE_FILES = 50
NOTE_BYTES = 8 << 20
# Making a file takes about as long as unpacking, digesting and writing this many bytes.
FILE_COST = 16 << 10

# The reason of files whose process died: of a bug, or because memory ran out.
LOST = "lost"

Done = Callable[[StoredFile], None]
# Reasons by family and row of its table.
Bad = dict[str, dict[int, str]]


@dataclass(frozen=True)
class _Share:
    """The wanted files of one pack, in the order in which they lie there."""

    pack: str
    table: FileTable
    rows: array[int]

    @property
    def size(self) -> int:
        return sum(map(self.table.sizes.__getitem__, self.rows))


class Unpacking:
    """Stage the files of some packs, each checked against its digest.

    `on_file` is called for each staged file when the work is done in this process, as with `jobs` 1; `on_note` for
    some files and bytes that were staged since the last call. With a `landing`, packs come from there.
    """

    def __init__(
        self,
        store: Store,
        area: StagingArea,
        jobs: int,
        on_file: Done,
        on_note: Callable[[int, int], None],
        landing: Landing | None = None,
    ) -> None:
        self._packs: Store | Landing = landing or store
        self._landing = landing
        self._area = area
        self._jobs = jobs
        self._on_file = on_file
        self._on_note = on_note

    def run(self, selections: Iterable[Selection]) -> Bad:
        """Stage files that are no links; returns those that could not be had, with reasons.

        Raises OSError of the live cache's disk.
        """
        shares = sorted(_shares(selections), key=lambda share: (not self._is_near(share), -_cost(share)))
        total = sum(share.size for share in shares)
        jobs = min(self._jobs, len(shares)) if total >= WORTH_BYTES else 1
        bad: Bad = {}
        if self._landing is not None:
            self._landing.start(share.pack for share in shares)
        for number, found in self._results(shares, jobs):
            if self._landing is not None:
                self._landing.done(shares[number].pack)
            table, rows = shares[number].table, shares[number].rows
            for position, reason in found.items():
                row = rows[int(position)]
                bad.setdefault(table.family(row), {})[row] = reason
        return bad

    def _is_near(self, share: _Share) -> bool:
        """Say whether its pack has been on its way for a while: such a one is here first."""
        return self._landing is not None and self._landing.is_early(share.pack)

    def _results(self, shares: list[_Share], jobs: int) -> Iterable[tuple[int, Mapping[Any, str]]]:
        if jobs < 2:
            for number, share in enumerate(shares):
                yield number, self._unpack(share, self._on_file, self._on_note)
            return

        def work(number: int, note: Callable[[Any], None]) -> dict[int, str]:
            return self._unpack(shares[number], lambda _file: None, lambda files, size: note([files, size]))

        for number, found in spread(range(len(shares)), jobs, work, lambda note: self._on_note(*note)):
            if isinstance(found, Lost):
                share = shares[number]
                self._area.drop_files(share.table.each(share.rows))
                yield number, dict.fromkeys(range(len(share.rows)), LOST)
            else:
                yield number, found

    def _unpack(self, share: _Share, done: Done, note: Callable[[int, int], None]) -> dict[int, str]:
        """Stage the files of one pack; returns what could not be had, by its place in the share."""
        bad: dict[int, str] = {}
        position = count = size = 0
        try:
            with closing(self._packs.open_pack(share.pack)) as stream:
                reader = PackReader(stream)
                for file in share.table.each(share.rows):
                    # Most files are small and lie in what is unpacked already; they need no loop.
                    whole = reader.at_hand(file.offset, file.size)
                    if (
                        self._area.write(file, reader.pieces(file.offset, file.size))
                        if whole is None
                        else self._area.write_whole(file, whole)
                    ):
                        count, size = count + 1, size + file.size
                        done(file)
                    else:
                        bad[position] = "digest"
                    position += 1
                    if count == NOTE_FILES or size >= NOTE_BYTES:
                        note(count, size)
                        count = size = 0
        except (StoreDamaged, StoreUnavailable) as error:
            reason = "pack" if isinstance(error, StoreDamaged) else "unreadable"
            bad.update(dict.fromkeys(range(position, len(share.rows)), reason))
        note(count, size)
        return bad


def _shares(selections: Iterable[Selection]) -> list[_Share]:
    """Sort files by pack; a generation's packs are its own, so its table says where they lie."""
    found: dict[tuple[int, str], _Share] = {}
    for selection in selections:
        table = selection.table
        for row in selection.rows:
            if row not in table.links:
                key = (id(table), table.pack(row))
                if key not in found:
                    found[key] = _Share(key[1], table, array("I"))
                found[key].rows.append(row)
    return [
        _Share(share.pack, share.table, array("I", sorted(share.rows, key=share.table.offsets.__getitem__)))
        for share in found.values()
    ]


def _cost(share: _Share) -> int:
    """Say how much work a share is: the longest goes first, so that all processes end at about the same time."""
    return share.size + FILE_COST * len(share.rows)
