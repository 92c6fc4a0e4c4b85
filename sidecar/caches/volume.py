"""The store's directory as this process sees it: every access tried again where that helps, reported as an error of ours.

No name of the layout is known here (`store`, `records`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sidecar.caches.manifest import Pack
from sidecar.caches.medium import Checkpoint, Medium, no_checkpoint
from sidecar.caches.publish_messages import StoreMode
from sidecar.errors import FileUnreadable, StoreDamaged, StoreUnavailable
from sidecar.files import (
    FILE_MODE,
    NOTHING,
    Content,
    create_exclusively,
    create_folder_exclusively,
    is_temporary,
    make_directory,
    open_plain,
    open_shared,
    read_json,
    sync_directory,
    temporary_name,
    write_durably,
)

# A network volume says so when a file was replaced or is held by another client: worth another try.
PASSING = frozenset({errno.ESTALE, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
# There is something under the name, and it is no file: somebody's doing, which no other try and no waiting changes.
NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
ATTEMPTS = 3
RETRY_S = 0.2

T = TypeVar("T")


class Volume(Medium):
    """A directory shared by any number of pods.

    Every file is written under a temporary name, and then renamed or linked.
    """

    kind = "volume"

    def __init__(
        self,
        root: Path,
        mode: StoreMode,
        sleep: Callable[[float], None],
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        self.root = root
        self._mode = mode
        self._sleep = sleep
        self._checkpoint = checkpoint

    def check(self) -> None:
        """Make sure that the store's directory is there. Raises StoreUnavailable with a sentence."""
        with self._reported("open"):
            if not self._retried(self.root.is_dir):
                raise StoreUnavailable(
                    f"The store {self.root} does not exist or is not a directory; mount it, or correct WARMUP_STORE."
                )

    def _read(self, path: Path) -> dict[str, Any]:
        with self._reported(f"read {path.name}"):
            try:
                return self._retried(lambda: read_json(path))
            except FileUnreadable as error:
                raise StoreDamaged(str(error)) from error

    def _names(self, folder: Path) -> list[str]:
        with self._reported(f"list {folder.name}"):
            try:
                return self._retried(lambda: sorted(os.listdir(folder)))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _is_there(self, path: Path) -> bool:
        with self._reported(f"look at {path.name}"):
            try:
                self._retried(path.lstat)
            except FileNotFoundError:
                return False
            except NotADirectoryError:
                return True
        return True

    def _is_in_the_way(self, folder: Path) -> bool:
        return self._is_there(folder) and not folder.is_dir()

    def _opened(self, path: Path, limit: int) -> BinaryIO:
        try:
            return self._retried(lambda: open_plain(path, limit))
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            raise FileUnreadable(f"{path} is not a plain file ({error.strerror}).") from error

    def _size(self, path: Path) -> int | None:
        try:
            return self._retried(path.stat).st_size
        except OSError as error:
            if error.errno in {errno.ENOENT, *NO_FILE}:
                return None
            raise

    def _age_s(self, path: Path, beside: Path) -> float:
        made = path.stat().st_mtime
        return self._time(beside) - made

    def _with_ages(self, folder: Path) -> Iterator[tuple[str, int, float]]:
        try:
            now = self._time(folder)
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield entry.name, status.st_size, now - status.st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return

    def _time(self, folder: Path) -> float:
        """Ask the volume's own clock, in seconds since the epoch: its server's may differ from ours. Raises OSError."""
        probe = temporary_name(folder / "clock")
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # By the descriptor: a name just made may not be seen for a while, not even by its maker.
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(probe)

    def _make_folders(self, *folders: Path) -> None:
        for folder in folders:
            make_directory(folder)

    def _create(self, path: Path, data: Content) -> None:
        make_directory(path.parent)
        create_exclusively(path, data)

    def _create_alone(
        self, folder: Path, name: str, data: Content, prepare_in: Path, beside: Mapping[str, Content] = NOTHING
    ) -> None:
        make_directory(folder.parent)
        create_folder_exclusively(folder, name, data, prepare_in, beside)

    def _replace(self, path: Path, data: bytes) -> None:
        write_durably(path, data)

    def _remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _remove_folder(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def _remove_empty(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            folder.rmdir()

    def _write_pack(self, folder: Path, fill: Callable[[BinaryIO], Pack], place: Callable[[Pack], Path]) -> Pack:
        make_directory(folder)
        temporary = temporary_name(folder / "pack")
        try:
            with open(temporary, "xb", opener=_shared_with_group) as stream:
                self._checkpoint("pack opened")
                pack = fill(stream)
                stream.flush()
                self._checkpoint("pack written")
                os.fsync(stream.fileno())
            # One that is there and whole is left alone: who reads it over a network would lose it (ESTALE).
            if not _is_whole(place(pack), pack):
                os.replace(temporary, place(pack))
            else:
                # It may have been out of use for long: now it is not to be removed (`cleaning`).
                with contextlib.suppress(OSError):
                    os.utime(place(pack))
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._checkpoint("pack renamed")
        sync_directory(folder)
        return pack

    def _open_pack(self, path: Path, name: str) -> StoreStream:
        with self._reported("open a pack"):
            try:
                # A FIFO under this name must not hold the reader for ever.
                descriptor = self._retried(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except FileNotFoundError:
                raise StoreDamaged(f"The pack {name} is missing from the store.") from None
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                raise StoreDamaged(f"The pack {name} can't be used ({error.strerror}).") from error
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise StoreDamaged(f"The pack {name} is not a plain file.")
            return StoreStream(io.FileIO(descriptor), str(self.root))

    @contextlib.contextmanager
    def _pack_parts(self, path: Path, name: str) -> Iterator[_Parts]:
        with contextlib.closing(self._open_pack(path, name)) as stream:
            yield _Parts(stream.fileno(), self._reported)

    def _sweep(self, folders: Iterable[Path], clock_in: Path, older_s: float) -> None:
        make_directory(clock_in)
        now = self._time(clock_in)
        for folder in folders:
            self._sweep_folder(folder, now - older_s)

    def _sweep_folder(self, folder: Path, before: float) -> None:
        for name in filter(is_temporary, self._names(folder)):
            path = folder / name
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime >= before:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _retried(self, action: Callable[[], T]) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return action()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                self._sleep(RETRY_S)
        return action()

    @property
    def shown(self) -> str:
        """Give the directory."""
        return str(self.root)

    def _unwritable(self, error: OSError) -> str:
        return f" ({error.strerror}); mount it writable for this user or group, or set WARMUP_STORE_MODE=read-only."

    def _failed(self, error: OSError) -> str:
        return f" ({error.strerror or error}); check its volume and server."


class StoreStream(io.RawIOBase):
    """A file of the store whose read errors are StoreUnavailable, so that they can't be taken for the live cache's."""

    def __init__(self, stream: io.FileIO, root: str) -> None:
        super().__init__()
        self._stream = stream
        self._root = root

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes. Raises StoreUnavailable."""
        try:
            return self._stream.read(size) or b""
        except OSError as error:
            raise StoreUnavailable(
                f"The store {self._root} failed to read a pack ({error.strerror}); check its volume and server."
            ) from error

    def fileno(self) -> int:
        """Give the file's descriptor."""
        return self._stream.fileno()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


class _Parts:
    """A file that is read at any place."""

    def __init__(self, descriptor: int, reported: Callable[[str], contextlib.AbstractContextManager[None]]) -> None:
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._reported = reported

    def read(self, start: int, length: int) -> bytes:
        found = b""
        with self._reported("read a pack"):
            while len(found) < length and (data := os.pread(self._descriptor, length - len(found), start + len(found))):
                found += data
        return found


def _is_whole(path: Path, pack: Pack) -> bool:
    """Say whether an archive of this digest is there already, with the bytes that its name says."""
    try:
        with open_plain(path, pack.bytes) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == pack.digest
    except (OSError, FileUnreadable):
        return False


def _shared_with_group(path: str, flags: int) -> int:
    return open_shared(path, flags, FILE_MODE)
