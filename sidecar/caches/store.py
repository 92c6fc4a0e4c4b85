"""The store as a directory: names, exclusive creation of generations, packs.

Layout: `v1/<scope>/<key>/{facts.json, HEAD, generations/<name>/manifest.json[.sig], boots/<id>.json, quarantine/<name>.json,
unfit/<name>.json, claims/<what>/<epoch>/{holder,beat}.json}` and `v1/packs/<sha256>.tar.zst`. What goes into a generation is
decided in `publish`, what comes out of it in `restore`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sidecar.caches import manifest as manifests
from sidecar.caches.fingerprint import BOTH, Fingerprint, KeyScope, key_of
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.medium import Checkpoint, PackStream, Parts, no_checkpoint
from sidecar.caches.publish_messages import StoreMode
from sidecar.caches.racing import UNSEEN_S
from sidecar.caches.records import VERSION
from sidecar.caches.upkeep import MANIFEST, MANIFEST_LIMIT, Upkeep
from sidecar.caches.volume import Volume
from sidecar.errors import (
    FileUnreadable,
    LostRace,
    StoreDamaged,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    WarmupError,
)
from sidecar.files import BUCKETS, Content, json_bytes

if TYPE_CHECKING:
    from sidecar.caches.signing import Trust

__all__ = ["Checkpoint", "DirectoryStore", "Store", "no_checkpoint", "open_store"]

SIGNATURE = "manifest.json.sig"
SIGNATURE_LIMIT = 64 * 1024
CHUNK = 1 << 20
# A folder that is listed late lacks what was published in the last minute: fewer than this.
UNSEEN_LIMIT = 256


class Store(Upkeep):
    """A store, shared by any number of pods, whatever it is kept in.

    Everything but HEAD, beats and signatures is written once, and seen whole or not at all. Operations raise
    StoreUnavailable, StoreReadOnly, StoreFull, StoreDamaged or LostRace, never a bare OSError.
    """

    #: Whose generations are believed, and who signs what is published here; None: signatures are not looked at.
    trust: Trust | None = None
    #: Stores in directories that may hold some of the packs, too, and are asked before this one.
    fronts: Sequence[Path] = ()

    def keys(self, scope: KeyScope) -> list[str]:
        """List the keys of a scope."""
        return self._names(self.root / VERSION / scope)

    def pack_bytes(self, digest: str) -> int | None:
        """Give the size of an archive in bytes; None when it is missing."""
        path = self._pack(digest)
        with self._reported("look at a pack"):
            return self._size(path)

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
            return abs(self._age_s(self._generation(scope, key, name), self._pack_folder)) < UNSEEN_S
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
        if not names and self._is_in_the_way(folder):
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

    def read_manifest(
        self, scope: KeyScope, key: str, name: str, on_packs: manifests.OnPacks = manifests.unheard
    ) -> Manifest | None:
        """Read a generation; None when it has no manifest, as after a publisher that died.

        `on_packs` hears of its packs as soon as they are known, before its files and its signature are looked at.
        Raises StoreDamaged; Untrusted where signatures are looked at and none vouches for every byte of it.
        """
        return self._manifest(scope, key, name, on_packs, self.trust)

    def unbelieved(self, scope: KeyScope, key: str, name: str) -> Manifest | None:
        """Read a generation whoever signed it, to know what must not be used. Raises StoreDamaged."""
        return self._manifest(scope, key, name, manifests.unheard, None)

    def _manifest(
        self, scope: KeyScope, key: str, name: str, on_packs: manifests.OnPacks, trust: Trust | None
    ) -> Manifest | None:
        stream = self.open_manifest(scope, key, name)
        if stream is None:
            return None
        with self._reported(f"read {name}"), stream:
            if trust is None:
                found = manifests.read(stream, on_packs)
            else:
                found = trust.read(stream, self.signature(scope, key, name), (scope, key, name), on_packs)
        if (found.scope, found.key, found.name) != (scope, key, name):
            raise StoreDamaged(f"Generation {name} says that it is {found.scope}/{found.key}/{found.name:.60}.")
        return found

    def open_manifest(self, scope: KeyScope, key: str, name: str) -> BinaryIO | None:
        """Open the manifest of a generation as it stands there; None when there is none. Raises StoreDamaged."""
        path = self._generation(scope, key, name)
        with self._reported(f"read {name}"):
            try:
                return self._opened(path, MANIFEST_LIMIT)
            except FileNotFoundError:
                return None
            except FileUnreadable as error:
                raise StoreDamaged(f"Generation {name} can't be used: {error}") from error

    def signature(self, scope: KeyScope, key: str, name: str) -> bytes | None:
        """Read the signature of a generation as it stands there; None when there is none."""
        path = self._generation(scope, key, name).with_name(SIGNATURE)
        with self._reported("read a signature"):
            try:
                with self._opened(path, SIGNATURE_LIMIT) as stream:
                    return stream.read()
            except FileNotFoundError:
                return None
            except FileUnreadable as error:
                raise StoreDamaged(str(error)) from error

    def check_signature(self, scope: KeyScope, key: str, name: str) -> None:
        """Make sure that a trusted key signed a generation of this name, without a look at its manifest.

        Raises Untrusted, StoreDamaged or StoreUnavailable; nothing where signatures are not looked at.
        """
        if self.trust is not None:
            self.trust.checked(self.signature(scope, key, name), (scope, key, name))

    def write_signature(self, scope: KeyScope, key: str, name: str, data: bytes) -> None:
        """Put a signature beside the manifest of a generation, or in the place of another one."""
        with self._writing("write a signature"):
            self._replace(self._generation(scope, key, name).with_name(SIGNATURE), data)
            self._checkpoint("signature")

    def create_generation(self, manifest: Manifest) -> None:
        """Make a generation visible, whole or not at all; signed where there is a key. Raises LostRace if its number is taken."""
        place, trust = (manifest.scope, manifest.key, manifest.name), self.trust
        if trust is None or not trust.signs:
            self.place_generation(place, lambda: manifests.lines(manifest), {})
            return
        digest = hashlib.sha256()

        def lines() -> Iterator[bytes]:
            nonlocal digest
            digest = hashlib.sha256()
            for line in manifests.lines(manifest):
                digest.update(line)
                yield line

        def signature() -> tuple[bytes]:
            # Asked for after the manifest was written, and thereby digested.
            return (trust.signature(place, manifest.parent, digest.hexdigest()),)

        self.place_generation(place, lines, {SIGNATURE: signature})

    def place_generation(self, place: tuple[str, str, str], manifest: Content, beside: Mapping[str, Content]) -> None:
        """Make a generation visible, whole or not at all, from its manifest's bytes. Raises LostRace if its number is taken."""
        folder = self._generation(*place).parent
        with self._writing("publish a generation"):
            self._make_folders(folder.parent, self._pack_folder)
            self._checkpoint("generation directory")
            try:
                self._create_alone(folder, MANIFEST, manifest, self._pack_folder, beside)
            except FileExistsError:
                raise LostRace(f"Generation {place[2]} was published by somebody else.") from None
            self._checkpoint("manifest")

    def write_head(self, manifest: Manifest) -> None:
        """Leave the hint which generation is the newest; it may be stale and nothing depends on it."""
        # The generation is there already: a hint that can't be left must not make a failure of it.
        with contextlib.suppress(StoreUnavailable, StoreReadOnly, StoreFull), self._writing("write HEAD"):
            self._replace(self._key(manifest.scope, manifest.key) / "HEAD", f"{manifest.name}\n".encode())
            self._checkpoint("head")

    def write_facts(self, scope: KeyScope, known: Fingerprint) -> None:
        """Record once which facts a key stands for; a record that can't be read, or tells of another key, is replaced."""
        self.place_facts(scope, known.key(scope), known.facts(scope))

    def place_facts(self, scope: KeyScope, key: str, facts: Mapping[str, str]) -> None:
        """Record once the facts that make a key, which the caller has made sure of."""
        path = self._key(scope, key) / "facts.json"
        with self._writing("write facts.json"), contextlib.suppress(FileExistsError):
            there = self._is_there(path)
            if there and self._facts_of(scope, key) is None:
                self._remove(path)
                there = False
            if not there:
                self._create(path, json_bytes({"format": 1, "scope": scope, "facts": dict(facts)}))
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
        """Write an archive, then name it by its digest. `fill` writes it."""
        with self._writing("write a pack"):
            return self._write_pack(self._pack_folder, fill, lambda pack: self._pack(pack.digest))

    def open_pack(self, digest: str) -> PackStream:
        """Open an archive for reading. Raises StoreDamaged when it is gone."""
        return self._open_pack(self._pack(digest), digest[:12])

    def pack_parts(self, digest: str) -> AbstractContextManager[Parts]:
        """Open an archive to be read at any place. Raises StoreDamaged when it is gone."""
        return self._pack_parts(self._pack(digest), digest[:12])

    def sweep_orphans(self, known: Fingerprint | None = None) -> None:
        """Remove what workers that died left under temporary names a day or more ago: archives, and records of these keys.

        What can't be removed is left for the next sweep. Raises StoreReadOnly.
        """
        with contextlib.suppress(StoreFull, StoreUnavailable), self._writing("sweep"):
            keys = [self._key(scope, known.key(scope)) for scope in BOTH] if known else []
            self._sweep_keys(keys)


class DirectoryStore(Volume, Store):
    """A store in a directory: see `volume` for how it is written."""


def open_store(
    location: str, mode: StoreMode, sleep: Callable[[float], None], checkpoint: Checkpoint = no_checkpoint
) -> Store:
    """Open a store by its location: a directory, or a bucket's URL. Raises StoreUnavailable when it can't be listed.

    Of several, separated by commas, the last one is the store; those before it are directories with copies of its packs.
    """
    store: Store
    *fronts, location = location.split(",")
    if location.startswith(BUCKETS):
        from sidecar.caches.bucket import open_bucket

        store = open_bucket(location, mode, checkpoint)
    elif "://" in location and not location.startswith("file://"):
        raise StoreUnavailable(f"The store {location} is none that is known; use a directory, s3://, gs:// or az://.")
    else:
        store = DirectoryStore(Path(location.removeprefix("file://")), mode, sleep, checkpoint)
    store.fronts = [Path(front) for front in fronts]
    store.check()
    return store
