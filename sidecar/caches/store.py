"""The store as a directory: names, exclusive creation of generations, packs.

Layout: `v1/<scope>/<key>/{facts.json, HEAD, generations/<name>/manifest.json, boots/<id>.json, quarantine/<name>.json,
claims/<what>/<epoch>/{holder,beat}.json}` and `v1/packs/<sha256>.tar.zst`. What goes into a generation is decided in `publish`,
what comes out of it in `restore`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from sidecar.caches import manifest as manifests
from sidecar.caches.fingerprint import BOTH, Fingerprint, KeyScope, key_of
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.publish_messages import StoreMode
from sidecar.caches.racing import UNSEEN_S
from sidecar.caches.records import VERSION, Records
from sidecar.caches.volume import Checkpoint, StoreStream, no_checkpoint
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
    create_folder_exclusively,
    create_json_exclusively,
    is_temporary,
    make_directory,
    open_plain,
    open_shared,
    sync_directory,
    temporary_name,
    write_durably,
)

__all__ = ["Checkpoint", "DirectoryStore", "no_checkpoint", "open_store"]

MANIFEST_LIMIT = 512 * 1024 * 1024
MANIFEST = "manifest.json"
CHUNK = 1 << 20
# There is something under the name, and it is no file: somebody's doing, which no other try and no waiting changes.
NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
ORPHAN_S = 86400.0
RECORD_FOLDERS = ("boots", "quarantine", "claims", "generations")
# A folder that is listed late lacks what was published in the last minute: fewer than this.
UNSEEN_LIMIT = 256


def open_store(
    location: str, mode: StoreMode, sleep: Callable[[float], None], checkpoint: Checkpoint = no_checkpoint
) -> DirectoryStore:
    """Open a store by its location. Raises StoreUnavailable when it is not a directory that can be listed."""
    if "://" in location and not location.startswith("file://"):
        raise StoreUnavailable(f"The store {location} is not supported by this version; use a directory.")
    store = DirectoryStore(Path(location.removeprefix("file://")), mode, sleep, checkpoint)
    store.check()
    return store


class DirectoryStore(Records):
    """A store in a directory, shared by any number of pods.

    Every file but HEAD is written once, under a temporary name, and then renamed or linked. Operations raise
    StoreUnavailable, StoreReadOnly, StoreFull, StoreDamaged or LostRace, never a bare OSError.
    """

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
            except OSError as error:
                if error.errno in {errno.ENOENT, *NO_FILE}:
                    return None
                raise

    def damaged_packs(self, packs: Iterable[Pack], suspects: Collection[str] = ()) -> set[str]:
        """Name the packs that nobody can restore from: missing, of another size, or a suspect with other bytes.

        Packs are named by the digest of their bytes, so `suspects` (digests) are read and compared. Raises
        StoreUnavailable.
        """
        return {
            pack.digest
            for pack in packs
            if self.pack_bytes(pack.digest) != pack.bytes
            or (pack.digest in suspects and self._digest_of(pack.digest) != pack.digest)
        }

    def is_missing(self, digest: str) -> bool:
        """Say whether nothing at all can be seen under a pack's name. Raises StoreUnavailable."""
        return not self._is_there(self._pack(digest))

    def is_young(self, scope: KeyScope, key: str, name: str) -> bool:
        """Say whether a generation is so new, by the volume's own clock, that another client may not see its packs yet.

        A volume whose clock can't be asked, or that has no such generation any more, has none that is young.
        """
        try:
            made = self._generation(scope, key, name).stat().st_mtime
            return abs(self._time(self._pack_folder) - made) < UNSEEN_S
        except OSError:
            return False

    def _digest_of(self, digest: str) -> str:
        found = hashlib.sha256()
        try:
            with contextlib.closing(self.open_pack(digest)) as stream:
                while data := stream.read(CHUNK):
                    found.update(data)
        except StoreDamaged:
            return ""
        return found.hexdigest()

    def generations(self, scope: KeyScope, key: str) -> list[str]:
        """List the names of a key's generations, newest first; names without a manifest may be among them."""
        folder = self._key(scope, key) / "generations"
        names = self._names(folder)
        if not names and self._is_there(folder) and not folder.is_dir():
            raise StoreDamaged(f"{folder} is not a directory; remove it.")
        # A name that nobody could have computed is not ours; believed, its number would be where counting goes on.
        known = {name for name in names if name == manifests.generation_name(scope, key, manifests.sequence_of(name))}
        # A network volume may list a folder as it was a minute ago, and yet open by its name what was made since.
        newest = max(map(manifests.sequence_of, known), default=0)
        for sequence in range(newest + 1, newest + 1 + UNSEEN_LIMIT):
            name = manifests.generation_name(scope, key, sequence)
            if not self._is_there(self._generation(scope, key, name)):
                break
            known.add(name)
        return sorted(known, reverse=True)

    def read_manifest(self, scope: KeyScope, key: str, name: str) -> Manifest | None:
        """Read a generation; None when it has no manifest, as after a publisher that died. Raises StoreDamaged."""
        path = self._generation(scope, key, name)
        with self._reported(f"read {path.parent.name}"):
            try:
                with self._retried(lambda: open_plain(path, MANIFEST_LIMIT)) as stream:
                    found = manifests.read(stream)
            except FileNotFoundError:
                return None
            except FileUnreadable as error:
                raise StoreDamaged(f"Generation {name} can't be used: {error}") from error
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                raise StoreDamaged(f"Generation {name} can't be used ({error.strerror}).") from error
        if (found.scope, found.key, found.name) != (scope, key, name):
            raise StoreDamaged(f"Generation {name} says that it is {found.scope}/{found.key}/{found.name:.60}.")
        return found

    def create_generation(self, manifest: Manifest) -> None:
        """Make a generation visible, whole or not at all. Raises LostRace when its number is taken."""
        folder = self._generation(manifest.scope, manifest.key, manifest.name).parent
        with self._writing("publish a generation"):
            make_directory(folder.parent)
            make_directory(self._pack_folder)
            self._checkpoint("generation directory")
            try:
                create_folder_exclusively(folder, MANIFEST, lambda: manifests.lines(manifest), self._pack_folder)
            except FileExistsError:
                raise LostRace(f"Generation {manifest.name} was published by somebody else.") from None
            self._checkpoint("manifest")

    def write_head(self, manifest: Manifest) -> None:
        """Leave the hint which generation is the newest; it may be stale and nothing depends on it."""
        # The generation is there already: a hint that can't be left must not make a failure of it.
        with contextlib.suppress(StoreUnavailable, StoreReadOnly, StoreFull), self._writing("write HEAD"):
            write_durably(self._key(manifest.scope, manifest.key) / "HEAD", f"{manifest.name}\n".encode())
            self._checkpoint("head")

    def write_facts(self, scope: KeyScope, known: Fingerprint) -> None:
        """Record once which facts a key stands for; a record that can't be read, or tells of another key, is replaced."""
        folder = self._key(scope, known.key(scope))
        with self._writing("write facts.json"), contextlib.suppress(FileExistsError):
            make_directory(folder)
            there = self._is_there(folder / "facts.json")
            if there and self._facts_of(scope, folder.name) is None:
                (folder / "facts.json").unlink(missing_ok=True)
                there = False
            if not there:
                create_json_exclusively(
                    folder / "facts.json", {"format": 1, "scope": scope, "facts": dict(known.facts(scope))}
                )
            self._checkpoint("facts")

    def known_facts(self, scope: KeyScope, limit: int) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield up to `limit` keys of a scope with their facts; those that can't be read are passed over."""
        for key in self._names(self.root / VERSION / scope)[:limit]:
            with contextlib.suppress(WarmupError):
                if (facts := self._facts_of(scope, key)) is not None:
                    yield key, facts

    def _facts_of(self, scope: KeyScope, key: str) -> dict[str, str] | None:
        """Give the facts of a key, None when the record is garbage or of another key. Raises StoreUnavailable."""
        try:
            facts = self._read(self._key(scope, key) / "facts.json").get("facts")
        except StoreDamaged:
            return None
        return facts if isinstance(facts, dict) and key_of(scope, facts) == key else None

    def add_pack(self, fill: Callable[[BinaryIO], Pack]) -> Pack:
        """Write an archive under a temporary name, then name it by its digest. `fill` writes it."""
        with self._writing("write a pack"):
            make_directory(self._pack_folder)
            temporary = temporary_name(self._pack_folder / "pack")
            try:
                with open(temporary, "xb", opener=_shared_with_group) as stream:
                    self._checkpoint("pack opened")
                    pack = fill(stream)
                    stream.flush()
                    self._checkpoint("pack written")
                    os.fsync(stream.fileno())
                # One that is there and whole is left alone: who reads it over a network would lose it (ESTALE).
                if not self._is_whole(pack):
                    os.replace(temporary, self._pack(pack.digest))
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
            self._checkpoint("pack renamed")
            sync_directory(self._pack_folder)
        return pack

    def _is_whole(self, pack: Pack) -> bool:
        """Say whether an archive of this digest is in the store already, with the bytes that its name says."""
        try:
            with open_plain(self._pack(pack.digest), pack.bytes) as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() == pack.digest
        except (OSError, FileUnreadable):
            return False

    def open_pack(self, digest: str) -> StoreStream:
        """Open an archive for reading. Raises StoreDamaged when it is gone."""
        path = self._pack(digest)
        with self._reported("open a pack"):
            try:
                # A FIFO under this name must not hold the reader for ever.
                descriptor = self._retried(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except FileNotFoundError:
                raise StoreDamaged(f"The pack {digest[:12]} is missing from the store.") from None
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                raise StoreDamaged(f"The pack {digest[:12]} can't be used ({error.strerror}).") from error
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise StoreDamaged(f"The pack {digest[:12]} is not a plain file.")
            return StoreStream(io.FileIO(descriptor), str(self.root))

    def sweep_orphans(self, known: Fingerprint | None = None) -> None:
        """Remove what workers that died left under temporary names a day or more ago: archives, and records of these keys.

        What can't be removed is left for the next sweep. Raises StoreReadOnly.
        """
        with contextlib.suppress(StoreFull, StoreUnavailable), self._writing("sweep"):
            make_directory(self._pack_folder)
            now = self._time(self._pack_folder)
            keys = [self._key(scope, known.key(scope)) for scope in BOTH] if known else []
            for folder in (self._pack_folder, *keys, *(key / kind for key in keys for kind in RECORD_FOLDERS)):
                self._sweep(folder, now)

    def _sweep(self, folder: Path, now: float) -> None:
        for name in filter(is_temporary, self._names(folder)):
            path = folder / name
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime <= ORPHAN_S:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _generation(self, scope: str, key: str, name: str) -> Path:
        return self.root / VERSION / scope / key / "generations" / name / MANIFEST

    @property
    def _pack_folder(self) -> Path:
        return self.root / VERSION / "packs"

    def _pack(self, digest: str) -> Path:
        return self._pack_folder / f"{digest}.tar.zst"


def _shared_with_group(path: str, flags: int) -> int:
    return open_shared(path, flags, FILE_MODE)
