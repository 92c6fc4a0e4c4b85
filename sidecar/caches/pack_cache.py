"""Packs that the pods of one node share: a directory of the node, bounded, in which nothing is believed unchecked.

Where packs come from otherwise is in `landing`. A cache that can't be used costs nothing but a sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from sidecar.files import DIRECTORY_MODE, FILE_MODE, is_temporary, open_shared, temporary_name

_NAME = re.compile(r"([0-9a-f]{64})\.tar\.zst")
#: A download takes minutes at most; what is older under a temporary name was left by a process that died. Seconds.
ORPHAN_S = 3600.0
#: Left free on the node's disk, whatever the bound says: the kubelet evicts pods when it fills up. Bytes.
SPARE = 1 << 30


class PackCache:
    """A directory of packs by digest, used by any number of processes at once; who reads one keeps it by its descriptor.

    `limit` is in bytes. `trouble` says in a sentence why it is not used, empty while it is.
    """

    def __init__(self, folder: Path, limit: int, now: Callable[[], float] = time.time, spare: int = SPARE) -> None:
        self.trouble = ""
        self._folder = folder
        self._limit = limit
        self._now = now
        self._spare = spare

    def open(self, digest: str, size: int) -> int | None:
        """Open a pack for reading, every byte checked against its digest; None when it is not here. One that is broken goes."""
        path = self._path(digest)
        descriptor = checked(path, digest, size)
        with contextlib.suppress(OSError):
            if descriptor is None:
                # Of another size, it may be whole: who asks has that from a manifest that nobody vouched for yet, perhaps.
                if path.lstat().st_size == size:
                    path.unlink()
            else:
                # The time of the last use, for `_make_room`.
                os.utime(path)
        return descriptor

    def begin(self, digest: str, size: int) -> Path | None:
        """Name a temporary file for a pack that may be kept, after making room; None when there is none for it."""
        if self.trouble:
            return None
        try:
            if not self._folder.is_dir():
                # Other pods, and another thread of this one, may do the same at this moment.
                self._folder.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(PermissionError):
                    self._folder.chmod(DIRECTORY_MODE)
            return temporary_name(self._path(digest)) if self._make_room(size) else None
        except OSError as error:
            self.trouble = (
                f"The cache of packs {self._folder} can't be used ({error.strerror}) and is left alone; make it writable for "
                "this user or group, or unset WARMUP_PACK_CACHE."
            )
            return None

    def create(self, temporary: Path) -> int:
        """Open a temporary file for writing and reading. Raises OSError."""
        return open_shared(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)

    def keep(self, temporary: Path, descriptor: int, digest: str) -> None:
        """Give a pack that was written whole its name if its bytes are what that says; else it goes. Never raises OSError."""
        try:
            if _digest_of(descriptor) == digest:
                os.replace(temporary, self._path(digest))
                return
        except OSError:
            pass
        with contextlib.suppress(OSError):
            temporary.unlink()

    def _make_room(self, size: int) -> bool:
        """Remove what was used least lately until one more fits; other processes may do the same meanwhile."""
        found: list[tuple[float, int, Path]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    age_s = self._now() - status.st_mtime
                    if is_temporary(entry.name) and abs(age_s) > ORPHAN_S:
                        os.unlink(entry.path)
                    elif is_temporary(entry.name) or _NAME.fullmatch(entry.name):
                        # A time to come is of before the node's clock was set back: nobody used it since.
                        used = status.st_mtime if age_s > -ORPHAN_S else 0.0
                        found.append((used, status.st_size, Path(entry.path)))
        total = sum(each for _, each, _ in found)
        disk = os.statvfs(self._folder)
        room = min(self._limit - total, disk.f_bavail * disk.f_frsize - self._spare)
        for _, each, path in sorted(found):
            if room >= size:
                break
            if not is_temporary(path.name) and size <= self._limit:
                with contextlib.suppress(OSError):
                    path.unlink()
                    room += each
        return room >= size

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.tar.zst"


def checked(path: Path, digest: str, size: int) -> int | None:
    """Open a pack for reading if it has this size and its bytes are what their digest says."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size == size and _digest_of(descriptor) == digest:
            return descriptor
    os.close(descriptor)
    return None


def _digest_of(descriptor: int) -> str:
    """Digest a whole open file, wherever its position is."""
    with open(f"/proc/self/fd/{descriptor}", "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
