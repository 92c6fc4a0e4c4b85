"""Clean a store up: see what is there, let `retention` decide, and remove it so that nobody who reads or writes is hurt.

Generations go first and their archives only in a later run, when they have been out of use for the grace time: a restore that
is under way keeps what it reads, and so does a publish that builds on a generation which is gone by now. Killed anywhere, it
leaves what the next run takes up. Nobody is kept out meanwhile, and several may clean at a time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import sequence_of
from sidecar.caches.messages import FIRST, Limits
from sidecar.caches.ownership import SCOPES
from sidecar.caches.records import boot_state
from sidecar.caches.retention import USABLE, Generation, Going, Key, Plan, Planner, kept_for_ever
from sidecar.caches.standing import standings
from sidecar.caches.store import Store
from sidecar.caches.upkeep import UNFIT, Kept
from sidecar.errors import FormatFromTheFuture, StoreDamaged, StoreFull, StoreUnavailable, Untrusted
from sidecar.files import in_words

#: Removals under way at a time: each waits for a disk or a server.
JOBS = 8
UNKNOWN_KEEPS = (
    "A manifest can't be read by this version, so no archive is removed: it may need any of them. Use the newest version, or "
    "see `warmup-sidecar store verify`."
)


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be: generations with reasons, keys, archives with their bytes.

    Of `keys` nothing is left, not even a remembered fallback. `waiting` counts archives that are out of use and stay for the
    grace time, `waiting_bytes` what they take; `trouble` says what was not done and why.
    """

    generations: tuple[Going, ...]
    keys: tuple[tuple[KeyScope, str], ...]
    packs: int
    bytes: int
    waiting: int
    waiting_bytes: int
    bytes_kept: int
    bytes_over: int
    trouble: str = ""

    @property
    def sentence(self) -> str:
        """Say in a sentence or two what was done."""
        gone = f"{len(self.generations)} generations and {self.packs} archives ({in_words(self.bytes)})"
        over = f" It is {in_words(self.bytes_over)} over its limit all the same." if self.bytes_over else ""
        return f"The store was cleaned up: {gone} were removed.{over}{' ' if self.trouble else ''}{self.trouble}"

    def to_json(self) -> dict[str, Any]:
        """Give all fields."""
        return {**vars(self), "generations": [one.to_json() for one in self.generations]}


@dataclass
class _Seen:
    """What there is: keys, and archives by number; `known` says that every manifest could be read."""

    keys: list[Key] = field(default_factory=list)
    digests: dict[str, int] = field(default_factory=dict)
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    known: bool = True

    def pack(self, digest: str, size: int) -> int:
        """Number an archive."""
        number = self.digests.setdefault(digest, len(self.sizes))
        if number == len(self.sizes):
            self.sizes.append(size)
        return number


def clean(store: Store, limits: Limits, *, dry: bool, now: Callable[[], float]) -> Cleaned:
    """Remove what the limits don't keep, archives that nobody uses, and what writers that died left.

    `now` is in seconds since the epoch, as manifests have it. Raises StoreReadOnly or StoreUnavailable; what was removed until
    then is removed.
    """
    if not dry:
        # A full store is what has to be cleaned up most: what goes first makes room for the notes that follow.
        with suppress(StoreFull):
            store.note_cleaning()
    packs = store.packs()
    seen = _look(store, now(), packs, limits)
    plan = _plan(store, seen, limits)
    # Only what was out of use before this run, too: what becomes free now is being read, perhaps.
    ripe = store.out_of_use(limits.grace_s) & _out_of_use(seen, packs).keys()
    if not dry:
        # Before anything becomes free by this run, so that no other run takes an old note for a note of that.
        store.forget_out_of_use(limits.grace_s)
        _remove_generations(store, seen, plan)
        store.sweep_all()
        # Whatever was published meanwhile counts, too.
        seen = _look(store, now(), packs, limits)
    going = {(one.scope, one.key, one.name) for one in plan.generations}
    free = _out_of_use(seen, packs, going) if seen.known else {}
    ripe = {digest for digest in ripe if digest in free and free[digest].age_s >= limits.grace_s}
    removed = ripe if dry else {digest for digest in sorted(ripe) if store.remove_pack(digest, limits.grace_s)}
    if not dry:
        store.note_out_of_use(free.keys() - removed, os.urandom(8).hex())
    waiting = free.keys() - removed
    return Cleaned(
        generations=tuple(plan.generations),
        keys=tuple(place for place in plan.keys if not store.notes(*place, ("fallbacks",))),
        packs=len(removed),
        bytes=sum(free[digest].bytes for digest in removed),
        waiting=len(waiting),
        waiting_bytes=sum(free[digest].bytes for digest in waiting),
        bytes_kept=plan.bytes_kept,
        bytes_over=plan.bytes_over,
        trouble="" if seen.known else UNKNOWN_KEEPS,
    )


def _plan(store: Store, seen: _Seen, limits: Limits) -> Plan:
    """Decide what goes. Of what others go for the whole manifest is read, not only its head: it may be cut short behind that."""
    read: set[tuple[str, str, str]] = set()
    while True:
        plan = Planner(seen.keys, seen.sizes, limits).plan()
        losing = {(one.scope, one.key) for one in plan.generations}.difference(plan.keys)
        keys = [_read_whole(store, key, read) if (key.scope, key.key) in losing else key for key in seen.keys]
        if all(one is other for one, other in zip(keys, seen.keys, strict=True)):
            return plan
        seen.keys = keys


