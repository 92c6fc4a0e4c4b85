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
from sidecar.caches.fingerprint import SCHEME, KeyScope, key_of
from sidecar.caches.manifest import Pack
from sidecar.caches.store import SIGNATURE, Store
from sidecar.caches.tar_members import next_member, open_stream
from sidecar.caches.travelling import Checked, Place, read_manifest
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

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Brought:
    """What became of one generation: `imported`, `there` already, or `conflict`: its name holds something else.

    `quarantined` says that it is not used in this store, whatever was thought of it where it came from.
    """

    scope: KeyScope
    key: str
    name: str
    outcome: str
    quarantined: bool = False

    def to_json(self) -> dict[str, str | bool]:
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
            source = Checked(stream, pack)
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
        # Of what came with them, and of nothing else that this store holds, be it of the same name.
        ours = {(one.scope, one.key, one.name) for one in found if one.outcome != "conflict"}
        for scope, key, boot, record in self.records if self.boots else ():
            if (scope, key, boot.partition(".")[0]) in ours:
                self.store.record_boot(scope, key, boot, record)
        return found

    def _members(self) -> Iterator[tarfile.TarInfo]:
        while (member := next_member(self.tar)) and member.name.startswith(self.prefix):
            member.name = member.name.removeprefix(self.prefix)
            yield member

    def _index(self, member: tarfile.TarInfo | None) -> None:
        if member is None or member.name != INDEX:
            raise StoreDamaged(
                "The file is no export of a store: `warmup-sidecar store export` makes one. An image that lies in a file is "
                "brought into a folder first: `skopeo copy oci-archive:FILE oci:FOLDER`, or `docker-archive:FILE`."
            )
        index = _json(self._bytes(member), INDEX)
        if isinstance(index.get("format"), int) and index["format"] > FORMAT:
            raise FormatFromTheFuture(
                f"The file has format {index['format']}, this version reads {FORMAT}; upgrade it."
            )
        try:
            self.total = sum(int(size) for _, size in index["packs"])
            self.listed = {(str(scope), str(key), str(name)) for scope, key, name in index["generations"]}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
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
            if not _makes(scope, key, facts):
                raise StoreDamaged(f"The facts of {scope} key {key[:12]} are not those that make this key.")
            self.facts[scope, key] = cast("dict[str, str]", facts)
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
        if stream is not None:
            # One that is there is taken, too: it may be damaged, or have been out of use for so long that it goes (`cleaning`).
            source = Checked(stream, pack)

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
        # However old its generations are: who brings them wants them, and no pod has used them yet.
        self.store.mark_used(scope, key)
        # A bucket takes the same bytes twice, for a request that is sent again.
        outcome = "there"
        if not self._is_same(place, coming):
            self._hold_back(place)
            beside = {SIGNATURE: coming.signature} if coming.signature is not None else {}
            try:
                self.store.place_generation(place, lambda: _pieces(coming.manifest), beside)
                outcome = "imported"
            except LostRace:
                outcome = "there" if self._is_same(place, coming) else "conflict"
        return Brought(scope, key, name, outcome, outcome != "conflict" and name in self.store.quarantined(scope, key))

    def _hold_back(self, place: Place) -> None:
        """Quarantine what was removed here because it must not be used, before it can be seen again."""
        scope, key, name = place
        if name in self.store.unfit_names(scope, key) and self.store.open_manifest(*place) is None:
            reason = "It was quarantined or condemned in this store before it was removed, and imported since."
            self.store.quarantine(scope, key, name, {"reason": reason, "generation": name, "by": "import"})

    def _is_same(self, place: Place, coming: _Coming) -> bool:
        there = self.store.open_manifest(*place)
        if there is None:
            return False
        with there:
            if _digest(iter(lambda: there.read(CHUNK), b"")) != _digest(_pieces(coming.manifest)):
                return False
        if coming.signature is not None and self._is_better(coming.signature, place):
            self.store.write_signature(*place, coming.signature)
        return True

    def _is_better(self, coming: bytes, place: Place) -> bool:
        """Say whether a signature takes the place of what is there: by such a one a change of keys travels.

        Where signatures are not looked at, nobody can say which of two is good, and the one that is there stays.
        """
        trust = self.store.trust
        try:
            there = self.store.signature(*place)
            if there is None or trust is None:
                return there is None
            old, new = trust.checked(there, place), trust.checked(coming, place)
        except StoreDamaged:
            return trust is not None
        return new.manifest_sha256 != old.manifest_sha256 or new.signed_unix_s > old.signed_unix_s

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
        # Without a buffer, so that what there is no room for is told here.
        with open(path, "wb", buffering=0) as target:
            while data := stream.read(CHUNK):
                self._spool(target, data)
        return path

    def _spool(self, target: io.FileIO, data: bytes) -> None:
        try:
            while data:
                data = data[target.write(data) :]
        except OSError as error:
            raise NotSo(
                f"The manifests in the file find no room in {self.spool} ({error.strerror}); name a directory with more in TMPDIR."
            ) from error


def _add_generation(tar: tarfile.TarFile, store: Store, place: Place, prefix: str) -> None:
    scope, key, name = place
    folder = f"{prefix}v1/{scope}/{key}"
    with suppress(StoreDamaged):
        # Others would be refused where they arrive, and all that comes with them.
        if (facts := store.read_note(scope, key, ("facts.json",))) and _makes(scope, key, facts.get("facts")):
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
            ours = boot.startswith(f"{name}.") and _MEMBER.fullmatch(f"v1/{scope}/{key}/boots/{boot}")
            if ours and (record := store.read_note(scope, key, ("boots", boot))):
                add(tar, f"{folder}/boots/{boot}", json.dumps(record).encode())


def _makes(scope: KeyScope, key: str, facts: object) -> bool:
    """Say whether facts make a key, by the rules of this version or of an earlier one."""
    return isinstance(facts, dict) and any(key_of(scope, facts, each) == key for each in range(1, SCHEME + 1))


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
