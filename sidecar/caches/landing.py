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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
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
from sidecar.files import make_directory

Source = Literal["node", "volume", "bucket"]

#: Bytes of one request and how many are under way: what a restore from a bucket takes in memory, at most.
PART = 4 << 20
AT_A_TIME = 8
#: Packs that lie unpacked-from on disk at a time, besides those being unpacked: enough to keep four processes busy.
AHEAD = 8
#: Packs that are under way at a time.
LANES = 4
#: What is brought before it is known what will be asked for, in all: a second of a node's network, while a manifest is read.
#: The rest of the room stays free for what is asked for first, so that nothing waits for ever.
EARLY, EARLY_BYTES = AHEAD - LANES, 128 << 20
LOOK_S = 0.003
#: In the place of a descriptor: what was asked for did not come.
FAILED = -1


class Landing:
    """Packs on their way. `open_pack` waits for one, in this process or in one that was forked from it.

    `spool` is a folder of its own for what is not kept; `clock` is monotonic.
    """

    def __init__(self, store: Store, cache: PackCache | None, spool: Path, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Pack] = {}
        self._early: set[Pack] = set()
        self._unwanted: frozenset[Pack] = frozenset()
        self._cache = cache
        self._spool = spool
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="part")
        self._room = threading.Semaphore(AHEAD)
        self._stop = threading.Event()
        self._open: dict[Pack, int] = {}
        self._uses: Counter[str] = Counter()
        self._counting: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._times: dict[Source, tuple[float, float]] = {}
        self._packs: Counter[Source] = Counter()
        self._bytes: Counter[Source] = Counter()

    def ahead(self, packs: Iterable[Pack]) -> None:
        """Begin to bring some packs that will likely be asked for. Who listed them need not be believed yet.

        What is not asked for in the end, or with another size, goes again. Raises OSError and RuntimeError.
        """
        begun = []
        room = EARLY_BYTES - sum(pack.bytes for pack in self._early)
        for pack in packs:
            if len(self._early) < EARLY and pack.bytes <= room and pack not in self._early:
                self._early.add(pack)
                room -= pack.bytes
                begun.append(pack)
        try:
            self._begin(begun)
        except (OSError, RuntimeError):
            self._early.difference_update(begun)
            raise

    def is_early(self, digest: str) -> bool:
        """Say whether a pack that may be asked for was begun by `ahead`."""
        return self._known.get(digest) in self._early

    def expect(self, packs: Iterable[Pack]) -> None:
        """Say which packs may be asked for."""
        self._known = {pack.digest: pack for pack in packs}

    def start(self, order: Iterable[str]) -> None:
        """Begin to bring packs, in the order in which they will be asked for by digest, some several times."""
        wanted = list(order)
        self._uses.update(wanted)
        self._counting = frozenset(self._uses)
        packs = [self._known[digest] for digest in dict.fromkeys(wanted)]
        with self._lock:
            self._unwanted = frozenset(self._early.difference(packs))
            settled = [pack for pack in self._unwanted if pack in self._open]
        for pack in settled:
            self._drop(pack)
        self._begin([pack for pack in packs if pack not in self._early])

    def _begin(self, packs: Sequence[Pack]) -> None:
        if not packs:
            return
        make_directory(self._spool.parent)
        self._spool.mkdir(exist_ok=True)
        waiting = iter(packs)
        # Several at a time: while some are begun or digested, the parts of others are under way.
        for number in range(LANES):
            thread = threading.Thread(target=self._run, args=(waiting,), name=f"landing-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # One is enough, if slower.
                if not number:
                    raise
                return
            self._threads.append(thread)

    def open_pack(self, digest: str) -> PackStream:
        """Open a pack as soon as it is here. Raises StoreDamaged or StoreUnavailable when it can't be had."""
        place = self._place(self._known[digest])
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
            first, self._counting = digest in self._counting, self._counting - {digest}
        if self._uses[digest] <= 0:
            self._shut(self._known[digest])
        if first:
            self._room.release()

    def _drop(self, pack: Pack) -> None:
        """Let go of a pack that nobody will ask for."""
        self._shut(pack)
        self._room.release()

    def _shut(self, pack: Pack) -> None:
        with self._lock:
            descriptor = self._open.pop(pack, None)
        if descriptor is not None and descriptor != FAILED:
            os.close(descriptor)

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
        for pack in list(self._open):
            self._shut(pack)
        shutil.rmtree(self._spool, ignore_errors=True)

    def _run(self, waiting: Iterator[Pack]) -> None:
        while not self._stop.is_set():
            self._room.acquire()
            with self._lock:
                pack = next(waiting, None)
            if pack is None or self._stop.is_set():
                # Others may still wait for this room.
                self._room.release()
                return
            try:
                self._settled(pack, self._brought(pack))
            except (WarmupError, OSError, RuntimeError, CancelledError) as error:
                kind = "damaged" if isinstance(error, StoreDamaged) else "unavailable"
                self._gone(pack, f"{kind}:{error}")
                self._settled(pack, FAILED)

    def _settled(self, pack: Pack, descriptor: int) -> None:
        """Give out a pack that has landed, or take note that it never will; where nobody wants it any more, let go of it."""
        with self._lock:
            self._open[pack] = descriptor
            unwanted = pack in self._unwanted
        if unwanted:
            self._drop(pack)
        if unwanted or descriptor == FAILED:
            return
        # Through the descriptor: whoever removes the file meanwhile, as another pod may, takes nothing from us.
        os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", self._place(pack))

    def _place(self, pack: Pack) -> Path:
        # Another manifest may say something else of the same archive, and of that only so much was brought.
        return self._spool / f"{pack.digest}-{pack.bytes}-{pack.unpacked}"

    def _gone(self, pack: Pack, why: str) -> None:
        place = self._place(pack).with_suffix(".gone")
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
            # What is longer than its manifest says is damaged, and may not fill the disk.
            size = min(parts.size, pack.bytes)

            def fill(start: int) -> None:
                if pack in self._unwanted:
                    # What is wanted must not wait for the rest of it. It is let go of, and no cache keeps it: its digest is wrong.
                    return
                data = memoryview(parts.read(start, min(PART, size - start)))
                while data and not self._stop.is_set():
                    written = os.pwrite(descriptor, data, start)
                    start, data = start + written, data[written:]

            under_way = [self._pool.submit(fill, start) for start in range(0, size, PART)]
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
