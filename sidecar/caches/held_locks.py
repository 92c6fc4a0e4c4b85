"""Lock files of compilers in the live cache that somebody holds, and for how long: what an engine may wait for without a word.

Nothing is removed and nothing stays locked here; orphans are removed before a start (`live_cache`).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sidecar.caches.live_cache import STAGING_NAME, TRASH_NAME

#: Names looked at in one look; a live cache of 20,000 kernels has fewer.
ENTRIES = 200_000


class HeldLocks:
    """Looks again and again, and counts for each lock for how long it was held at every look.

    One that is let go and taken again between two looks counts as held; that it is waited for nobody can see from here.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}

    def look(self, live_cache: Path | str, now: float) -> dict[str, float]:
        """Give each held lock file by path, with the seconds since it was first seen so. `now` in monotonic seconds.

        Never raises OSError. A lock is tried for a moment, as filelock's users do every 50 ms.
        """
        found: dict[str, tuple[int, float]] = {}
        for path in _lock_files(os.fspath(live_cache)):
            inode = _held(path)
            if inode:
                known = self._since.get(path)
                found[path] = known if known and known[0] == inode else (inode, now)
        self._since = found
        return {path: now - since for path, (_, since) in found.items()}


def _lock_files(live_cache: str) -> Iterator[str]:
    left = ENTRIES
    for folder, folders, names in os.walk(live_cache):
        left -= len(names) + len(folders)
        if left < 0:
            return
        if folder == live_cache:
            folders[:] = [name for name in folders if name not in (STAGING_NAME, TRASH_NAME)]
            continue
        for name in names:
            if name == "lock" or name.endswith(".lock") or os.path.basename(folder) == "locks":
                yield os.path.join(folder, name)


def _held(path: str) -> int:
    """Give the inode of a lock that is held, else 0. torch's FileBaton is held for as long as its file is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return 0
        if os.path.basename(path) == "lock":
            return status.st_ino
        # Shared: two that look at the same time are in nobody's way, and who holds it alone is seen all the same.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return status.st_ino
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return 0
