"""Write the packs of a publisher: what is new in a live cache, and files that move together from packs of the store.

Which files are new is decided in `delta`, and when files move in `compaction`; no generation is made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from sidecar.caches import snapshot as snapshots
from sidecar.caches import validity
from sidecar.caches.delta import Delta
from sidecar.caches.families import BY_NAME
from sidecar.caches.live_cache import LiveFile
from sidecar.caches.manifest import Pack, StoredFile
from sidecar.caches.messages import Progress
from sidecar.caches.packs import PackWriter
from sidecar.caches.snapshot import Snapshot
from sidecar.caches.store import DirectoryStore

# Unpacked bytes of one pack: enough packs of 1 GB to share among four processes, few enough files in the store.
PACK_BYTES = 64 << 20

Place = tuple[str, str]


@dataclass
class Packed:
    """What one publisher put into packs: the packs, and the files that went in whole, by family and path."""

    packs: list[Pack] = field(default_factory=list)
    files: dict[Place, StoredFile] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What the packs take in the store."""
        return sum(pack.bytes for pack in self.packs)


class Packer:
    """Pack the new files of a snapshot, small ones together, in the order of families, entries and paths.

    Files of one entry lie in one pack, unless they are larger than a pack. Raises OSError of the live cache and the
    store's errors.
    """

    def __init__(self, store: DirectoryStore, taken: Snapshot, on_progress: Callable[[Progress], None]) -> None:
        self._store = store
        self._taken = taken
        self._on_progress = on_progress
        self._packed = Packed()
        self._done = self._total = 0

    def pack(self, delta: Delta, skipped: Counter[str]) -> Packed:
        """Write the packs; entries that changed meanwhile are left out and counted in `skipped`."""
        entries = [
            (name, sorted(paths))
            for name, added in sorted(delta.added.items())
            for _, paths in sorted(validity.entries(BY_NAME[name], added).items())
        ]
        self._total = sum(self._size(name, path) for name, paths in entries for path in paths)
        for batch in self._batches(entries):
            self._write(batch)
        for name, paths in entries:
            self._forget_unstable(name, paths, skipped)
        return self._packed

    def _size(self, name: str, path: str) -> int:
        return self._taken.trees[name][path].size

    def _batches(self, entries: list[tuple[str, list[str]]]) -> Iterator[list[Place]]:
        batch: list[Place] = []
        size = 0
        for name, paths in entries:
            more = sum(self._size(name, path) for path in paths)
            if batch and size + more > PACK_BYTES:
                yield batch
                batch, size = [], 0
            batch.extend((name, path) for path in paths)
            size += more
        if batch:
            yield batch

    def _write(self, batch: list[Place]) -> None:
        files: dict[Place, StoredFile] = {}
        pack = self._store.add_pack(lambda stream: self._fill(stream, batch, files))
        self._packed.packs.append(pack)
        for place, file in files.items():
            self._packed.files[place] = file if file.link else file._replace(pack=pack.digest)

    def _fill(self, stream: BinaryIO, batch: list[Place], files: dict[Place, StoredFile]) -> Pack:
        writer = PackWriter(stream)
        for name, path in batch:
            file = self._added(writer, name, path)
            if file is not None:
                files[name, path] = file
            self._done += self._size(name, path)
            done = len(self._packed.files) + len(files)
            self._on_progress(Progress(bytes_done=self._done, bytes_total=self._total, files_done=done))
        return writer.close()

    def _added(self, writer: PackWriter, name: str, path: str) -> StoredFile | None:
        entry = self._taken.trees[name][path]
        mode, member = entry.mode & 0o777, f"{name}/{path}"
        if entry.link:
            writer.add_link(member, entry.link, entry.mtime_ns)
            return StoredFile(name, path, 0, "", entry.mtime_ns, mode, "", 0, entry.link)
        try:
            with LiveFile(f"{self._taken.live_cache}/{BY_NAME[name].directory}/{path}") as source:
                if not source.trouble:
                    offset, digest = writer.add_file(member, entry.size, entry.mtime_ns, mode, source)
        except FileNotFoundError:
            # Gone since the snapshot; its whole entry is left out afterwards.
            return None
        if source.trouble:
            return None
        return StoredFile(name, path, entry.size, digest, entry.mtime_ns, mode, "", offset)

    def _forget_unstable(self, name: str, members: list[str], skipped: Counter[str]) -> None:
        """Leave out an entry of which any file changed or went while the packs were written."""
        whole = all((name, path) in self._packed.files for path in members)
        if not whole or not snapshots.unchanged(self._taken, BY_NAME[name], members):
            skipped["unstable"] += len(members)
            for path in members:
                self._packed.files.pop((name, path), None)
