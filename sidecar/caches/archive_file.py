"""Generations in one file, to be carried to a store that is out of reach: a tar that holds a store's own names, index first.

Unpacked into an empty folder it is a store. What comes in is believed only after every check that a restore makes of the same
bytes, and becomes visible last.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from sidecar import __version__
from sidecar.caches import manifest as manifests
from sidecar.caches.fingerprint import KeyScope, key_of
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.ownership import SCOPES
from sidecar.caches.store import SIGNATURE, Store
from sidecar.caches.tar_members import next_member, open_stream
from sidecar.caches.upkeep import MANIFEST, MANIFEST_LIMIT
from sidecar.errors import FormatFromTheFuture, LostRace, NotSo, StoreDamaged

FORMAT = 1
INDEX = "warmup-sidecar.json"
SMALL_LIMIT = 4 * 1024 * 1024
# Of all facts, signatures and boot records together, which are held in memory.
SMALL_TOTAL = 256 * 1024 * 1024
CHUNK = 1 << 20
_MEMBER = re.compile(
    r"v1/(?:packs/(?P<pack>[0-9a-f]{64})\.tar\.zst|(?P<scope>exact|toolchain)/(?P<key>[0-9a-f]{16,64})/"
    r"(?:(?P<facts>facts\.json)|generations/(?P<name>\d{8}-[0-9a-f]{16})/(?P<kind>manifest\.json(?:\.sig)?)"
    r"|boots/(?P<boot>[A-Za-z0-9][A-Za-z0-9._-]{0,120})\.json))"
)

Place = tuple[KeyScope, str, str]
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Brought:
    """What became of one generation: `imported`, `there` already, or `conflict`: its name holds something else."""

    scope: KeyScope
    key: str
    name: str
    outcome: str

    def to_json(self) -> dict[str, str]:
        """Give all fields."""
        return dict(vars(self))


def export(store: Store, places: Sequence[Place], target: BinaryIO, on_progress: OnProgress) -> int:
    """Write generations with their archives, signatures, facts and boot records into a file; give its archives' bytes.

    Every byte is checked while it is copied. `on_progress` is given bytes written and bytes in all. Raises StoreDamaged for
    what is not what its manifest says; the file is of no use then.
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        return export_into(tar, store, places, on_progress)


def export_into(
    tar: tarfile.TarFile, store: Store, places: Sequence[Place], on_progress: OnProgress, prefix: str = ""
) -> int:
    """Do what `export` does with a tar that holds more than that; `prefix` comes before each name."""
    found = {place: read_manifest(store, place) for place in places}
    packs = {pack.digest: pack for manifest in found.values() for pack in manifest.packs}
    total, done = sum(pack.bytes for pack in packs.values()), 0
    index = {
        "format": FORMAT,
        "made_by": f"warmup-sidecar {__version__}",
        "generations": [list(place) for place in places],
        "packs": [[pack.digest, pack.bytes] for pack in packs.values()],
    }
    add(tar, prefix + INDEX, json.dumps(index, indent=1).encode())
    for place in places:
        _add_generation(tar, store, place, prefix)
    for pack in packs.values():
        with closing(store.open_pack(pack.digest)) as stream:
            source = _Checked(stream, pack)
            tar.addfile(info_of(f"{prefix}v1/packs/{pack.digest}.tar.zst", pack.bytes), cast("Any", source))
            source.finish()
        done += pack.bytes
        on_progress(done, total)
    return total


def bring(
    store: Store, source: BinaryIO, on_progress: OnProgress, *, boots: bool = True, prefix: str = ""
) -> list[Brought]:
    """Take what a file holds into a store; done twice it is done once, and cut short it leaves nothing that can be seen.

    With `boots` it is as proven as it was where it came from. `prefix` comes before each name of the export, which ends where
    a name has none. Raises StoreDamaged for a file that is not whole or not what it says, Untrusted where signatures are
    looked at, and the store's errors.
    """
    try:
        with (
            open_stream(source) as tar,
            tempfile.TemporaryDirectory(prefix="warmup-import-") as spool,
        ):
            return _Import(store, tar, spool, on_progress, boots, prefix).run()
    except tarfile.TarError as error:
        raise StoreDamaged(
            f"The file is no export, or is cut short ({error}); nothing of it can be seen in the store."
        ) from error


@dataclass
class _Coming:
    """What the file holds of one generation."""

    manifest: str = ""
    signature: bytes | None = None


