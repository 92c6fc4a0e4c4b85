"""What lies in a store, for people: keys with their generations, one generation in detail, and whether all is whole.

Nothing is changed here (where there are claims a file is written for a moment, to ask the store's clock), and nothing of this
runs in the daemon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from sidecar.caches.file_table import StoredFile
from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import Manifest
from sidecar.caches.messages import FIRST
from sidecar.caches.ownership import SCOPES
from sidecar.caches.packs import CHUNK, PackReader
from sidecar.caches.records import boot_state
from sidecar.caches.standing import Standing, Watch, standings
from sidecar.caches.store import Store
from sidecar.errors import NotSo, StoreDamaged, Untrusted, UsageError


@dataclass(frozen=True)
class Listed:
    """One generation: `state` is candidate, proven (a boot on it became ready), condemned (two died on it and none
    became ready), quarantined, damaged, or untrusted where signatures are looked at; a key that has none yet, and a pod
    that makes the first: awaited, or abandoned when that pod is gone. A generation that is gone and whose files must not be
    published again is removed.

    `claim` tells of the pod that tries it, or makes it, and has not given that back: whether it is at work, too. `bytes`
    is what its files take unpacked, `packed` what its archives take in the store.
    """

    scope: KeyScope
    key: str
    name: str
    state: str
    files: int
    bytes: int
    packed: int
    created_unix_s: float
    ready: int
    died: int
    detail: str = ""
    claim: Standing | None = None

    def to_json(self) -> dict[str, Any]:
        """Give all fields."""
        claim = self.claim
        return {**vars(self), "claimed_by": claim.holder if claim else "", "claim": claim.to_json() if claim else None}


@dataclass(frozen=True)
class Finding:
    """Something wrong in a store: where, and a sentence."""

    where: str
    sentence: str

    def to_json(self) -> dict[str, str]:
        """Give both fields."""
        return dict(vars(self))


def listed(store: Store, watch: Watch | None = None) -> list[Listed]:
    """List every generation of a store, newest first under each key. Raises StoreUnavailable."""
    found = [one for scope in SCOPES for key in store.keys(scope) for one in _of_key(store, scope, key)]
    claims = standings(store, [(one.scope, one.key, one.name) for one in found], watch)
    told = []
    for one in found:
        claim = claims.get((one.scope, one.key, one.name))
        if one.state != "awaited":
            told.append(replace(one, claim=claim))
        elif claim:
            state = "abandoned" if claim.state == "lapsed" else "awaited"
            told.append(replace(one, name="–", state=state, claim=claim))
    return told


def state_of(store: Store, scope: KeyScope, key: str, name: str, watch: Watch | None = None) -> Listed:
    """Say of one generation what `listed` says. Raises StoreUnavailable."""
    [one] = (each for each in _of_key(store, scope, key) if each.name == name)
    return replace(one, claim=standings(store, [(scope, key, name)], watch).get((scope, key, name)))


def _of_key(store: Store, scope: KeyScope, key: str) -> Iterator[Listed]:
    """Give the generations of a key; of one that has none, what may be claimed as the first."""
    quarantined, ends = store.quarantined(scope, key), store.boot_ends(scope, key)
    names = store.generations(scope, key)
    for name in names:
        one = _one(store, scope, key, name, ends)
        if name in quarantined and one.state not in ("damaged", "untrusted"):
            why = str(store.quarantine_record(scope, key, name).get("reason", ""))
            one = replace(one, state="quarantined", detail=why)
        yield one
    if not names:
        yield Listed(scope, key, FIRST, "awaited", 0, 0, 0, 0.0, 0, 0)


def _one(store: Store, scope: KeyScope, key: str, name: str, ends: Mapping[tuple[str, str], int]) -> Listed:
    ready, died = ends.get((name, "ready"), 0), ends.get((name, "died"), 0)
    try:
        manifest = store.read_manifest(scope, key, name)
    except StoreDamaged as error:
        state = "untrusted" if isinstance(error, Untrusted) else "damaged"
        return Listed(scope, key, name, state, 0, 0, 0, 0.0, ready, died, str(error))
    if manifest is None:
        reason = "It has no manifest: its publisher died, or is at work."
        return Listed(scope, key, name, "damaged", 0, 0, 0, 0.0, ready, died, reason)
    state = boot_state(name, ends)
    packed = sum(pack.bytes for pack in manifest.packs)
    files = len(manifest.files)
    return Listed(scope, key, name, state, files, manifest.bytes, packed, manifest.created_unix_s, ready, died)


def find(store: Store, wanted: str, *, removed: bool = False) -> tuple[KeyScope, str, str]:
    """Find a generation by the beginning of its key, of its name, or of both as `key/name`; the newest where a key is named.

    With `removed` also one that is gone, of which only the list of its files is left, because they must not be used.
    Raises NotSo when there is none, and UsageError when there are several.
    """
    if not wanted:
        raise UsageError("No generation is named; `warmup-sidecar store ls` lists them.")
    first, _, second = wanted.partition("/")
    found = [
        (scope, key, name)
        for scope in SCOPES
        for key in store.keys(scope)
        for name in (*store.generations(scope, key), *(_removed(store, scope, key) if removed else ()))
        if (key.startswith(first) and name.startswith(second)) or (not second and name.startswith(first))
    ]
    keys = {(scope, key) for scope, key, _ in found}
    if not found:
        raise NotSo(f"The store has no generation that begins with {wanted}; `warmup-sidecar store ls` lists them.")
    if len(keys) > 1 or (len(found) > 1 and not found[0][1].startswith(wanted)):
        several = ", ".join(f"{key}/{name}" for _, key, name in found[:4])
        raise UsageError(f"{wanted} is ambiguous ({several}); give the key too, as key/name.")
    return found[0]


def removed(store: Store) -> list[Listed]:
    """List the generations that are gone and whose files must not be published. Raises StoreUnavailable."""
    why = "It is gone, and its files are never published again."
    return [
        Listed(scope, key, name, "removed", 0, 0, 0, 0.0, 0, 0, why)
        for scope in SCOPES
        for key in store.keys(scope)
        for name in _removed(store, scope, key)
    ]


def _removed(store: Store, scope: KeyScope, key: str) -> list[str]:
    there = store.generations(scope, key)
    return [name for name in store.unfit_names(scope, key) if name not in there]


def built_on(store: Store, scope: KeyScope, key: str, name: str) -> list[str]:
    """Name the generations that were built on one, oldest first: they hold its files too. A damaged one is left out.

    Where a parent is gone or damaged, a later one with a file of this one counts: retention takes generations between.
    """
    found, readable = [name], {name}
    for each in reversed(store.generations(scope, key)):
        with suppress(StoreDamaged):
            if (head := store.head(scope, key, each)) is None:
                continue
            readable.add(each)
            cut = head.parent is not None and head.parent not in readable and each > name
            if head.parent in found or (cut and _shares(store, scope, key, name, each)):
                found.append(each)
    return found[1:]


def _shares(store: Store, scope: KeyScope, key: str, one: str, other: str) -> bool:
    first, second = store.read_manifest(scope, key, one), store.read_manifest(scope, key, other)
    if first is None or second is None:
        return False
    files = {(file.family, file.path, file.sha256) for file in first.files if not file.link}
    return any((file.family, file.path, file.sha256) in files for file in second.files)


def verify(
    store: Store, deep: bool, on_progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Iterator[Finding]:
    """Check that manifests parse and that archives are there in the right size; `deep`: every byte of every file.

    `on_progress` is given bytes read and bytes in all. An archive shared by generations is read once.
    """
    places: dict[str, dict[StoredFile, str]] = {}
    sizes: dict[str, int] = {}
    for scope in SCOPES:
        for key in store.keys(scope):
            for name in store.generations(scope, key):
                where = f"{scope}/{key}/{name}"
                try:
                    manifest = store.read_manifest(scope, key, name)
                except StoreDamaged as error:
                    yield Finding(where, str(error))
                    continue
                if manifest is not None:
                    yield from _archives(store, manifest, where)
                    if deep:
                        _gather(manifest, where, places, sizes)
    if deep:
        yield from _deep(store, places, sizes, on_progress)


def _archives(store: Store, manifest: Manifest, where: str) -> Iterator[Finding]:
    for pack in manifest.packs:
        found = store.pack_bytes(pack.digest)
        if found is None:
            yield Finding(where, f"Its archive {pack.digest[:12]} is missing; restores leave those families empty.")
        elif found != pack.bytes:
            yield Finding(where, f"Its archive {pack.digest[:12]} has {found} bytes instead of {pack.bytes}.")


def _gather(manifest: Manifest, where: str, places: dict[str, dict[StoredFile, str]], sizes: dict[str, int]) -> None:
    for pack in manifest.packs:
        sizes[pack.digest] = pack.bytes
    for file in manifest.files:
        if file.pack:
            places.setdefault(file.pack, {}).setdefault(file, where)


def _deep(
    store: Store,
    places: Mapping[str, Mapping[StoredFile, str]],
    sizes: Mapping[str, int],
    on_progress: Callable[[int, int], None],
) -> Iterator[Finding]:
    total, done = sum(sizes.values()), 0
    for digest, files in places.items():
        if store.pack_bytes(digest) is None:
            continue
        try:
            if _digest_of(store, digest) != digest:
                yield Finding(f"packs/{digest}", "Its bytes are not what its name says.")
            yield from _files(store, digest, files)
        except StoreDamaged as error:
            # No file, or removed meanwhile: the others are looked at all the same.
            yield Finding(f"packs/{digest}", str(error))
        done += sizes[digest]
        on_progress(done, total)


def _digest_of(store: Store, digest: str) -> str:
    found = hashlib.sha256()
    with closing(store.open_pack(digest)) as stream:
        while data := stream.read(CHUNK):
            found.update(data)
    return found.hexdigest()


def _files(store: Store, digest: str, files: Mapping[StoredFile, str]) -> Iterator[Finding]:
    with closing(store.open_pack(digest)) as stream:
        reader = PackReader(stream)
        for file in sorted(files, key=lambda each: each.offset):
            found = hashlib.sha256()
            try:
                for piece in reader.pieces(file.offset, file.size):
                    found.update(piece)
            except StoreDamaged as error:
                yield Finding(files[file], f"{file.family}/{file.path} and what follows can't be read: {error}")
                return
            if found.hexdigest() != file.sha256:
                yield Finding(files[file], f"{file.family}/{file.path} is not what was published.")
