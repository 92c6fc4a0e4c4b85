"""Read an object of a bucket in pieces that each arrive whole or not at all.

Which object is read is not known here, and many at a time are read in `landing`.
"""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sidecar.caches.bucket_errors import explained

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: An answer that was cut is asked for again so often; requests that fail are tried again by the client itself.
ATTEMPTS = 3

Reported = Callable[[str], AbstractContextManager[None]]


def piece(client: ObjectStore, name: str, start: int, length: int) -> memoryview:
    """Read `length` bytes of an object. Raises OSError with a clause for people."""
    import obstore

    trouble: OSError = OSError(errno.EIO, "its answers are cut short, again and again; look at the network")
    for _ in range(ATTEMPTS):
        try:
            data = memoryview(obstore.get_range(client, name, start=start, length=length))
        except Exception as error:
            if not type(error).__module__.startswith("obstore"):
                raise
            trouble = explained(error)
            if trouble.errno != errno.EIO:
                break
        else:
            if len(data) == length:
                return data
    raise trouble


class RangeStream(io.RawIOBase):
    """An object read from its beginning to its end, one request for every `part` bytes.

    `reported` makes errors of ours from OSErrors; without it they are raised as they are.
    """

    def __init__(self, client: ObjectStore, name: str, size: int, part: int, reported: Reported | None = None) -> None:
        super().__init__()
        self._client = client
        self._name = name
        self.size = size
        self._part = part
        self._reported = reported or (lambda _what: contextlib.nullcontext())
        self._at = 0
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or the rest."""
        if size < 0:
            return b"".join(iter(lambda: self.read(self._part), b""))
        if not self._rest and self._at < self.size:
            length = min(self._part, self.size - self._at)
            with self._reported("read a pack"):
                self._rest = piece(self._client, self._name, self._at, length)
            self._at += length
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as one piece goes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class ObjectParts:
    """An object of `size` bytes that is read at any place, by several threads at once."""

    def __init__(self, client: ObjectStore, name: str, size: int, reported: Reported) -> None:
        self.size = size
        self._client = client
        self._name = name
        self._reported = reported

    def read(self, start: int, length: int) -> memoryview:
        """Read bytes, all of them."""
        with self._reported("read a pack"):
            return piece(self._client, self._name, start, length)
