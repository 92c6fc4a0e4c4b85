"""Loads golden files beside a running event loop: one load at a time, in a thread of its own, and none that was done before.

What files hold, and what is refused, is in `files.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from sidecar.errors import GoldenError
from sidecar.golden.files import GoldenSet, files_of, load

#: Name, time of change (ns), size and number of each file: what tells one state of a path from the next.
Signature = tuple[tuple[str, int, int, int], ...]
Loaded = GoldenSet | GoldenError | OSError


class Loading:
    """Loads one path after another, and keeps what it loaded until a file of it changes. `read` is `files.load`, or a fake.

    A thread can't be cancelled: on a volume that hangs, callers give up and the next ones wait for the same load.
    """

    def __init__(self, read: Callable[[Path], GoldenSet] = load) -> None:
        self._read = read
        self._running: tuple[Path, Future[Loaded]] | None = None
        self._kept: tuple[Path, Signature, GoldenSet] | None = None

    async def load(self, path: Path, within_s: float) -> GoldenSet:
        """Load a path within so many seconds. Raises GoldenError, OSError, or TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                wanted, running = self._begun(path)
                found = await asyncio.wrap_future(running)
                if wanted == path:
                    break
        if isinstance(found, GoldenSet):
            return found
        raise found.with_traceback(None)

    def _begun(self, path: Path) -> tuple[Path, Future[Loaded]]:
        """Give the load that runs, or begin one."""
        if self._running is None or self._running[1].done():
            running: Future[Loaded] = Future()
            running.set_running_or_notify_cancel()
            self._running = (path, running)
            threading.Thread(target=self._load, args=(path, running), name="golden file", daemon=True).start()
        return self._running

    def _load(self, path: Path, running: Future[Loaded]) -> None:
        try:
            running.set_result(self._unless_kept(path))
        except BaseException as error:
            running.set_exception(error)

    def _unless_kept(self, path: Path) -> Loaded:
        try:
            signature = tuple(_signature(each) for each in files_of(path))
        except OSError:
            # What is missing is said better by the reader.
            signature = ()
        if signature and self._kept is not None and self._kept[:2] == (path, signature):
            return self._kept[2]
        try:
            found = self._read(path)
        except (GoldenError, OSError) as error:
            # Not kept: a disk that failed once may be well again though no file changed.
            return error
        self._kept = (path, signature, found)
        return found


def _signature(path: Path) -> tuple[str, int, int, int]:
    state = path.stat()
    return path.name, state.st_mtime_ns, state.st_size, state.st_ino
