"""Publish what an engine compiled: snapshot, delta, one pack of what is new, and the next generation.

When to publish is decided by the supervisor; nothing in the live cache is changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sidecar import __version__
from sidecar.caches import snapshot as snapshots
from sidecar.caches import validity
from sidecar.caches.delta import Delta, Digests, compute
from sidecar.caches.families import BY_NAME
from sidecar.caches.fingerprint import Fingerprint, KeyScope, fingerprint
from sidecar.caches.manifest import Manifest, Pack, StoredFile, generation_name, sequence_of
from sidecar.caches.messages import Progress, PublishOutcome, PublishRequest, PublishResult
from sidecar.caches.normalise import world_size
from sidecar.caches.ownership import SCOPES
from sidecar.caches.packs import PackWriter
from sidecar.caches.snapshot import UNSAFE_FAMILY, UNSAFE_FORMAT, Snapshot
from sidecar.caches.store import Checkpoint, DirectoryStore, no_checkpoint, open_store
from sidecar.errors import LostRace, StoreDamaged, StoreReadOnly, WarmupError

RACES = 20
RACE_PAUSE_S = 0.05


def ignore(_progress: Progress) -> None:
    """Take a progress report and do nothing with it."""


@dataclass(frozen=True, kw_only=True)
class PublishTools:
    """What a publish takes from outside.

    `clock` is monotonic, `now` the seconds since the epoch by which files were written; both in seconds.
    """

    clock: Callable[[], float]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    on_progress: Callable[[Progress], None] = ignore
    checkpoint: Checkpoint = no_checkpoint


@dataclass(frozen=True)
class _Published:
    """What became of one scope: the new generation, or None when there was nothing new."""

    manifest: Manifest | None = None
    new_files: int = 0
    packed: int = 0


@dataclass
class _Packed:
    """The pack of one publisher with the files that went in whole, by family and path."""

    pack: Pack | None = None
    files: dict[tuple[str, str], StoredFile] = field(default_factory=dict)


def publish(request: PublishRequest, tools: PublishTools) -> PublishResult:
    """Publish both scopes; every failure is an outcome, never an exception. Killed anywhere, it can be run again."""
    started = tools.clock()
    skipped: Counter[str] = Counter()
    done: dict[KeyScope, _Published] = {}
    if not request.store:
        sentence = "There is no store (WARMUP_STORE is empty), nothing is published."
        return PublishResult(outcome="disabled", sentence=sentence)
    try:
        store = open_store(request.store, request.store_mode, tools.sleep, tools.checkpoint)
        store.sweep_orphans()
        for scope in SCOPES:
            done[scope] = _ScopePublish(request, tools, store, scope, skipped).run()
        outcome, sentence = _summary(done, skipped)
    except StoreReadOnly as error:
        outcome, sentence = "read_only", str(error)
    except WarmupError as error:
        outcome, sentence = "failed", str(error)
    except OSError as error:
        outcome, sentence = "failed", f"The live cache {request.live_cache} can't be read ({error.strerror or error})."
    return _result(outcome, sentence, done, skipped, tools.clock() - started)


class _ScopePublish:
    """Publish the families of one scope under its key."""

    def __init__(
        self,
        request: PublishRequest,
        tools: PublishTools,
        store: DirectoryStore,
        scope: KeyScope,
        skipped: Counter[str],
    ) -> None:
        self._request = request
        self._tools = tools
        self._store = store
        self._scope: KeyScope = scope
        self._known: Fingerprint = fingerprint(request.facts, request.live_cache)
        self._key = self._known.key(scope)
        self._skipped = skipped
        self._live = Path(request.live_cache)

    def run(self) -> _Published:
        newest = self._tools.now() - self._request.settle_s
        world = world_size(self._request.facts.get("argv"))
        taken = snapshots.take(self._live, self._scope, newest, world, self._excluded())
        self._skipped.update(taken.skipped)
        restored = self._restored()
        digests = Digests(self._live)
        packed: _Packed | None = None
        for _ in range(RACES):
            parent, sequence = self._newest()
            delta = compute(taken, parent, restored, digests)
            if packed is None and delta:
                packed = self._pack(taken, delta)
            manifest = self._manifest(parent, sequence, delta, packed or _Packed())
            if manifest is None:
                return _Published()
            try:
                self._store.create_generation(manifest)
            except LostRace:
                self._tools.sleep(RACE_PAUSE_S)
                continue
            self._store.write_head(manifest)
            return self._counted(manifest, packed or _Packed())
        raise LostRace(f"{RACES} other publishers were faster; what is new here goes out with the next publish.")

    def _excluded(self) -> set[str]:
        variable, unsafe = UNSAFE_FORMAT
        found = set(self._request.exclude)
        environment = self._request.facts.get("environment")
        if isinstance(environment, dict) and environment.get(variable) == unsafe:
            found.add(UNSAFE_FAMILY)
        return found

    def _restored(self) -> Manifest | None:
        name = self._request.restored.get(self._scope)
        try:
            return self._store.read_manifest(self._scope, self._key, name) if name and sequence_of(name) else None
        except StoreDamaged:
            return None

    def _newest(self) -> tuple[Manifest | None, int]:
        """Find the newest generation fit to build on, and the number that the next one gets.

        Quarantined and damaged generations are not built on, and their numbers stay taken.
        """
        quarantined = self._store.quarantined(self._scope, self._key)
        taken = max(map(sequence_of, quarantined), default=0)
        for name in self._store.generations(self._scope, self._key):
            try:
                found = self._store.read_manifest(self._scope, self._key, name)
            except StoreDamaged:
                taken = max(taken, sequence_of(name))
                continue
            if found is None:
                continue
            taken = max(taken, found.sequence)
            if name not in quarantined:
                return found, taken + 1
        return None, taken + 1

    def _pack(self, taken: Snapshot, delta: Delta) -> _Packed:
        packed = _Packed()
        self._store.write_facts(self._scope, self._known)
        packed.pack = self._store.add_pack(lambda stream: self._fill(stream, taken, delta, packed))
        for name, paths in delta.added.items():
            self._forget_unstable(taken, name, paths, packed)
        packed.files = {
            place: file if file.link else file._replace(pack=packed.pack.digest) for place, file in packed.files.items()
        }
        return packed

    def _fill(self, stream: BinaryIO, taken: Snapshot, delta: Delta, packed: _Packed) -> Pack:
        writer = PackWriter(stream)
        total = sum(taken.trees[name][path].size for name, paths in delta.added.items() for path in paths)
        done = 0
        for name, paths in delta.added.items():
            for path in sorted(paths):
                self._add(writer, taken, name, path, packed)
                done += taken.trees[name][path].size
                self._tools.on_progress(Progress(bytes_done=done, bytes_total=total, files_done=len(packed.files)))
        return writer.close()

    def _add(self, writer: PackWriter, taken: Snapshot, name: str, path: str, packed: _Packed) -> None:
        entry = taken.trees[name][path]
        mode, member = entry.mode & 0o777, f"{name}/{path}"
        if entry.link:
            writer.add_link(member, entry.link, entry.mtime_ns)
            packed.files[name, path] = StoredFile(name, path, 0, "", entry.mtime_ns, mode, "", 0, entry.link)
            return
        try:
            with open(self._live / BY_NAME[name].directory / path, "rb") as source:
                offset, digest = writer.add_file(member, entry.size, entry.mtime_ns, mode, source)
        except FileNotFoundError:
            # Gone since the snapshot; its whole entry is left out afterwards.
            return
        packed.files[name, path] = StoredFile(name, path, entry.size, digest, entry.mtime_ns, mode, "", offset)

    def _forget_unstable(self, taken: Snapshot, name: str, paths: list[str], packed: _Packed) -> None:
        """Leave out entries of which any file changed or went while the pack was written."""
        family = BY_NAME[name]
        for members in validity.entries(family, paths).values():
            whole = all((name, one) in packed.files for one in members)
            if not whole or not snapshots.unchanged(taken, family, members):
                self._skipped["unstable"] += len(members)
                for path in members:
                    packed.files.pop((name, path), None)

    def _manifest(self, parent: Manifest | None, sequence: int, delta: Delta, packed: _Packed) -> Manifest | None:
        """Join the parent's files and what is new in the pack; None when that would add nothing."""
        new = [
            packed.files[name, path]
            for name, paths in delta.added.items()
            for path in paths
            if (name, path) in packed.files
        ]
        if not new:
            return None
        places = {(file.family, file.path) for file in new}
        gone = self._replaced(delta, places)
        kept = [
            file
            for file in (parent.files if parent else ())
            if (file.family, file.path) not in places and (file.family, file.path) not in gone
        ]
        files = sorted(kept + new, key=lambda file: (file.family, file.path))
        used = {file.pack for file in files}
        packs = [pack for pack in (*(parent.packs if parent else ()), packed.pack) if pack and pack.digest in used]
        return Manifest(
            scope=self._scope,
            key=self._key,
            name=generation_name(self._scope, self._key, sequence),
            parent=parent.name if parent else None,
            created_unix_s=round(self._tools.now(), 3),
            created_by=f"warmup-sidecar {__version__}",
            packs=tuple({pack.digest: pack for pack in packs}.values()),
            files=tuple(files),
        )

    def _replaced(self, delta: Delta, places: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Name the parent's files that go because their entry was packed anew; those of unstable entries stay."""
        fresh = {(name, validity.entry_of(BY_NAME[name], path)) for name, path in places}
        return {
            (name, path)
            for name, paths in delta.replaced.items()
            for path in paths
            if (name, validity.entry_of(BY_NAME[name], path)) in fresh
        }

    def _counted(self, manifest: Manifest, packed: _Packed) -> _Published:
        new = sum(1 for file in manifest.files if packed.files.get((file.family, file.path)) == file)
        return _Published(manifest, new, packed.pack.bytes if packed.pack else 0)


def _summary(done: dict[KeyScope, _Published], skipped: Counter[str]) -> tuple[PublishOutcome, str]:
    names = [one.manifest.name for one in done.values() if one.manifest]
    busy = skipped["unstable"]
    later = f" {busy} files were still changing and go out with the next publish." if busy else ""
    if not names:
        return "nothing_new", f"Everything in the live cache that is complete is in the store already.{later}"
    new = sum(one.new_files for one in done.values())
    packed = sum(one.packed for one in done.values())
    return "published", f"Published {' and '.join(names)}: {new} new files, {packed / 1e6:.1f} MB packed.{later}"


def _result(
    outcome: PublishOutcome, sentence: str, done: dict[KeyScope, _Published], skipped: Counter[str], seconds: float
) -> PublishResult:
    made = {scope: one.manifest for scope, one in done.items() if one.manifest}
    first = made.get("exact") or made.get("toolchain")
    return PublishResult(
        outcome=outcome,
        sentence=sentence,
        generation=first.name if first else None,
        parent=first.parent if first else None,
        generations={scope: manifest.name for scope, manifest in made.items()},
        files=sum(len(manifest.files) for manifest in made.values()),
        bytes=sum(one.packed for one in done.values()),
        new_files=sum(one.new_files for one in done.values()),
        seconds=seconds,
        skipped={reason: count for reason, count in skipped.items() if count},
    )
