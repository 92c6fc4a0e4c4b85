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
LEVEL = 3
# A window of 128 MiB is what `zstd -d` accepts without --long; larger ones are refused to bound memory.
WINDOW_LIMIT = 1 << 27


class Readable(Protocol):
    """Anything that hands out bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; nothing at the end."""
        ...


class PackWriter:
    """Write one archive into an open file. Peak memory is a chunk, whatever the files' size."""

    def __init__(self, stream: BinaryIO, level: int = LEVEL) -> None:
        self._target = _Counted(stream)
        context = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._zstd = context.stream_writer(cast(BinaryIO, self._target), closefd=False)
        self._position = 0

    def add_file(self, name: str, size: int, mtime_ns: int, mode: int, source: BinaryIO) -> tuple[int, str]:
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
        self._zstd = context.stream_reader(source, read_size=CHUNK, read_across_frames=True, closefd=False)
        self._buffer = memoryview(b"")
        self._position = 0

    def pieces(self, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the `size` bytes that begin at `offset` of the unpacked archive.

        Raises StoreDamaged when the archive is damaged, ends early, or has been read beyond that place; OSError of
        the stream passes through. Each piece is valid until the next one is asked for.
        """
        if offset < self._position:
            raise StoreDamaged("A manifest lists overlapping files.")
        for _ in self._take(offset - self._position):
            continue
        yield from self._take(size)

    def _take(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._buffer:
                self._fill()
            piece = self._buffer[:size]
            self._buffer = self._buffer[len(piece) :]
            self._position += len(piece)
            size -= len(piece)
            yield piece

    def _fill(self) -> None:
        try:
            data = self._zstd.read(CHUNK)
        except zstandard.ZstdError as error:
            raise StoreDamaged(f"A pack can't be unpacked: {error}.") from error
        if not data:
            raise StoreDamaged("A pack ends before its last file.")
        self._buffer = memoryview(data)


class _Counted:
    """Pass compressed bytes on, counting and digesting them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
