"""The store's directory as this process sees it: every access tried again where that helps, reported as an error of ours.

No name of the layout is known here (`store`, `records`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sidecar.caches.publish_messages import StoreMode
from sidecar.errors import FileUnreadable, StoreDamaged, StoreFull, StoreReadOnly, StoreUnavailable
from sidecar.files import create_json_exclusively, make_directory, read_json, temporary_name

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# A network volume says so when a file was replaced or is held by another client: worth another try.
PASSING = frozenset({errno.ESTALE, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
ATTEMPTS = 3
RETRY_S = 0.2
SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Checkpoint = Callable[[str], None]
T = TypeVar("T")


def no_checkpoint(_step: str) -> None:
    """Pass a disk step by. Tests hand in a function that ends the process instead."""


class Volume:
    """A directory shared by any number of pods.

    Operations raise StoreUnavailable, StoreReadOnly, StoreFull or StoreDamaged, never a bare OSError.
    """

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

    def _record(self, folder: Path, name: str, record: Mapping[str, Any]) -> None:
        if not SAFE_NAME.fullmatch(name) or name.startswith("."):
            raise StoreDamaged(f"{name!r:.60} can't be the name of a record.")
        with self._writing(f"write to {folder.name}"), contextlib.suppress(FileExistsError):
            make_directory(folder)
            create_json_exclusively(folder / f"{name}.json", {"format": 1, **record})
            self._checkpoint(folder.name)

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
        """Say whether something can be reached by a name. Raises StoreUnavailable."""
        with self._reported(f"look at {path.name}"):
            try:
                self._retried(path.lstat)
            except FileNotFoundError:
                return False
            except NotADirectoryError:
                return True
        return True

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

    def _retried(self, action: Callable[[], T]) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return action()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                self._sleep(RETRY_S)
        return action()

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        if self._mode == "read-only":
            raise StoreReadOnly(f"The store {self.root} is used read-only (WARMUP_STORE_MODE), nothing is published.")
        with self._reported(what):
            try:
                yield
            except OSError as error:
                if error.errno in NOT_ALLOWED:
                    raise StoreReadOnly(
                        f"The store {self.root} can't be written ({error.strerror}); mount it writable for this user "
                        "or group, or set WARMUP_STORE_MODE=read-only."
                    ) from error
                raise

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise StoreFull(f"The store {self.root} is full ({error.strerror}); give it more room.") from error
            raise StoreUnavailable(
                f"The store {self.root} failed to {what} ({error.strerror or error}); check its volume and server."
            ) from error


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

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()