@dataclass
class _Import:
    store: Store
    tar: tarfile.TarFile
    spool: str
    on_progress: OnProgress
    boots: bool
    prefix: str
    coming: dict[Place, _Coming] = field(default_factory=dict)
    facts: dict[tuple[KeyScope, str], dict[str, str]] = field(default_factory=dict)
    records: list[tuple[KeyScope, str, str, dict[str, Any]]] = field(default_factory=list)
    wanted: dict[str, Pack] | None = None
    listed: set[tuple[str, str, str]] = field(default_factory=set)
    total: int = 0
    done: int = 0
    small: int = 0

    def run(self) -> list[Brought]:
        members = self._members()
        self._index(next(members, None))
        for member in members:
            self._take(member)
        if self.wanted is None:
            self._check_manifests()
        if self.listed != set(self.coming):
            raise StoreDamaged("The file does not hold the generations that its index lists; it was cut short.")
        missing = self.store.damaged_packs((self.wanted or {}).values())
        if missing:
            raise StoreDamaged(f"The file lacks {len(missing)} archives that its generations need; export it again.")
        # What is visible comes last, and older ones first: each is whole by itself.
        found = [self._place(place) for place in sorted(self.coming, key=lambda one: one[2])]
        for scope, key, boot, record in self.records if self.boots else ():
            # Of what came with them, and of nothing else that this store holds.
            if (scope, key, boot.partition(".")[0]) in self.coming:
                self.store.record_boot(scope, key, boot, record)
        return found

    def _members(self) -> Iterator[tarfile.TarInfo]:
        while (member := next_member(self.tar)) and member.name.startswith(self.prefix):
            member.name = member.name.removeprefix(self.prefix)
            yield member

    def _index(self, member: tarfile.TarInfo | None) -> None:
        if member is None or member.name != INDEX:
            raise StoreDamaged("The file is no export of a store: `warmup-sidecar store export` makes one.")
        index = _json(self._bytes(member), INDEX)
        if isinstance(index.get("format"), int) and index["format"] > FORMAT:
            raise FormatFromTheFuture(
                f"The file has format {index['format']}, this version reads {FORMAT}; upgrade it."
            )
        try:
            self.total = sum(int(size) for _, size in index["packs"])
            self.listed = {(str(scope), str(key), str(name)) for scope, key, name in index["generations"]}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreDamaged(f"The file's index can't be used ({type(error).__name__}).") from error

    def _take(self, member: tarfile.TarInfo) -> None:
        found = _MEMBER.fullmatch(member.name)
        if found is None or not member.isreg():
            raise StoreDamaged(f"The file holds {member.name!r:.80}, which no export does.")
        if found["pack"]:
            self._take_pack(member, found["pack"])
            return
        if self.wanted is not None:
            raise StoreDamaged("The file has its parts in another order than an export.")
        scope: KeyScope = "exact" if found["scope"] == "exact" else "toolchain"
        key = found["key"]
        if found["name"]:
            coming = self.coming.setdefault((scope, key, found["name"]), _Coming())
            if found["kind"] == MANIFEST and coming.manifest:
                raise StoreDamaged(f"The file holds the manifest of {found['name']} twice.")
            if found["kind"] == MANIFEST:
                coming.manifest = self._spooled(member)
            else:
                coming.signature = self._bytes(member)
        elif found["facts"]:
            facts = _json(self._bytes(member), member.name).get("facts")
            if not isinstance(facts, dict) or key_of(scope, facts) != key:
                raise StoreDamaged(f"The facts of {scope} key {key[:12]} are not those that make this key.")
            self.facts[scope, key] = facts
        else:
            self.records.append((scope, key, found["boot"], _json(self._bytes(member), member.name)))

    def _check_manifests(self) -> None:
        """Believe every manifest or none, before the first archive is taken."""
        self.wanted = {}
        for place, coming in self.coming.items():
            if not coming.manifest:
                raise StoreDamaged(f"The file lacks the manifest of generation {place[2]}.")
            with open(coming.manifest, "rb") as stream:
                trust = self.store.trust
                found = trust.read(stream, coming.signature, place) if trust else manifests.read(stream)
            if (found.scope, found.key, found.name) != place:
                raise StoreDamaged(f"Generation {place[2]} says that it is {found.scope}/{found.key}/{found.name:.60}.")
            if found.name != manifests.generation_name(found.scope, found.key, found.sequence):
                raise StoreDamaged(f"Generation {place[2]} has a name that is not of its key.")
            self.wanted.update({pack.digest: pack for pack in found.packs})

    def _take_pack(self, member: tarfile.TarInfo, digest: str) -> None:
        if self.wanted is None:
            self._check_manifests()
        assert self.wanted is not None
        pack = self.wanted.get(digest)
        if pack is None or pack.bytes != member.size:
            raise StoreDamaged(f"The file holds the archive {digest[:12]}, which none of its manifests lists so.")
        stream = self.tar.extractfile(member)
        if stream is not None and self.store.pack_bytes(digest) != pack.bytes:
            source = _Checked(stream, pack)

            def fill(target: BinaryIO) -> Pack:
                while data := source.read(CHUNK):
                    target.write(data)
                source.finish()
                return pack

            self.store.add_pack(fill)
        self.done += pack.bytes
        self.on_progress(self.done, max(self.done, self.total))

    def _place(self, place: Place) -> Brought:
        scope, key, name = place
        coming = self.coming[place]
        if (scope, key) in self.facts:
            self.store.place_facts(scope, key, self.facts[scope, key])
        # A bucket takes the same bytes twice, for a request that is sent again.
        if self._is_same(place, coming):
            return Brought(scope, key, name, "there")
        beside = {SIGNATURE: coming.signature} if coming.signature is not None else {}
        try:
            self.store.place_generation(place, lambda: _pieces(coming.manifest), beside)
        except LostRace:
            return Brought(scope, key, name, "there" if self._is_same(place, coming) else "conflict")
        return Brought(scope, key, name, "imported")

    def _is_same(self, place: Place, coming: _Coming) -> bool:
        there = self.store.open_manifest(*place)
        if there is None:
            return False
        with there:
            if _digest(iter(lambda: there.read(CHUNK), b"")) != _digest(_pieces(coming.manifest)):
                return False
        if coming.signature is not None and self.store.signature(*place) is None:
            self.store.write_signature(*place, coming.signature)
        return True

    def _bytes(self, member: tarfile.TarInfo) -> bytes:
        stream = self.tar.extractfile(member)
        self.small += member.size
        if stream is None or member.size > SMALL_LIMIT or self.small > SMALL_TOTAL:
            raise StoreDamaged(f"The file holds {member.name!r:.80} in a way that no export does.")
        return stream.read()

    def _spooled(self, member: tarfile.TarInfo) -> str:
        stream = self.tar.extractfile(member)
        if stream is None or member.size > MANIFEST_LIMIT:
            raise StoreDamaged(f"The file holds a manifest that is larger than the {MANIFEST_LIMIT} bytes allowed.")
        path = f"{self.spool}/{len(self.coming)}"
        with open(path, "wb") as target:
            while data := stream.read(CHUNK):
                target.write(data)
        return path


