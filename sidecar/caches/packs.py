"""Archives of a generation: written as a plain `.tar.zst`, read back by the places that a manifest gives.

The reader never believes a header of the archive: names, sizes and digests come from the checked manifest, so an
archive can hold no path, link, device or mode that matters.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol, cast

import zstandard

from sidecar.caches.manifest import Pack
from sidecar.errors import StoreDamaged

BLOCK = 512
CHUNK = 1024 * 1024
# What is asked of the store at once, packed: a network volume answers in pieces of at most a MiB (Linux 6 nfs rsize).
READ = 1024 * 1024
LEVEL = 3
# A file's own header and an extended one for its time to the nanosecond (POSIX pax, two blocks).
HEADERS = 3 * BLOCK
# A window of 128 MiB is what `zstd -d` accepts without --long; larger ones are refused to bound memory.
WINDOW_LIMIT = 1 << 27


class Readable(Protocol):
    """Anything that hands out bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; nothing at the end."""
        ...


def room_for(size: int) -> int:
    """Say how many bytes of an unpacked archive a file of `size` bytes takes, headers and filling included."""
    return size + -size % BLOCK + HEADERS


class PackWriter:
    """Write one archive into an open file. Peak memory is a chunk, whatever the files' size."""

    def __init__(self, stream: BinaryIO, level: int = LEVEL) -> None:
        self._target = Counted(stream)
        context = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._zstd = context.stream_writer(cast(BinaryIO, self._target), closefd=False)
        self._position = 0

    def add_file(self, name: str, size: int, mtime_ns: int, mode: int, source: Readable) -> tuple[int, str]:
        """Append a file and return the offset of its bytes and their SHA-256.

        A source that is shorter than `size` is filled up with zeros, one that is longer is cut: the caller notices
        by the file's status and leaves the entry out of the manifest. Raises OSError of source and target.
        """
        self._header(name, size, mtime_ns, mode)
        offset, digest, left = self._position, hashlib.sha256(), size
        while left:
            data = source.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
            digest.update(data)
            self._write(data)
            left -= len(data)
        self._write(bytes(-size % BLOCK))
        return offset, digest.hexdigest()

    def add_link(self, name: str, target: str, mtime_ns: int) -> None:
        """Append a symbolic link, for people who unpack the archive by hand."""
        self._header(name, 0, mtime_ns, 0o777, target)

    def close(self) -> Pack:
        """End the archive and say what it is. The file itself stays open."""
        self._write(bytes(2 * BLOCK))
        self._zstd.flush(zstandard.FLUSH_FRAME)
        return Pack(digest=self._target.digest.hexdigest(), bytes=self._target.size, unpacked=self._position)

    def _header(self, name: str, size: int, mtime_ns: int, mode: int, target: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, mode, mtime_ns // 1_000_000_000
        info.pax_headers = {"mtime": f"{info.mtime}.{mtime_ns % 1_000_000_000:09d}"}
        if target:
            info.type, info.linkname = tarfile.SYMTYPE, target
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        self._zstd.write(data)
        self._position += len(data)


class PackReader:
    """Read pieces of one archive in ascending order of their offsets."""

    def __init__(self, stream: Readable) -> None:
        context = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT)
        source = cast(BinaryIO, stream)
        self._zstd = context.stream_reader(source, read_size=READ, read_across_frames=True, closefd=False)
        # One buffer for all: a fresh one each time costs a page fault for every 4 KiB.
        self._chunk = bytearray(CHUNK)
        self._whole = memoryview(self._chunk)
        self._begin = self._end = self._position = 0

    def at_hand(self, offset: int, size: int) -> memoryview | None:
        """Give the `size` bytes that begin at `offset` if they are unpacked already; they are valid until more is read.

        Raises StoreDamaged when the archive has been read beyond that place.
        """
        if offset < self._position:
            raise StoreDamaged("A manifest lists overlapping files.")
        if offset < self._begin or offset + size > self._end:
            return None
        self._position = offset + size
        return self._whole[offset - self._begin : offset + size - self._begin]

    def pieces(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the `size` bytes that begin at `offset` of the unpacked archive.

        Raises StoreDamaged when the archive is damaged, ends early, or has been read beyond that place; OSError of
        the stream passes through. Each piece is valid until the next one is asked for.
        """
        if offset < self._position:
            raise StoreDamaged("A manifest lists overlapping files.")
        end = self._position = offset + size
        while offset < end:
            while offset >= self._end:
                self._fill()
            piece = self._whole[offset - self._begin : min(end, self._end) - self._begin]
            offset += len(piece)
            yield piece

    def _fill(self) -> None:
        try:
            size = self._zstd.readinto(self._chunk)
        except zstandard.ZstdError as error:
            raise StoreDamaged(f"A pack can't be unpacked: {error}.") from error
        if not size:
            raise StoreDamaged("A pack ends before its last file.")
        self._begin, self._end = self._end, self._end + size


class Counted:
    """Pass written bytes on, counting and digesting them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write bytes, and say how many."""
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Pass on that all is to be written."""
        self._stream.flush()
