"""Write the packs of a publisher: what is new in a live cache, and files that move together from packs of the store.

Which files are new is decided in `delta`, and when files move in `compaction`; no generation is made here.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO

from sidecar.caches.delta import Delta
from sidecar.caches.families import BY_NAME, Family
from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.live_file import LiveFile
from sidecar.caches.manifest import Pack
from sidecar.caches.packs import PackWriter
from sidecar.caches.publish_messages import Progress
from sidecar.caches.snapshot import Snapshot, unchanged
from sidecar.caches.store import Store

# Unpacked bytes of one pack: enough packs of 1 GB to share among four processes, few enough files in the store.
PACK_BYTES = 64 << 20

Batch = list[tuple[Family, "array[int]"]]


class Packed:
    """What one publisher put into packs, and which rows of the snapshot's listings went in whole."""

    def __init__(self, taken: Snapshot) -> None:
        self.packs: list[Pack] = []
        self.files = FileTable()
        # Where a live file lies in `files`, counted from 1.
        self._places = {name: array("I", bytes(4 * len(listing))) for name, listing in taken.listings.items()}

    @property
    def bytes(self) -> int:
        """What the packs take in the store."""
        return sum(pack.bytes for pack in self.packs)

    def add(self, row: int, file: StoredFile) -> None:
        """Take note of a live file that was packed."""
        self.files.add(file)
        self._places[file.family][row] = len(self.files)

    def holds(self, family: str, row: int) -> bool:
        """Say whether a live file went in whole."""
        return self._places[family][row] > 0

    def forget(self, family: str, row: int) -> None:
        """Leave out a live file that was packed."""
        self._places[family][row] = 0

    def new(self, delta: Delta) -> FileTable:
        """Give the files of a delta that went in whole, ordered."""
        rows = array("I")
        for name, added in sorted(delta.items()):
            places = self._places[name]
            rows.extend(places[row] - 1 for row in added.rows if places[row])
        return (self.files if len(rows) == len(self.files) else self.files.taken(rows)).in_order()

    def gone(self, delta: Delta) -> list[int]:
        """Name the parent's files that go because their entry was packed anew; those of unstable entries stay."""
        return sorted(
            row
            for name, added in delta.items()
            for rows, replaced in added.entries()
            if self.holds(name, rows[0])
            for row in replaced
        )


class Packer:
    """Pack the new files of a snapshot, small ones together, in the order of families, entries and paths.

    Files of one entry lie in one pack, unless they are larger than a pack. Raises OSError of the live cache and the
    store's errors.
    """

    def __init__(self, store: Store, taken: Snapshot, on_progress: Callable[[Progress], None]) -> None:
        self._store = store
        self._taken = taken
        self._on_progress = on_progress
        self._packed = Packed(taken)
        self._done = self._total = 0

    def pack(self, delta: Delta, skipped: Counter[str]) -> Packed:
        """Write the packs; entries that changed meanwhile are left out and counted in `skipped`."""
        self._total = sum(self._size(family, rows) for family, rows in _entries(delta))
        for batch in self._batches(delta):
            first = len(self._packed.files)
            pack = self._store.add_pack(lambda stream, batch=batch: self._fill(stream, batch))  # type: ignore[misc]
            self._packed.packs.append(pack)
            self._packed.files.set_pack(first, pack.digest)
        for family, rows in _entries(delta):
            self._forget_unstable(family, rows, skipped)
        return self._packed

    def _size(self, family: Family, rows: array[int]) -> int:
        return sum(map(self._taken.listings[family.name].sizes.__getitem__, rows))

    def _batches(self, delta: Delta) -> Iterator[Batch]:
        batch: Batch = []
        size = 0
        for family, rows in _entries(delta):
            more = self._size(family, rows)
            if batch and size + more > PACK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((family, rows))
            size += more
        if batch:
            yield batch

    def _fill(self, stream: BinaryIO, batch: Batch) -> Pack:
        writer = PackWriter(stream)
        for family, rows in batch:
            for row in rows:
                file = self._added(writer, family, row)
                if file is not None:
                    self._packed.add(row, file)
                self._done += self._taken.listings[family.name].sizes[row]
                done = len(self._packed.files)
                self._on_progress(Progress(bytes_done=self._done, bytes_total=self._total, files_done=done))
        return writer.close()

    def _added(self, writer: PackWriter, family: Family, row: int) -> StoredFile | None:
        listing, name = self._taken.listings[family.name], family.name
        path, size, mtime_ns, mode = listing.paths[row], listing.sizes[row], listing.mtimes[row], listing.modes[row]
        member, link = f"{name}/{path}", listing.links.get(row, "")
        if link:
            writer.add_link(member, link, mtime_ns)
            return StoredFile(name, path, 0, "", mtime_ns, mode, "", 0, link)
        try:
            with LiveFile(self._taken.place(family, row)) as source:
                if not source.trouble:
                    offset, digest = writer.add_file(member, size, mtime_ns, mode, source)
        except FileNotFoundError:
            # Gone since the snapshot; its whole entry is left out afterwards.
            return None
        if source.trouble:
            return None
        return StoredFile(name, path, size, digest, mtime_ns, mode, "", offset)

    def _forget_unstable(self, family: Family, rows: array[int], skipped: Counter[str]) -> None:
        """Leave out an entry of which any file changed or went while the packs were written."""
        whole = all(self._packed.holds(family.name, row) for row in rows)
        if not whole or not unchanged(self._taken, family, rows):
            skipped["unstable"] += len(rows)
            for row in rows:
                self._packed.forget(family.name, row)


def _entries(delta: Delta) -> Iterator[tuple[Family, array[int]]]:
    for name, added in sorted(delta.items()):
        for rows, _ in added.entries():
            yield BY_NAME[name], rows