class _Checked(io.RawIOBase):
    """An archive that is digested while it is read."""

    def __init__(self, stream: Any, pack: Pack) -> None:
        super().__init__()
        self._stream = stream
        self._pack = pack
        self._digest = hashlib.sha256()
        self._left = pack.bytes

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes as asked for, fewer only at the end. Raises StoreDamaged when that comes too early."""
        wanted = min(size, self._left) if size >= 0 else self._left
        parts = []
        while wanted:
            data: bytes = self._stream.read(wanted)
            if not data:
                raise StoreDamaged(f"The archive {self._pack.digest[:12]} is cut short.")
            self._digest.update(data)
            parts.append(data)
            wanted -= len(data)
            self._left -= len(data)
        return b"".join(parts)

    def finish(self) -> None:
        """Make sure that what was read is the archive. Raises StoreDamaged."""
        if self._digest.hexdigest() != self._pack.digest or self._stream.read(1):
            raise StoreDamaged(f"The archive {self._pack.digest[:12]} is not what its name says.")


def chosen(store: Store, prefixes: Sequence[str], every: bool) -> list[Place]:
    """Name what of the keys with these beginnings travels: all, or of each key what a restore would take. Raises NotSo."""
    from sidecar.caches.inspection import listed

    found: dict[tuple[KeyScope, str], list[tuple[str, str]]] = {}
    for one in listed(store):
        if one.state in ("proven", "candidate") and any(map(one.key.startswith, prefixes or ("",))):
            found.setdefault((one.scope, one.key), []).append((one.name, one.state))
    places: list[Place] = []
    for (scope, key), names in found.items():
        best = next((name for name, state in names if state == "proven"), names[0][0])
        places += [(scope, key, name) for name, _ in names if every or name == best]
    if not places:
        raise NotSo(
            "The store has nothing of these keys that could be restored; `warmup-sidecar store ls` lists what there is."
        )
    return sorted(places, key=lambda one: (SCOPES.index(one[0]), one[1:]))


def read_manifest(store: Store, place: Place) -> Manifest:
    """Read the manifest of a generation. Raises StoreDamaged when there is none that can be used."""
    found = store.read_manifest(*place)
    if found is None:
        raise StoreDamaged(f"Generation {place[2]} has no manifest: its publisher died, or is at work.")
    return found


def _add_generation(tar: tarfile.TarFile, store: Store, place: Place, prefix: str) -> None:
    scope, key, name = place
    folder = f"{prefix}v1/{scope}/{key}"
    with suppress(StoreDamaged):
        if facts := store.read_note(scope, key, ("facts.json",)):
            add(tar, f"{folder}/facts.json", json.dumps(facts, indent=1, sort_keys=True).encode())
    stream = store.open_manifest(*place)
    if stream is None:
        raise StoreDamaged(f"Generation {name} went away while it was read.")
    with stream:
        data = stream.read()
    add(tar, f"{folder}/generations/{name}/{MANIFEST}", data)
    if (signature := store.signature(*place)) is not None:
        add(tar, f"{folder}/generations/{name}/{SIGNATURE}", signature)
    for boot in store.notes(scope, key, ("boots",)):
        with suppress(StoreDamaged):
            if boot.startswith(f"{name}.") and (record := store.read_note(scope, key, ("boots", boot))):
                add(tar, f"{folder}/boots/{boot}", json.dumps(record).encode())


def info_of(name: str, size: int) -> tarfile.TarInfo:
    """Describe a file that everybody may read; size in bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a small file."""
    tar.addfile(info_of(name, len(data)), io.BytesIO(data))


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"The file holds {name:.120}, which is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise StoreDamaged(f"The file holds {name:.120}, which is no JSON object.")
    return value


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as stream:
        while data := stream.read(CHUNK):
            yield data


def _digest(pieces: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
