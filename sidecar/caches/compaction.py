"""Move the files of a generation out of many small or mostly dead packs into few: which packs, and the moving.

Old packs stay: other generations and restores under way may need them. No generation is made here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import BinaryIO, cast

from sidecar.caches.file_table import FileTable
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.packing import PACK_BYTES
from sidecar.caches.packs import HEADERS, PackReader, PackWriter, room_for
from sidecar.caches.store import Store
from sidecar.errors import StoreDamaged, StoreFull, StoreUnavailable

# A restore opens every pack: this many round trips more cost about a second on a volume that takes 40 ms for one.
PACKS = 24
# Moving pays when more than this part of what a restore has to read and unpack is of no use to it.
DEAD = 0.5
# With fewer than this many small packs, moving them saves little and is done over again soon.
AT_LEAST = 8
# The most unpacked bytes that one publish moves; what is left goes with a later one.
WORK_BYTES = 512 << 20


class Shelf:
    """What moved out of one pack, sorted by where it lay: offset and size there, new pack and offset."""

    def __init__(self) -> None:
        self.offsets, self.sizes, self.places = array("Q"), array("Q"), array("Q")
        self.packs = array("I")

    def find(self, offset: int, size: int) -> int:
        """Say which of these lay at an offset with a size; -1 when none did. The bytes there are the same then."""
        at = bisect_left(self.offsets, offset)
        while at < len(self.offsets) and self.offsets[at] == offset:
            if self.sizes[at] == size:
                return at
            at += 1
        return -1


class Moved:
    """What moved, by the pack in which it lay, and the packs written for it."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.packs: list[Pack] = []

    def applied(self, files: FileTable) -> FileTable:
        """Give the same files, those that moved in their new place. Any generation's: one may have won meanwhile."""
        return files.with_places(self._places(files)) if self.shelves else files

    def _places(self, files: FileTable) -> Iterator[tuple[int, str, int]]:
        for row in range(len(files)):
            shelf = self.shelves.get(files.pack(row))
            at = shelf.find(files.offsets[row], files.sizes[row]) if shelf else -1
            if shelf and at >= 0:
                yield row, self.packs[shelf.packs[at]].digest, shelf.places[at]


def crowded(manifest: Manifest) -> list[Pack]:
    """Name the packs of a generation whose files should move; none while there are few packs with little dead in them.

    Packs that are large and alive stay as they are, however many there are: a generation may well need them.
    """
    if len(manifest.packs) <= PACKS:
        # Nearly always there is nothing to do, and this much can be said without a look at each file.
        least = sum(manifest.files.sizes) + HEADERS * (len(manifest.files) - len(manifest.files.links))
        if least >= (1 - DEAD) * sum(pack.unpacked for pack in manifest.packs):
            return []
    alive = dict.fromkeys((pack.digest for pack in manifest.packs), 0)
    for digest, size in manifest.files.sizes_by_pack():
        alive[digest] += room_for(size)
    wasted = sum(alive.values()) < (1 - DEAD) * sum(pack.unpacked for pack in manifest.packs)
    if len(manifest.packs) <= PACKS and not wasted:
        return []
    chosen: list[Pack] = []
    work = 0
    for pack in sorted(manifest.packs, key=lambda one: alive[one.digest]):
        room = alive[pack.digest]
        dead = room < (1 - DEAD) * pack.unpacked
        if (dead or room < PACK_BYTES / 2) and (not chosen or work + room <= WORK_BYTES):
            chosen.append(pack)
            work += room
    return chosen if wasted or len(chosen) >= AT_LEAST else []


def move(store: Store, manifest: Manifest) -> Moved:
    """Write the files of crowded packs into new ones, each checked against its digest.

    What can't be read or is not what was published stays where it is. So does the rest when the store is full or
    fails: a publish does without. Raises StoreReadOnly.
    """
    moved = Moved()
    mover = _Mover(store, manifest, crowded(manifest))
    with suppress(StoreFull, StoreUnavailable):
        while mover.has_more:
            pack = store.add_pack(mover.fill)
            mover.shelve(moved.shelves, len(moved.packs))
            moved.packs.append(pack)
    mover.close()
    return moved


class _Mover:
    def __init__(self, store: Store, manifest: Manifest, packs: list[Pack]) -> None:
        self._store = store
        self._table = manifest.files
        self._rows: dict[str, array[int]] = {pack.digest: array("I") for pack in packs}
        for row in range(len(self._table)) if packs else ():
            if self._table.pack(row) in self._rows:
                self._rows[self._table.pack(row)].append(row)
        self._sources = self._read()
        self._next = next(self._sources, None)
        self._written: list[tuple[int, int]] = []

    @property
    def has_more(self) -> bool:
        """Say whether a file waits to be written."""
        return self._next is not None

    def fill(self, stream: BinaryIO) -> Pack:
        """Write the next pack."""
        writer = PackWriter(stream)
        self._written = []
        size = 0
        while self._next is not None and size < PACK_BYTES:
            row, source = self._next
            file = self._table[row]
            stored = cast(BinaryIO, source)
            name = f"{file.family}/{file.path}"
            offset, digest = writer.add_file(name, file.size, file.mtime_ns, file.mode, stored)
            if digest == file.sha256:
                self._written.append((row, offset))
            size += file.size
            self._next = next(self._sources, None)
        return writer.close()

    def shelve(self, shelves: dict[str, Shelf], pack: int) -> None:
        """Take note of what went into the pack that was written last and gets this number."""
        for row, place in self._written:
            shelf = shelves.setdefault(self._table.pack(row), Shelf())
            shelf.offsets.append(self._table.offsets[row])
            shelf.sizes.append(self._table.sizes[row])
            shelf.packs.append(pack)
            shelf.places.append(place)

    def close(self) -> None:
        """Close what is open."""
        self._sources.close()

    def _read(self) -> Generator[tuple[int, _Source]]:
        for digest, rows in self._rows.items():
            try:
                stream = self._store.open_pack(digest)
            except (StoreDamaged, StoreUnavailable):
                continue
            with closing(stream):
                reader = PackReader(stream)
                for row in sorted(rows, key=self._table.offsets.__getitem__):
                    source = _Source(reader.pieces(self._table.offsets[row], self._table.sizes[row]))
                    yield row, source
                    if source.failed:
                        break


class _Source:
    """Hand out the bytes of one stored file; nothing more once its pack can't be read on."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.failed = False

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        if not self._rest and not self.failed:
            try:
                self._rest = next(self._pieces, self._rest)
            except (StoreDamaged, StoreUnavailable):
                self.failed = True
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)
