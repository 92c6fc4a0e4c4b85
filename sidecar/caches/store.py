"""The store as a directory: names, exclusive creation of generations, packs, quarantine and boot records.

Layout: `v1/<scope>/<key>/{facts.json, HEAD, generations/<name>/manifest.json, boots/<id>.json,
quarantine/<name>.json}` and `v1/packs/<sha256>.tar.zst`. What goes into a generation is decided in `publish`,
what comes out of it in `restore`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sidecar.caches import manifest as manifests
from sidecar.caches.fingerprint import Fingerprint, KeyScope, key_of
from sidecar.caches.live_cache import make_directory
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.messages import StoreMode
from sidecar.errors import (
    FileUnreadable,
    LostRace,
    StoreDamaged,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    WarmupError,
)
from sidecar.files import (
    FILE_MODE,
    create_json_exclusively,
    is_temporary,
    read_json,
    sync_directory,
    temporary_name,
    write_durably,
)

VERSION = "v1"
MANIFEST_LIMIT = 512 * 1024 * 1024
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# A network volume says so when a file was replaced or is held by another client: worth another try.
PASSING = frozenset({errno.ESTALE, errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
ATTEMPTS = 3
RETRY_S = 0.2
ORPHAN_S = 86400.0
SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Checkpoint = Callable[[str], None]
T = TypeVar("T")


def no_checkpoint(_step: str) -> None:
    """Pass a disk step by. Tests hand in a function that ends the process instead."""


def open_store(
    location: str, mode: StoreMode, sleep: Callable[[float], None], checkpoint: Checkpoint = no_checkpoint
) -> DirectoryStore:
    """Open a store by its location. Raises StoreUnavailable when it is not a directory that can be listed."""
    if "://" in location and not location.startswith("file://"):
        raise StoreUnavailable(f"The store {location} is not supported by this version; use a directory.")
    store = DirectoryStore(Path(location.removeprefix("file://")), mode, sleep, checkpoint)
    store.check()
    return store


class DirectoryStore:
    """A store in a directory, shared by any number of pods.

    Every file but HEAD is written once, under a temporary name, and then renamed or linked. Operations raise
    StoreUnavailable, StoreReadOnly, StoreFull, StoreDamaged or LostRace, never a bare OSError.
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
        self._packs = root / VERSION / "packs"

    def check(self) -> None:
        """Make sure that the store's directory is there. Raises StoreUnavailable with a sentence."""
        with self._reported("open"):
            if not self._retried(self.root.is_dir):
                raise StoreUnavailable(
                    f"The store {self.root} does not exist or is not a directory; mount it, or correct WARMUP_STORE."
                )

    def keys(self, scope: KeyScope) -> list[str]:
        """List the keys of a scope."""
        return self._names(self.root / VERSION / scope)

    def pack_bytes(self, digest: str) -> int | None:
        """Give the size of an archive in bytes; None when it is missing."""
        path = self._pack(digest)
        with self._reported("look at a pack"):
            try:
                return self._retried(path.stat).st_size
            except FileNotFoundError:
                return None

    def generations(self, scope: KeyScope, key: str) -> list[str]:
        """List the names of a key's generations, newest first; names without a manifest may be among them."""
        names = self._names(self._key(scope, key) / "generations")
        # A name that nobody could have computed is not ours; believed, its number would be where counting goes on.
        known = [name for name in names if name == manifests.generation_name(scope, key, manifests.sequence_of(name))]
        return sorted(known, reverse=True)

    def quarantined(self, scope: KeyScope, key: str) -> set[str]:
        """Name the generations of a key that must not be restored."""
        return {name.removesuffix(".json") for name in self._names(self._key(scope, key) / "quarantine")}

    def read_manifest(self, scope: KeyScope, key: str, name: str) -> Manifest | None:
        """Read a generation; None when it has no manifest, as after a publisher that died. Raises StoreDamaged."""
        path = self._generation(scope, key, name)
        with self._reported(f"read {path.parent.name}"):
            try:
                found = manifests.from_json(self._retried(lambda: read_json(path, MANIFEST_LIMIT)))
            except FileNotFoundError:
                return None
            except FileUnreadable as error:
                raise StoreDamaged(f"Generation {name} can't be used: {error}") from error
        if (found.scope, found.key, found.name) != (scope, key, name):
            raise StoreDamaged(f"Generation {name} says that it is {found.scope}/{found.key}/{found.name:.60}.")
        return found

    def create_generation(self, manifest: Manifest) -> None:
        """Make a generation visible, whole or not at all. Raises LostRace when its number is taken."""
        path = self._generation(manifest.scope, manifest.key, manifest.name)
        with self._writing("publish a generation"):
            make_directory(path.parent)
            self._checkpoint("generation directory")
            try:
                create_json_exclusively(path, manifest.to_json())
            except FileExistsError:
                raise LostRace(f"Generation {manifest.name} was published by somebody else.") from None
            self._checkpoint("manifest")
            sync_directory(path.parent.parent)

    def write_head(self, manifest: Manifest) -> None:
        """Leave the hint which generation is the newest; it may be stale and nothing depends on it."""
        with self._writing("write HEAD"):
            write_durably(self._key(manifest.scope, manifest.key) / "HEAD", f"{manifest.name}\n".encode())
            self._checkpoint("head")

    def write_facts(self, scope: KeyScope, known: Fingerprint) -> None:
        """Record once which facts a key stands for."""
        folder = self._key(scope, known.key(scope))
        with self._writing("write facts.json"), contextlib.suppress(FileExistsError):
            make_directory(folder)
            if not (folder / "facts.json").exists():
                create_json_exclusively(
                    folder / "facts.json", {"format": 1, "scope": scope, "facts": dict(known.facts(scope))}
                )
            self._checkpoint("facts")

    def known_facts(self, scope: KeyScope, limit: int) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield up to `limit` keys of a scope with their facts; those that can't be read are passed over."""
        for key in self._names(self.root / VERSION / scope)[:limit]:
            try:
                facts = self._read(self._key(scope, key) / "facts.json").get("facts")
            except WarmupError:
                continue
            if isinstance(facts, dict) and key_of(scope, facts) == key:
                yield key, facts

    def add_pack(self, fill: Callable[[BinaryIO], Pack]) -> Pack:
        """Write an archive under a temporary name, then name it by its digest. `fill` writes it."""
        with self._writing("write a pack"):
            make_directory(self._packs)
            temporary = temporary_name(self._packs / "pack")
            try:
                with open(temporary, "xb", opener=_shared_with_group) as stream:
                    self._checkpoint("pack opened")
                    pack = fill(stream)
                    stream.flush()
                    self._checkpoint("pack written")
                    os.fsync(stream.fileno())
                os.replace(temporary, self._pack(pack.digest))
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
            self._checkpoint("pack renamed")
            sync_directory(self._packs)
        return pack

    def open_pack(self, digest: str) -> StoreStream:
        """Open an archive for reading. Raises StoreDamaged when it is gone."""
        path = self._pack(digest)
        with self._reported("open a pack"):
            try:
                return StoreStream(self._retried(lambda: open(path, "rb", buffering=0)), str(self.root))
            except FileNotFoundError:
                raise StoreDamaged(f"The pack {digest[:12]} is missing from the store.") from None

    def sweep_orphans(self) -> None:
        """Remove temporary archives that publishers left behind when they died, a day or more ago."""
        with self._writing("sweep"):
            make_directory(self._packs)
            probe = temporary_name(self._packs / "probe")
            write_durably(probe, b"")
            # The store's own clock: its server's may differ from ours by more than a day.
            now = probe.stat().st_mtime
            probe.unlink(missing_ok=True)
            for name in filter(is_temporary, self._names(self._packs)):
                with contextlib.suppress(FileNotFoundError):
                    if now - (self._packs / name).stat().st_mtime > ORPHAN_S:
                        (self._packs / name).unlink()

    def record_boot(self, scope: KeyScope, key: str, boot: str, record: Mapping[str, Any]) -> None:
        """Record once how a boot with a generation of this key went. `boot` is the attempt."""
        self._record(self._key(scope, key) / "boots", boot, record)

    def boots(self, scope: KeyScope, key: str) -> list[dict[str, Any]]:
        """Read the boot records of a key; those that can't be read are passed over."""
        folder = self._key(scope, key) / "boots"
        found = []
        for name in self._names(folder):
            with contextlib.suppress(StoreDamaged):
                found.append(self._read(folder / name))
        return found

    def quarantine(self, scope: KeyScope, key: str, name: str, record: Mapping[str, Any]) -> None:
        """Keep a generation from being restored again, with the reason."""
        self._record(self._key(scope, key) / "quarantine", name, record)

    def release(self, scope: KeyScope, key: str, name: str) -> bool:
        """Take a quarantine back; False when there was none."""
        path = self._key(scope, key) / "quarantine" / f"{name}.json"
        with self._writing("take a quarantine back"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

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

    def _key(self, scope: str, key: str) -> Path:
        return self.root / VERSION / scope / key

    def _generation(self, scope: str, key: str, name: str) -> Path:
        return self.root / VERSION / scope / key / "generations" / name / "manifest.json"

    def _pack(self, digest: str) -> Path:
        return self._packs / f"{digest}.tar.zst"

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
            raise StoreUnavailable(f"The store {self.root} failed to {what} ({error.strerror or error}).") from error


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
            raise StoreUnavailable(f"The store {self._root} failed to read a pack ({error.strerror}).") from error

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


def _shared_with_group(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
