"""One restore's packs: from where they are brought near, and what is told of that.

How they come is in `landing`, what is done with them in `unpacking`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches.explain import sources_sentence
from sidecar.caches.landing import Landing
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.messages import RestoreRequest, SourceCount
from sidecar.caches.pack_cache import PackCache
from sidecar.caches.selection import Selection
from sidecar.caches.staging import StagingArea
from sidecar.caches.store import Store
from sidecar.caches.unpacking import Bad, Done, Unpacking


@dataclass
class Bringing:
    """Unpack what a restore wants from the nearest places; `sources` and `sentence` tell of them afterwards.

    `clock` is monotonic, `now` the seconds since the epoch by which files of the node's cache were used; `jobs` is the most
    processes that unpack.
    """

    request: RestoreRequest
    area: StagingArea
    jobs: int
    clock: Callable[[], float]
    now: Callable[[], float]
    sources: dict[str, SourceCount] = field(default_factory=dict)
    sentence: str = ""
    _landing: Landing | None = None
    _cache: PackCache | None = None
    _listed: int = 0

    def ahead(self, store: Store, packs: Sequence[Pack], room: int) -> None:
        """Begin to bring packs of a generation that is still being read, where that takes time; it may come to nothing.

        Not where all that was listed so far takes more than `room` bytes: some of it will be left out, and may fill the disk.
        """
        self._listed += sum(pack.bytes + pack.unpacked for pack in packs)
        if self._listed > room:
            return
        # No disk, no thread: what could not be begun here is told when it is asked for.
        with contextlib.suppress(OSError, RuntimeError):
            if (landing := self._brought_by(store)) is not None:
                # Large ones take longest to unpack, so they will be asked for first.
                landing.ahead(sorted(packs, key=lambda pack: -pack.unpacked))

    def close(self) -> None:
        """Stop what is under way."""
        if self._landing is not None:
            self._landing.close()

    def run(
        self,
        store: Store,
        chosen: Iterable[Manifest],
        wanted: list[Selection],
        on_file: Done,
        on_note: Callable[[int, int], None],
    ) -> Bad:
        """Stage the files that are wanted; returns those that could not be had. Raises OSError of the live cache's disk."""
        begin = self.clock()
        used = {files.table.pack(row) for files in wanted for row in files.rows}
        packs = {pack.digest: pack for manifest in chosen for pack in manifest.packs if pack.digest in used}
        landing = self._brought_by(store)
        if landing is None:
            try:
                return Unpacking(store, self.area, self.jobs, on_file, on_note).run(wanted)
            finally:
                size, took = sum(pack.bytes for pack in packs.values()), round(self.clock() - begin, 3)
                if packs:
                    self.sources = {"volume": SourceCount(packs=len(packs), bytes=size, seconds=took)}
        landing.expect(packs.values())
        try:
            return Unpacking(store, self.area, self.jobs, on_file, on_note, landing).run(wanted)
        finally:
            self.close()
            self.sources = landing.sources()
            trouble = self._cache.trouble if self._cache else ""
            self.sentence = " ".join(filter(None, (sources_sentence(self.sources), trouble)))

    def _brought_by(self, store: Store) -> Landing | None:
        """Give what brings packs near; None where they lie near enough to be unpacked from there."""
        folder = self.request.pack_cache
        if self._landing is None and (folder or store.kind != "volume" or store.fronts):
            self._cache = PackCache(Path(folder), self.request.pack_cache_bytes, self.now) if folder else None
            self._landing = Landing(store, self._cache, Path(f"{self.area.root}.packs"), self.clock)
        return self._landing
