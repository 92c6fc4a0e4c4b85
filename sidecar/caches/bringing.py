"""One restore's packs: from where they are brought near, and what is told of that.

How they come is in `landing`, what is done with them in `unpacking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches.explain import sources_sentence
from sidecar.caches.landing import Landing
from sidecar.caches.manifest import Manifest
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
        cache = self._cache()
        if cache is None and store.kind == "volume" and not store.fronts:
            try:
                return Unpacking(store, self.area, self.jobs, on_file, on_note).run(wanted)
            finally:
                size, took = sum(pack.bytes for pack in packs.values()), round(self.clock() - begin, 3)
                if packs:
                    self.sources = {"volume": SourceCount(packs=len(packs), bytes=size, seconds=took)}
        landing = Landing(store, packs.values(), cache, Path(f"{self.area.root}.packs"), self.clock)
        try:
            return Unpacking(store, self.area, self.jobs, on_file, on_note, landing).run(wanted)
        finally:
            landing.close()
            self.sources = landing.sources()
            self.sentence = " ".join(filter(None, (sources_sentence(self.sources), cache.trouble if cache else "")))

    def _cache(self) -> PackCache | None:
        folder = self.request.pack_cache
        return PackCache(Path(folder), self.request.pack_cache_bytes, self.now) if folder else None
