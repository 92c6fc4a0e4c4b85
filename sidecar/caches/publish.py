"""Publish what an engine compiled: snapshot, delta, packs of what is new, and the next generation.

When to publish is decided by the supervisor; nothing in the live cache is changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

from sidecar import __version__
from sidecar.caches import snapshot as snapshots
from sidecar.caches.compaction import Moved, move
from sidecar.caches.delta import Delta, Digests, came_with, compute
from sidecar.caches.families import Family
from sidecar.caches.file_table import FileTable
from sidecar.caches.fingerprint import BOTH, Fingerprint, KeyScope, cuda_majors, fingerprint
from sidecar.caches.live_file import STAGING_NAME, disk_trouble
from sidecar.caches.manifest import Manifest, Pack, generation_name, sequence_of
from sidecar.caches.normalise import ranks
from sidecar.caches.packing import Packed, Packer
from sidecar.caches.publish_messages import Progress, PublishOutcome, PublishRequest, PublishResult
from sidecar.caches.racing import Race
from sidecar.caches.records import is_condemned
from sidecar.caches.snapshot import UNSAFE_FAMILY, UNSAFE_FORMAT, Snapshot, Wholeness
from sidecar.caches.store import Checkpoint, Store, no_checkpoint, open_store
from sidecar.caches.trust import KeyFiles, trust
from sidecar.caches.upkeep import UNFIT
from sidecar.errors import FormatFromTheFuture, LostRace, StoreDamaged, StoreReadOnly, Untrusted, WarmupError
from sidecar.files import in_words


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


class _Published(NamedTuple):
    """What became of one scope: the new generation, or None when there was nothing new."""

    manifest: Manifest | None = None
    new_files: int = 0
    packed: int = 0
    packs: tuple[str, ...] = ()


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
        store.spool = Path(request.live_cache, STAGING_NAME)
        store.trust = trust(KeyFiles(request.keys_file, request.signing_file), tools.now)
        if store.trust and (refused := store.trust.why_not_publish()):
            return PublishResult(outcome="read_only", sentence=refused)
        known = fingerprint(request.facts, request.live_cache)
        store.sweep_orphans(known)
        for scope in BOTH:
            done[scope] = _ScopePublish(request, tools, store, known, scope, skipped).run()
        outcome, sentence = _summary(done, skipped)
    except StoreReadOnly as error:
        outcome, sentence = "read_only", str(error)
    except WarmupError as error:
        outcome, sentence = "failed", str(error)
    except OSError as error:
        outcome, sentence = "failed", disk_trouble(request.live_cache, "read", error)
    return _result(outcome, sentence, done, skipped, tools.clock() - started)


class _ScopePublish:
    """Publish the families of one scope under its key."""

    def __init__(
        self,
        request: PublishRequest,
        tools: PublishTools,
        store: Store,
        known: Fingerprint,
        scope: KeyScope,
        skipped: Counter[str],
    ) -> None:
        self._request = request
        self._tools = tools
        self._store = store
        self._scope: KeyScope = scope
        self._known = known
        self._key = self._known.key(scope)
        self._skipped = skipped
        self._live = Path(request.live_cache)
        self._own = frozenset(request.packed)
        self._held_back: set[tuple[str, int]] = set()
        # What the generation holds that is built on, damaged archives too.
        self._fit = FileTable()

    def run(self) -> _Published:
        newest = self._tools.now() - self._request.settle_s
        facts = self._request.facts
        taken = snapshots.take(self._live, self._scope, newest, self._skipped, ranks(facts), self._excluded())
        digests, whole = Digests(taken), Wholeness(taken, self._skipped, cuda_majors(facts))
        packed: Packed | None = None
        moved: Moved | None = None
        race = Race(self._tools.clock, self._tools.sleep)
        while True:
            parent, following = self._newest(race)
            sequence = race.number(following)
            stored = parent.files if parent else FileTable()
            restored = cache(lambda parent=parent: self._restored(parent))
            delta = compute(taken, stored, restored, digests, partial(self._is_fit, taken, whole), self._own)
            if packed is None and delta:
                packed = self._pack(taken, delta)
            new = packed.new(delta) if packed else FileTable()
            if packed is None or not new:
                return _Published()
            if moved is None:
                # Only beside something new: a generation of its own would have to be proven anew for nothing.
                moved = move(self._store, parent) if parent else Moved()
            files = moved.applied(stored).joined(packed.gone(delta), new)
            manifest = self._manifest(parent, sequence, files, [*moved.packs, *packed.packs])
            try:
                self._store.create_generation(manifest)
            except LostRace:
                race.lost(sequence)
                continue
            self._store.write_head(manifest)
            return _Published(manifest, len(new), packed.bytes, tuple(pack.digest for pack in packed.packs))

    def _excluded(self) -> set[str]:
        variable, unsafe = UNSAFE_FORMAT
        found = set(self._request.exclude)
        environment = self._request.facts.get("environment")
        if isinstance(environment, dict) and environment.get(variable) == unsafe:
            found.add(UNSAFE_FAMILY)
        return found

    def _restored(self, parent: Manifest | None) -> FileTable:
        """Give the files of the generation that this live cache was restored from."""
        name = self._request.restored.get(self._scope)
        if parent is not None and parent.name == name and not self._request.suspects:
            return parent.files
        try:
            known = self._store.read_manifest(self._scope, self._key, name) if name and sequence_of(name) else None
        except StoreDamaged:
            known = None
        return known.files.in_order() if known else FileTable()

    def _is_fit(self, taken: Snapshot, whole: Wholeness, family: Family, rows: Sequence[int]) -> bool:
        """Say whether an entry is whole and came with no generation that must not be used: a pod may still run on one.

        Files that the generation holds too which is built on don't tell: one that must not be used has its parent's files.
        """
        if not whole.of(family, rows):
            return False
        listing = taken.listings[family.name]
        suspect = [row for row in rows if not came_with(self._fit, family, listing, (row,))] if self._unfit else ()
        if not any(came_with(table, family, listing, suspect) for table in self._unfit):
            return True
        if (family.name, rows[0]) not in self._held_back:
            self._held_back.add((family.name, rows[0]))
            self._skipped["quarantined"] += len(rows)
        return False

    @cached_property
    def _unfit(self) -> list[FileTable]:
        quarantined = self._store.quarantined(self._scope, self._key)
        ends = self._store.boot_ends(self._scope, self._key)
        tables: list[FileTable] = []
        for name in self._store.generations(self._scope, self._key):
            if len(tables) < UNFIT and (name in quarantined or is_condemned(name, ends)):
                with suppress(StoreDamaged):
                    if found := self._store.unbelieved(self._scope, self._key, name):
                        tables.append(found.files.in_order())
        tables.extend(self._store.unfit(self._scope, self._key, UNFIT - len(tables)))
        return tables

    def _newest(self, race: Race) -> tuple[Manifest | None, int]:
        """Find the newest generation fit to build on, and the number that the next one gets.

        Quarantined, condemned and damaged generations are not built on, and their numbers stay taken.
        """
        quarantined = self._store.quarantined(self._scope, self._key)
        ends = self._store.boot_ends(self._scope, self._key)
        taken = max(map(sequence_of, quarantined), default=0)
        for name in self._store.generations(self._scope, self._key):
            try:
                found = self._read(name, race)
            except FormatFromTheFuture:
                raise
            except StoreDamaged:
                taken = max(taken, sequence_of(name))
                continue
            if found is None:
                continue
            taken = max(taken, found.sequence)
            if name not in quarantined and not is_condemned(name, ends):
                return self._sound(found), taken + 1
        return None, taken + 1

    def _sound(self, found: Manifest) -> Manifest:
        """Leave out what lies in damaged packs: nobody can restore it, and what this pod compiled takes its place.

        A pack that is missing from a young generation may only not be seen yet here, and stays: a publish never shrinks
        what is there.
        """
        files = self._fit = found.files.in_order()
        bad = self._store.damaged_packs(found.packs, self._request.suspects)
        missing = set(filter(self._store.is_missing, bad))
        if missing and self._store.is_young(self._scope, self._key, found.name):
            bad -= missing
        if bad:
            files = files.taken(row for row in range(len(files)) if files.pack(row) not in bad)
        return replace(found, files=files, packs=tuple(pack for pack in found.packs if pack.digest not in bad))

    def _read(self, name: str, race: Race) -> Manifest | None:
        while True:
            try:
                return self._store.read_manifest(self._scope, self._key, name)
            except FormatFromTheFuture:
                raise
            except Untrusted as error:
                # Where a folder can't be renamed, a signature comes into sight after its manifest.
                young = not error.final and self._store.is_young(self._scope, self._key, name)
                if not young or not race.may_be_unfinished(name):
                    raise
            except StoreDamaged:
                if not race.may_be_unfinished(name):
                    raise

    def _pack(self, taken: Snapshot, delta: Delta) -> Packed:
        self._store.write_facts(self._scope, self._known)
        return Packer(self._store, taken, self._tools.on_progress).pack(delta, self._skipped)

    def _manifest(self, parent: Manifest | None, sequence: int, files: FileTable, packs: list[Pack]) -> Manifest:
        used = files.used_packs()
        known = {pack.digest: pack for pack in (*(parent.packs if parent else ()), *packs)}
        return Manifest(
            scope=self._scope,
            key=self._key,
            name=generation_name(self._scope, self._key, sequence),
            parent=parent.name if parent else None,
            created_unix_s=round(self._tools.now(), 3),
            created_by=f"warmup-sidecar {__version__}",
            packs=tuple(pack for digest, pack in known.items() if digest in used),
            files=files,
        )


def _summary(done: dict[KeyScope, _Published], skipped: Counter[str]) -> tuple[PublishOutcome, str]:
    names = [one.manifest.name for one in done.values() if one.manifest]
    busy = skipped["unstable"]
    later = f" {busy} files were still changing and go out with the next publish." if busy else ""
    if held := skipped["quarantined"]:
        later += f" {held} files came with a generation that must not be used, and stay here."
    if not names:
        what = "Everything else" if held else "Everything"
        return "nothing_new", f"{what} in the live cache that is complete is in the store already.{later}"
    new = sum(one.new_files for one in done.values())
    packed = sum(one.packed for one in done.values())
    return "published", f"Published {' and '.join(names)}: {new} new files, {in_words(packed)} packed.{later}"


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
        packed=tuple(pack for one in done.values() for pack in one.packs),
    )