def _read_whole(store: Store, key: Key, read: set[tuple[str, str, str]]) -> Key:
    """Give a key as it is when the generations that stay of it were `read`, the same one when they are what they seem."""
    last, found = kept_for_ever(key), list(key.generations)
    for number, one in enumerate(found):
        place = (key.scope, key.key, one.name)
        if one.name in last and one.state in USABLE and place not in read:
            read.add(place)
            try:
                store.read_manifest(*place)
            except (FormatFromTheFuture, StoreUnavailable):
                found[number] = replace(one, state="unknown")
            except Untrusted:
                found[number] = replace(one, state="untrusted")
            except StoreDamaged:
                found[number] = replace(one, state="damaged")
    return replace(key, generations=found) if found != key.generations else key


def _look(store: Store, now: float, packs: dict[str, Kept], limits: Limits) -> _Seen:
    seen = _Seen(known=not store.has_foreign_folders())
    for digest, kept in packs.items():
        seen.pack(digest, kept.bytes)
    for scope in SCOPES:
        for key in store.keys(scope):
            with suppress(StoreDamaged):
                seen.keys.append(_key(store, scope, key, now, seen, limits))
    return seen


def _key(store: Store, scope: KeyScope, key: str, now: float, seen: _Seen, limits: Limits) -> Key:
    names = store.generations(scope, key)
    claimed = [what for what in store.notes(scope, key, ("claims",)) if what in names or what == FIRST]
    held = {
        place[2]
        for place, standing in standings(store, [(scope, key, what) for what in claimed]).items()
        if standing.state != "lapsed"
    }
    quarantined, ends = store.quarantined(scope, key), store.boot_ends(scope, key)
    found = []
    for name in names:
        state = boot_state(name, ends)
        state = "quarantined" if name in quarantined else state
        one = _generation(store, (scope, key, name), state, now, seen)
        found.append(replace(one, held=name in held, unfit=state in ("quarantined", "condemned")))
    made = min((one.age_s for one in found), default=float("inf"))
    idle = min(made, store.idle_s(scope, key)) if limits.unused_s or limits.bytes else made
    if FIRST in held:
        # A pod makes its first generation, and others wait for that.
        idle = 0.0
    return Key(scope, key, found, idle)


def _generation(store: Store, place: tuple[KeyScope, str, str], state: str, now: float, seen: _Seen) -> Generation:
    name = place[2]
    head = None
    try:
        head = store.head(*place)
        if head is not None and store.trust is not None:
            store.check_signature(*place)
    except (FormatFromTheFuture, StoreUnavailable):
        seen.known = False
        return Generation(name, "unknown", 0.0, ())
    except StoreDamaged:
        # A signature that can't be read is as good as none, and can be made anew; the archives are whole.
        state = "damaged" if head is None else "untrusted"
    if head is None:
        age_s = store.generation_age_s(*place) if state == "damaged" else float("inf")
        return Generation(name, "damaged", float("inf") if age_s is None else age_s, ())
    packs = tuple(seen.pack(pack.digest, pack.bytes) for pack in head.packs)
    return Generation(name, state, now - head.created_unix_s, packs)


def _remove_generations(store: Store, seen: _Seen, plan: Plan) -> None:
    gone = {(one.scope, one.key, one.name) for one in plan.generations}
    unused = set(plan.keys)
    unfit = {place for key in seen.keys if (key.scope, key.key) not in unused for place in _remembered(key, gone)}

    def remove(place: tuple[KeyScope, str, str]) -> None:
        if place in unfit:
            store.keep_unfit(*place)
        store.remove_generation(*place)

    with ThreadPoolExecutor(JOBS) as pool:
        # Raises what one of them raised; the others are removed all the same.
        list(pool.map(remove, gone))
    for key in seen.keys:
        left = [one.name for one in key.generations if (key.scope, key.key, one.name) not in gone]
        if (key.scope, key.key) in plan.keys:
            store.remove_key(key.scope, key.key)
        else:
            # Also of those that a run removed which was killed then.
            highest = max(map(sequence_of, left), default=0)
            store.forget_generations(key.scope, key.key, left, highest)


def _remembered(key: Key, gone: Collection[tuple[str, str, str]]) -> list[tuple[KeyScope, str, str]]:
    """Name the generations that go and whose files must not be published again: the newest, no more than are looked at."""
    bad = (one.name for one in key.generations if one.unfit)
    return [(key.scope, key.key, name) for name in bad if (key.scope, key.key, name) in gone][:UNFIT]


def _out_of_use(seen: _Seen, packs: dict[str, Kept], gone: Collection[tuple[str, str, str]] = ()) -> dict[str, Kept]:
    """Give the archives that no generation needs, but for those that are gone."""
    used = bytearray(len(seen.sizes))
    for key in seen.keys:
        for one in key.generations:
            if (key.scope, key.key, one.name) not in gone:
                for pack in one.packs:
                    used[pack] = 1
    return {digest: kept for digest, kept in packs.items() if not used[seen.digests[digest]]}
