"""Bring packs near before they are unpacked: from the node's cache, else from a volume in front, else from the store.

Each lands in a file while others are unpacked. What is in them is checked where they are unpacked (`unpacking`).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from sidecar.caches.manifest import Pack
from sidecar.caches.medium import PackStream
from sidecar.caches.messages import SourceCount
from sidecar.caches.pack_cache import PackCache, checked
from sidecar.caches.records import VERSION
from sidecar.caches.store import Store
from sidecar.caches.volume import StoreStream
from sidecar.errors import StoreDamaged, StoreUnavailable, WarmupError

Source = Literal["node", "volume", "bucket"]

#: Bytes of one request and how many are under way: what a restore from a bucket takes in memory, at most.
PART = 4 << 20
AT_A_TIME = 8
#: Packs that lie unpacked-from on disk at a time, besides those being unpacked: enough to keep four processes busy.
AHEAD = 8
#: Packs that are under way at a time.
LANES = 4
LOOK_S = 0.003


class Landing:
    """Packs on their way. `open_pack` waits for one, in this process or in one that was forked from it.

    `packs` are all that may be asked for; `spool` is a folder of its own for what is not kept; `clock` is monotonic.
    """

    def __init__(
        self, store: Store, packs: Iterable[Pack], cache: PackCache | None, spool: Path, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._known = {pack.digest: pack for pack in packs}
        self._cache = cache
        self._spool = spool
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="part")
        self._room = threading.Semaphore(AHEAD)
        self._stop = threading.Event()
        self._open: dict[str, int] = {}
        self._uses: Counter[str] = Counter()
        self._counting: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._times: dict[Source, tuple[float, float]] = {}
        self._packs: Counter[Source] = Counter()
        self._bytes: Counter[Source] = Counter()

    def start(self, order: Iterable[str]) -> None:
        """Begin to bring packs, in the order in which they will be asked for by digest, some several times."""
        self._spool.mkdir(parents=True, exist_ok=True)
        wanted = list(order)
        self._uses.update(wanted)
        self._counting = frozenset(self._uses)
        waiting = iter([self._known[digest] for digest in dict.fromkeys(wanted)])
        # Several at a time: while some are begun or digested, the parts of others are under way.
        for number in range(LANES):
            thread = threading.Thread(target=self._run, args=(waiting,), name=f"landing-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def open_pack(self, digest: str) -> PackStream:
        """Open a pack as soon as it is here. Raises StoreDamaged or StoreUnavailable when it can't be had."""
        place = self._spool / digest
        while True:
            with contextlib.suppress(FileNotFoundError):
                return StoreStream(io.FileIO(place), str(self._spool))
            with contextlib.suppress(FileNotFoundError):
                kind, _, sentence = place.with_suffix(".gone").read_text("utf-8").partition(":")
                raise (StoreDamaged if kind == "damaged" else StoreUnavailable)(sentence)
            if self._stop.is_set():
                raise StoreUnavailable("The restore is over.")
            time.sleep(LOOK_S)

    def done(self, digest: str) -> None:
        """Forget a pack that was unpacked, which makes room for another one."""
        self._uses[digest] -= 1
        with self._lock:
            descriptor = self._open.pop(digest, None) if self._uses[digest] <= 0 else None
            first, self._counting = digest in self._counting, self._counting - {digest}
        if descriptor is not None:
            os.close(descriptor)
        if first:
            self._room.release()

    def sources(self) -> dict[str, SourceCount]:
        """Say for each source what came from it: packs, bytes, and the seconds from the first to the last."""
        return {
            name: SourceCount(packs=self._packs[name], bytes=self._bytes[name], seconds=round(end - begin, 3))
            for name, (begin, end) in self._times.items()
        }

    def close(self) -> None:
        """Stop, and remove what is left on disk."""
        self._stop.set()
        for _ in self._threads:
            self._room.release()
        self._pool.shutdown(cancel_futures=True)
        for thread in self._threads:
            thread.join()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        shutil.rmtree(self._spool, ignore_errors=True)

    def _run(self, waiting: Iterator[Pack]) -> None:
        while not self._stop.is_set():
            self._room.acquire()
            with self._lock:
                pack = next(waiting, None)
            if pack is None or self._stop.is_set():
                return
            try:
                self._landed(pack, self._brought(pack))
            except (WarmupError, OSError, RuntimeError) as error:
                kind = "damaged" if isinstance(error, StoreDamaged) else "unavailable"
                self._gone(pack, f"{kind}:{error}")

    def _landed(self, pack: Pack, descriptor: int) -> None:
        with self._lock:
            self._open[pack.digest] = descriptor
        # Through the descriptor: whoever removes the file meanwhile, as another pod may, takes nothing from us.
        os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", self._spool / pack.digest)

    def _gone(self, pack: Pack, why: str) -> None:
        place = self._spool / f"{pack.digest}.gone"
        with contextlib.suppress(OSError):
            place.with_suffix(".new").write_text(why, "utf-8")
            place.with_suffix(".new").rename(place)

    def _brought(self, pack: Pack) -> int:
        if self._cache is not None:
            with self._counted("node", pack) as count:
                found = self._cache.open(pack.digest, pack.bytes)
                if found is not None:
                    count()
                    return found
        for front in self._store.fronts:
            with self._counted("volume", pack) as count:
                found = checked(front / VERSION / f"packs/{pack.digest}.tar.zst", pack.digest, pack.bytes)
                if found is not None:
                    count()
                    return found
        with self._counted(self._store.kind, pack) as count:
            count()
            return self._fetched(pack)

    def _fetched(self, pack: Pack) -> int:
        """Write a pack of the store into the node's cache, or into a file without a name."""
        temporary = self._cache.begin(pack.digest, pack.bytes) if self._cache else None
        if temporary is None or self._cache is None:
            with tempfile.TemporaryFile(dir=self._spool) as stream:
                self._filled(pack, stream.fileno())
                return os.dup(stream.fileno())
        descriptor = self._cache.create(temporary)
        try:
            self._filled(pack, descriptor)
            self._cache.keep(temporary, descriptor, pack.digest)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return descriptor

    def _filled(self, pack: Pack, descriptor: int) -> None:
        with self._store.pack_parts(pack.digest) as parts:

            def fill(start: int) -> None:
                data = memoryview(parts.read(start, min(PART, parts.size - start)))
                while data and not self._stop.is_set():
                    written = os.pwrite(descriptor, data, start)
                    start, data = start + written, data[written:]

            under_way = [self._pool.submit(fill, start) for start in range(0, parts.size, PART)]
            # All are waited for, whichever fails: none may write into a descriptor that was closed and given again.
            for trouble in [each.exception() for each in under_way]:
                if trouble is not None:
                    raise trouble

    @contextlib.contextmanager
    def _counted(self, source: Source, pack: Pack) -> Iterator[Callable[[], None]]:
        """Count a pack for a source if the function that this gives is called."""
        begin = self._clock()
        used: list[bool] = []
        yield lambda: used.append(True)
        if used:
            with self._lock:
                first, last = self._times.get(source, (begin, begin))
                self._times[source] = min(first, begin), max(last, self._clock())
                self._packs[source] += 1
                self._bytes[source] += pack.bytes
