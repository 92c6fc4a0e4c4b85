"""Members of a tar that somebody else wrote, read as a stream: its headers can't fill the memory, and nonsense is a ReadError.

What the members are is not known here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Self

from sidecar.errors import StoreDamaged

HEADER_LIMIT = 1 << 20
# Types of headers that hold a name or attributes of the next member; `tarfile` takes them into memory as large as they are.
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Header(tarfile.TarInfo):
    """A header of a tar; one of more than `HEADER_LIMIT` bytes is refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises StoreDamaged, and what `tarfile` raises."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _EXTENDED and found.size > HEADER_LIMIT:
            raise StoreDamaged(f"The tar has a header of {found.size} bytes, which no export has.")
        return found


def open_stream(stream: BinaryIO) -> tarfile.TarFile:
    """Open a tar, which reads its first header. Raises tarfile.TarError and StoreDamaged."""
    with _words():
        return tarfile.open(fileobj=stream, mode="r|", tarinfo=Header)


def next_member(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    """Give the next member, None at the end. Raises tarfile.TarError and StoreDamaged."""
    with _words():
        return tar.next()


@contextmanager
def _words() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        # Words where numbers belong (`tarfile` of Python 3.11, sparse files).
        raise tarfile.ReadError(str(error)) from error
