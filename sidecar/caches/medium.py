"""What a store is kept in, behind one seam: the operations on names that a directory and a bucket both can do.

Names are paths below `root`, whatever they stand for. No name of the layout is known here (`store`, `records`), and how an
operation is done is told by `volume` and `bucket`.
"""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from sidecar.caches.manifest import Pack
from sidecar.caches.publish_messages import StoreMode
from sidecar.errors import StoreDamaged, StoreFull, StoreReadOnly, StoreUnavailable
from sidecar.files import NOTHING, Content, json_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Checkpoint = Callable[[str], None]


def no_checkpoint(_step: str) -> None:
    """Pass a disk step by. Tests hand in a function that ends the process instead."""


class PackStream(Protocol):
    """An archive that is open for reading; what goes wrong is StoreUnavailable or StoreDamaged."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; nothing at the end."""
        ...

    def close(self) -> None:
        """Give back what the reading took."""
        ...


class Parts(Protocol):
    """An archive that is read at any place, by several threads at once; what goes wrong is as with PackStream."""

    size: int

    def read(self, start: int, length: int) -> Buffer:
        """Read bytes, all of them."""
        ...


class Medium(ABC):
    """A place for named bytes that any number of pods share.

    Operations raise FileNotFoundError, FileExistsError, FileUnreadable (there is something, and it is no file) or another
    OSError, which `_reported` and `_writing` make errors of ours from; those that say so do that themselves.
    """

    kind: Literal["volume", "bucket"]
    root: Path
    #: Where a bucket's archives are written before they are sent; None: the system's directory for temporary files.
    spool: Path | None = None
    _mode: StoreMode
    _checkpoint: Checkpoint

    @abstractmethod
    def check(self) -> None:
        """Make sure that the store is there. Raises StoreUnavailable with a sentence."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """Give the place as sentences name it."""

    @abstractmethod
    def _unwritable(self, error: OSError) -> str:
        """Go on after "The store … can't be written": why, and what to do about it."""

    @abstractmethod
    def _failed(self, error: OSError) -> str:
        """Go on after "The store … failed to …": why, and what to do about it."""

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Turn what goes wrong while writing into StoreReadOnly, StoreFull or StoreUnavailable."""
        if self._mode == "read-only":
            raise StoreReadOnly(f"The store {self.shown} is used read-only (WARMUP_STORE_MODE), nothing is published.")
        with self._reported(what):
            try:
                yield
            except OSError as error:
                if error.errno in NOT_ALLOWED:
                    raise StoreReadOnly(f"The store {self.shown} can't be written{self._unwritable(error)}") from error
                raise

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn what goes wrong into StoreFull or StoreUnavailable."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise StoreFull(f"The store {self.shown} is full ({error.strerror}); give it more room.") from error
            raise StoreUnavailable(f"The store {self.shown} failed to {what}{self._failed(error)}") from error

    @abstractmethod
    def _names(self, folder: Path) -> list[str]:
        """List what lies directly below a name, sorted; nothing where there is no such thing. Raises StoreUnavailable."""

    @abstractmethod
    def _is_there(self, path: Path) -> bool:
        """Say whether something can be reached by a name. Raises StoreUnavailable."""

    @abstractmethod
    def _is_in_the_way(self, folder: Path) -> bool:
        """Say whether something lies where a folder should be. Raises OSError."""

    @abstractmethod
    def _read(self, path: Path) -> dict[str, Any]:
        """Read a small JSON object. Raises StoreDamaged, and StoreUnavailable of FileNotFoundError when it is not there."""

    @abstractmethod
    def _opened(self, path: Path, limit: int) -> BinaryIO:
        """Open what has at most `limit` bytes for reading."""

    @abstractmethod
    def _size(self, path: Path) -> int | None:
        """Give a size in bytes; None when nothing that has one is there."""

    @abstractmethod
    def _age_s(self, path: Path, beside: Path) -> float:
        """Give how long ago something was written, in seconds of the medium's own clock, which is asked in a folder."""

    def _with_ages(self, folder: Path) -> Iterator[tuple[str, int, float]]:
        """Give name, size in bytes and age in seconds of what lies directly below a name; nothing where there is no such thing.

        Raises OSError. A medium that tells of many things at once does better than this, which asks about each.
        """
        for name in self._names(folder):
            size = self._size(folder / name)
            if size is not None:
                yield name, size, self._age_s(folder / name, folder)

    @abstractmethod
    def _make_folders(self, *folders: Path) -> None:
        """Make folders and those above them, where there are such things."""

    @abstractmethod
    def _create(self, path: Path, data: Content) -> None:
        """Write something whole unless it is there."""

    @abstractmethod
    def _create_alone(
        self, folder: Path, name: str, data: Content, prepare_in: Path, beside: Mapping[str, Content] = NOTHING
    ) -> None:
        """Write something whole into a folder of its own, with what stands beside it, unless there is such a folder."""

    @abstractmethod
    def _replace(self, path: Path, data: bytes) -> None:
        """Write something whether it is there or not."""

    @abstractmethod
    def _remove(self, path: Path) -> bool:
        """Remove something; False when it was not there."""

    @abstractmethod
    def _remove_folder(self, folder: Path) -> None:
        """Remove all below a name; what can't be removed stays."""

    @abstractmethod
    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder below which nothing is, where there are such things; one that holds something stays."""

    @abstractmethod
    def _write_pack(self, folder: Path, fill: Callable[[BinaryIO], Pack], place: Callable[[Pack], Path]) -> Pack:
        """Write an archive below a folder, then name it as `place` says of what `fill` wrote."""

    @abstractmethod
    def _open_pack(self, path: Path, name: str) -> PackStream:
        """Open an archive, called `name` in sentences, for reading. Raises StoreDamaged when it is gone."""

    @abstractmethod
    def _pack_parts(self, path: Path, name: str) -> AbstractContextManager[Parts]:
        """Open an archive to be read at any place. Raises StoreDamaged when it is gone."""

    @abstractmethod
    def _sweep(self, folders: Iterable[Path], clock_in: Path, older_s: float) -> None:
        """Remove what writers that died left in folders under temporary names longer ago than that."""

    def _record(self, folder: Path, name: str, record: Mapping[str, Any]) -> None:
        if not SAFE_NAME.fullmatch(name) or name.startswith("."):
            raise StoreDamaged(f"{name!r:.60} can't be the name of a record.")
        with self._writing(f"write to {folder.name}"), suppress(FileExistsError):
            self._create(folder / f"{name}.json", json_bytes({"format": 1, **record}))
            self._checkpoint(folder.name)
