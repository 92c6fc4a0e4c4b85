"""Move the files of a generation out of many small or mostly dead packs into few: which packs, and the moving.

Old packs stay: other generations and restores under way may need them. No generation is made here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from sidecar.caches.manifest import Manifest, Pack, StoredFile
from sidecar.caches.packing import PACK_BYTES
from sidecar.caches.packs import PackReader, PackWriter, room_for
from sidecar.caches.store import DirectoryStore
from sidecar.errors import StoreDamaged, StoreFull, StoreUnavailable

# A restore opens every pack: this many round trips more cost about a second on a volume that takes 40 ms for one.
PACKS = 24
# Moving pays when more than this part of what a restore has to read and unpack is of no use to it.
DEAD = 0.5
# With fewer than this many small packs, moving them saves little and is done over again soon.
AT_LEAST = 8
# The most unpacked bytes that one publish moves; what is left goes with a later one.
WORK_BYTES = 512 << 20


@dataclass
class Moved:
    """Where files lie now, by where they lay, and the packs written for them."""

    files: dict[StoredFile, StoredFile] = field(default_factory=dict)
    packs: list[Pack] = field(default_factory=list)


def crowded(manifest: Manifest) -> list[Pack]:
    """Name the packs of a generation whose files should move; none while there are few packs with little dead in them.

    Packs that are large and alive stay as they are, however many there are: a generation may well need them.
    """
    alive = dict.fromkeys((pack.digest for pack in manifest.packs), 0)
    for file in manifest.files:
        if file.pack:
            alive[file.pack] += room_for(file.size)
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


def move(store: DirectoryStore, manifest: Manifest) -> Moved:
    """Write the files of crowded packs into new ones, each checked against its digest.

    What can't be read or is not what was published stays where it is. So does the rest when the store is full or
    fails: a publish does without. Raises StoreReadOnly.
    """
    moved = Moved()
    mover = _Mover(store, manifest, crowded(manifest))
    with suppress(StoreFull, StoreUnavailable):
        while mover.has_more:
            pack = store.add_pack(mover.fill)
            moved.packs.append(pack)
            moved.files.update({old: new._replace(pack=pack.digest) for old, new in mover.written.items()})
    mover.close()
    return moved


class _Mover:
    def __init__(self, store: DirectoryStore, manifest: Manifest, packs: list[Pack]) -> None:
        self._store = store
        self._files: dict[str, list[StoredFile]] = {pack.digest: [] for pack in packs}
        for file in manifest.files:
            if file.pack in self._files:
                self._files[file.pack].append(file)
        self._sources = self._read()
        self._next = next(self._sources, None)
        self.written: dict[StoredFile, StoredFile] = {}

    @property
    def has_more(self) -> bool:
        """Say whether a file waits to be written."""
        return self._next is not None

    def fill(self, stream: BinaryIO) -> Pack:
        """Write the next pack."""
        writer = PackWriter(stream)
        self.written = {}
        size = 0
        while self._next is not None and size < PACK_BYTES:
            file, source = self._next
            stored = cast(BinaryIO, source)
            name = f"{file.family}/{file.path}"
            offset, digest = writer.add_file(name, file.size, file.mtime_ns, file.mode, stored)
            if digest == file.sha256:
                self.written[file] = file._replace(offset=offset)
            size += file.size
            self._next = next(self._sources, None)
        return writer.close()

    def close(self) -> None:
        """Close what is open."""
        self._sources.close()

    def _read(self) -> Generator[tuple[StoredFile, _Source]]:
        for digest, files in self._files.items():
            try:
                stream = self._store.open_pack(digest)
            except (StoreDamaged, StoreUnavailable):
                continue
            with closing(stream):
                reader = PackReader(stream)
                for file in sorted(files, key=lambda one: one.offset):
                    source = _Source(reader.pieces(file.offset, file.size))
                    yield file, source
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
