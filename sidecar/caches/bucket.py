"""The store in a bucket: the same object names as in a directory, each written whole, what is immutable only if it is absent.

No name of the layout is known here (`store`, `records`), and how packs come from it in parallel is in `landing`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sidecar.caches.bucket_client import client
from sidecar.caches.bucket_errors import explained
from sidecar.caches.bucket_stream import ObjectParts, RangeStream
from sidecar.caches.manifest import Pack
from sidecar.caches.medium import Checkpoint, Medium, no_checkpoint
from sidecar.caches.publish_messages import StoreMode
from sidecar.caches.store import Store
from sidecar.errors import FileUnreadable, StoreDamaged, StoreUnavailable
from sidecar.files import JSON_LIMIT, NOTHING, Content, is_temporary, json_object, pieces, temporary_name

#: Bytes of one request, for reading and for the parts of what is uploaded in several (S3: at least 5 MiB).
PART = 8 << 20
#: Parts on their way at a time: together with `PART` the most memory that an upload takes.
AT_A_TIME = 4
CLOCK = Path("/v1/clock")

T = TypeVar("T")


class Bucket(Medium):
    """A bucket, or what lies below a prefix in one. There are no folders: a name with something below it is one.

    Requests are tried again by the client (`bucket_client`), and each ends after a time.
    """

    kind = "bucket"

    def __init__(
        self,
        location: str,
        mode: StoreMode,
        environment: Mapping[str, str],
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        self.location = location
        self.root = Path("/")
        self._mode = mode
        self._checkpoint = checkpoint
        self._client = client(location, environment)
        self._keeps_conditions = False

    def check(self) -> None:
        """Make sure that the bucket can be listed. Raises StoreUnavailable with a sentence."""
        with self._reported("answer"):
            self._listed(self.root / "v1")

    def prove_writing(self) -> None:
        """Make sure that it can be written, and that of two writers of one name one is refused.

        Raises StoreReadOnly, StoreFull or StoreUnavailable with a sentence.
        """
        with self._writing("be written"):
            self._prove_conditions()

    def name_of(self, path: Path) -> str:
        """Give the name of an object below the prefix."""
        return str(path.relative_to(self.root))

    def _listed(self, folder: Path) -> tuple[list[str], list[Mapping[str, Any]]]:
        import obstore

        found = _asked(lambda: obstore.list_with_delimiter(self._client, self.name_of(folder)))
        return list(found["common_prefixes"]), list(found["objects"])

    def _names(self, folder: Path) -> list[str]:
        with self._reported(f"list {folder.name}"):
            below, objects = self._listed(folder)
        # Some servers list an empty folder as an object of its own name.
        names = {name.rstrip("/").rpartition("/")[2] for name in (*below, *(str(one["path"]) for one in objects))}
        own = {folder.name} if self.name_of(folder) in {str(one["path"]) for one in objects} else set()
        return sorted(names - own)

    def _head(self, path: Path) -> Mapping[str, Any]:
        import obstore

        return _asked(lambda: obstore.head(self._client, self.name_of(path)))

    def _is_there(self, path: Path) -> bool:
        with self._reported(f"look at {path.name}"):
            return self._size(path) is not None

    def _is_in_the_way(self, folder: Path) -> bool:
        return False

    def _size(self, path: Path) -> int | None:
        try:
            return int(self._head(path)["size"])
        except FileNotFoundError:
            return None

    def _read(self, path: Path) -> dict[str, Any]:
        with self._reported(f"read {path.name}"):
            try:
                with self._opened(path, JSON_LIMIT) as stream:
                    return json_object(stream.read(), f"{self.location}{path}")
            except FileUnreadable as error:
                raise StoreDamaged(str(error)) from error

    def _opened(self, path: Path, limit: int) -> BinaryIO:
        import obstore

        found = _asked(lambda: obstore.get(self._client, self.name_of(path)))
        size = int(found.meta["size"])
        if size > limit:
            raise FileUnreadable(f"{self.location}{path} is larger than the {limit} bytes allowed for such a file.")
        if size > PART:
            return io.BufferedReader(RangeStream(self._client, self.name_of(path), size, PART), PART)
        data = bytes(_asked(found.bytes))
        return io.BytesIO(data)

    def _age_s(self, path: Path, beside: Path) -> float:
        """Compare two times of writing that the bucket gave, each a whole second."""
        made = self._head(path)["last_modified"]
        return float((self._now() - made).total_seconds())

    def _with_ages(self, folder: Path) -> Iterator[tuple[str, int, float]]:
        found = [one for one in self._listed(folder)[1] if str(one["path"]) != self.name_of(folder)]
        now = self._now() if found else None
        for one in found:
            yield (
                str(one["path"]).rpartition("/")[2],
                int(one["size"]),
                float((now - one["last_modified"]).total_seconds()),
            )

    def _now(self) -> Any:
        """Ask the bucket's own clock by writing an object for a moment."""
        import obstore

        probe = temporary_name(CLOCK / "now")
        self._put(probe, b"")
        try:
            return self._head(probe)["last_modified"]
        finally:
            with contextlib.suppress(OSError):
                _asked(lambda: obstore.delete(self._client, self.name_of(probe)))

    def _make_folders(self, *folders: Path) -> None:
        return

    def _put(self, path: Path, data: bytes, absent: bool = False) -> None:
        import obstore

        mode: Any = "create" if absent else "overwrite"
        _asked(lambda: obstore.put(self._client, self.name_of(path), data, mode=mode, use_multipart=False))

    def _create(self, path: Path, data: Content) -> None:
        whole = b"".join(pieces(data))
        try:
            self._put(path, whole, absent=True)
        except FileExistsError:
            # A request whose answer was lost is sent again, and then finds what the first one wrote.
            with contextlib.suppress(FileNotFoundError, FileUnreadable), self._opened(path, len(whole)) as stream:
                if stream.read() == whole:
                    return
            raise

    def _create_alone(
        self, folder: Path, name: str, data: Content, prepare_in: Path, beside: Mapping[str, Content] = NOTHING
    ) -> None:
        self._prove_conditions()
        self._create(folder / name, data)
        # Whoever dies here leaves a generation without what stands beside it: nobody who wants that believes it.
        self._checkpoint("generation alone")
        for other, content in beside.items():
            self._put(folder / other, b"".join(pieces(content)))

    def _prove_conditions(self) -> None:
        """Make sure, once, that of two writers of one name one is refused. Raises OSError, StoreUnavailable."""
        if self._keeps_conditions:
            return
        probe = temporary_name(CLOCK / "once")
        self._put(probe, b"", absent=True)
        try:
            self._put(probe, b"", absent=True)
        except FileExistsError:
            self._keeps_conditions = True
        finally:
            with contextlib.suppress(OSError):
                self._remove(probe)
        if not self._keeps_conditions:
            raise StoreUnavailable(
                f"The server of the store {self.location} takes no notice of conditions (If-None-Match), so two publishers "
                "could overwrite each other: nothing is published. Use a server that keeps them."
            )

    def _replace(self, path: Path, data: bytes) -> None:
        self._put(path, data)

    def _remove(self, path: Path) -> bool:
        import obstore

        if self._size(path) is None:
            return False
        _asked(lambda: obstore.delete(self._client, self.name_of(path)))
        return True

    def _remove_folder(self, folder: Path) -> None:
        import obstore

        def all_below() -> None:
            for batch in obstore.list(self._client, self.name_of(folder)):
                obstore.delete(self._client, [str(one["path"]) for one in batch])

        with contextlib.suppress(OSError):
            _asked(all_below)

    def _remove_empty(self, folder: Path) -> None:
        return

    def _write_pack(self, folder: Path, fill: Callable[[BinaryIO], Pack], place: Callable[[Pack], Path]) -> Pack:
        if self.spool is not None:
            self.spool.mkdir(parents=True, exist_ok=True)
        # Without a name: a worker that is killed leaves nothing.
        with tempfile.TemporaryFile(dir=self.spool) as stream:
            self._checkpoint("pack opened")
            pack = fill(stream)
            stream.flush()
            self._checkpoint("pack written")
            # One that is there is written again: it may have been out of use for long, and is not to be removed now (`cleaning`).
            # Not copied onto itself: Amazon S3 refuses that where nothing else changes (InvalidRequest).
            self._upload(place(pack), stream, pack.bytes)
            self._checkpoint("pack uploaded")
        return pack

    def _upload(self, path: Path, stream: BinaryIO, size: int) -> None:
        """Send an archive. It is not conditional: whoever wrote that name sent the same bytes, or damaged ones."""
        import obstore

        stream.seek(0)
        if size <= PART:
            self._put(path, stream.read())
            return
        _asked(
            lambda: obstore.put(
                self._client, self.name_of(path), stream, use_multipart=True, chunk_size=PART, max_concurrency=AT_A_TIME
            )
        )

    def _open_pack(self, path: Path, name: str) -> RangeStream:
        with self._reported("open a pack"):
            size = self._size(path)
        if size is None:
            raise StoreDamaged(f"The pack {name} is missing from the store.")
        return RangeStream(self._client, self.name_of(path), size, PART, self._reported)

    @contextlib.contextmanager
    def _pack_parts(self, path: Path, name: str) -> Iterator[ObjectParts]:
        with contextlib.closing(self._open_pack(path, name)) as stream:
            yield ObjectParts(self._client, self.name_of(path), stream.size, self._reported)

    def _sweep(self, folders: Iterable[Path], clock_in: Path, older_s: float) -> None:
        """Remove what asked for the time and died. Parts of uploads that died can't be seen here: see the README."""
        for name in filter(is_temporary, self._names(CLOCK)):
            with contextlib.suppress(FileNotFoundError):
                if self._age_s(CLOCK / name, clock_in) > older_s:
                    self._remove(CLOCK / name)

    @property
    def shown(self) -> str:
        """Give the URL."""
        return self.location

    def _unwritable(self, error: OSError) -> str:
        return f" ({error.strerror}), or set WARMUP_STORE_MODE=read-only."

    def _failed(self, error: OSError) -> str:
        return f": {error.strerror or error}."


class BucketStore(Bucket, Store):
    """A store in a bucket."""


def open_bucket(location: str, mode: StoreMode, checkpoint: Checkpoint = no_checkpoint) -> BucketStore:
    """Open a bucket by its URL with this process's environment; nothing is asked of it yet. Raises StoreUnavailable."""
    return BucketStore(location.rstrip("/"), mode, os.environ, checkpoint)


def _asked(ask: Callable[[], T]) -> T:
    """Do a request; raises OSError with a clause for people."""
    try:
        return ask()
    except Exception as error:
        # The client's errors have no class in common that can be named without loading it.
        if isinstance(error, OSError) or type(error).__module__.startswith("obstore"):
            raise explained(error) from error
        raise
