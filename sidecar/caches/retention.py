"""What may go from a store, and why: decided from what was seen of it, without touching it.

What is seen is gathered and what is decided is done in `cleaning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.messages import Limits
from sidecar.caches.racing import UNSEEN_S

if TYPE_CHECKING:
    from sidecar.config import Settings

#: States of a generation that can be restored; the others are no reason to let go of an older one.
USABLE = frozenset({"candidate", "proven"})


def limits_of(settings: Settings) -> Limits:
    """Read the limits from the settings; the grace time is never shorter than a restore or a publish of these settings."""
    return Limits(
        count=settings.store_keep_count,
        age_s=settings.store_keep_age_s,
        unused_s=settings.store_keep_unused_s,
        bytes=settings.store_limit_bytes,
        grace_s=max(settings.store_grace_s, settings.restore_timeout_s, settings.publish_timeout_s + UNSEEN_S),
    )


@dataclass(frozen=True)
class Generation:
    """One generation as it was seen.

    `state` is candidate, proven, quarantined, condemned, untrusted, damaged or unknown (this version can't say what it is).
    `packs` are its archives, as numbers. `held` says that a pod is trying it, `unfit` that it is quarantined or condemned,
    whatever else its state says.
    """

    name: str
    state: str
    age_s: float
    packs: tuple[int, ...]
    held: bool = False
    unfit: bool = False


@dataclass(frozen=True)
class Key:
    """One key with its generations, newest first, and how long ago anything of it was used."""

    scope: KeyScope
    key: str
    generations: Sequence[Generation]
    idle_s: float


@dataclass(frozen=True)
class Going:
    """One generation that goes, for which reason, and what its archives free in bytes."""

    scope: KeyScope
    key: str
    name: str
    reason: str
    bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Give all fields."""
        return dict(vars(self))


@dataclass
class Plan:
    """What goes: generations, whole keys; what the archives of those that stay take, and by how much that is too much."""

    generations: list[Going] = field(default_factory=list)
    keys: list[tuple[KeyScope, str]] = field(default_factory=list)
    bytes_kept: int = 0
    bytes_over: int = 0


class Planner:
    """Plan the retention of one store. `sizes` are the bytes of archives by their number."""

    def __init__(self, keys: Sequence[Key], sizes: Sequence[int], limits: Limits) -> None:
        self._keys = keys
        self._sizes = sizes
        self._limits = limits
        self._uses: Counter[int] = Counter(pack for key in keys for one in key.generations for pack in set(one.packs))
        self._plan = Plan()
        self._gone: set[tuple[str, str, str]] = set()

    def plan(self) -> Plan:
        """Say what goes. Never the newest usable generation of a key, nor its newest proven one, unless the key is unused."""
        for key in self._keys:
            if self._is_unused(key):
                for one in key.generations:
                    self._remove(key, one, f"its key was not used for {days(key.idle_s)}")
                self._plan.keys.append((key.scope, key.key))
                continue
            for one, reason in self._too_many(key):
                self._remove(key, one, reason)
        self._plan.bytes_kept = sum(self._sizes[pack] for pack, uses in self._uses.items() if uses)
        if self._limits.bytes:
            self._fit()
            self._plan.bytes_over = max(0, self._plan.bytes_kept - self._limits.bytes)
        return self._plan

    def _is_unused(self, key: Key) -> bool:
        if not self._limits.unused_s or key.idle_s <= self._limits.unused_s:
            return False
        return not any(one.held or one.state == "unknown" or self._is_young(one) for one in key.generations)

    def _too_many(self, key: Key) -> Iterator[tuple[Generation, str]]:
        limits, usable = self._limits, 0
        last = kept_for_ever(key)
        for one in key.generations:
            usable += one.state in USABLE
            if one.held or one.state == "unknown" or self._is_young(one) or one.name in last:
                continue
            if one.state == "damaged":
                yield one, "nobody can restore it"
            elif limits.age_s and one.age_s > limits.age_s:
                yield one, f"it is {days(one.age_s)} old"
            elif limits.count and usable > limits.count:
                yield one, f"its key has {limits.count} newer ones"
            elif (limits.age_s or limits.count) and one.state not in USABLE:
                yield one, f"it is {one.state}"

    def _fit(self) -> None:
        """Let the oldest generations of the keys go that were used least recently, until the rest fits."""
        for key in sorted(self._keys, key=lambda one: -one.idle_s):
            last = kept_for_ever(key)
            for one in reversed(key.generations):
                if self._plan.bytes_kept <= self._limits.bytes:
                    return
                free = not one.held and one.state != "unknown" and not self._is_young(one) and one.name not in last
                if free and (key.scope, key.key, one.name) not in self._gone:
                    self._plan.bytes_kept -= self._remove(key, one, "the store is over its limit")

    def _is_young(self, one: Generation) -> bool:
        # An age below 0 was counted by a clock that was set back since: nobody knows it.
        return not one.age_s >= self._limits.grace_s

    def _remove(self, key: Key, one: Generation, reason: str) -> int:
        freed = 0
        for pack in set(one.packs):
            self._uses[pack] -= 1
            if not self._uses[pack]:
                freed += self._sizes[pack]
        self._gone.add((key.scope, key.key, one.name))
        self._plan.generations.append(Going(key.scope, key.key, one.name, reason, freed))
        return freed


def kept_for_ever(key: Key) -> set[str]:
    """Name what stays while its key is used: the newest usable generation, the newest proven one, and the highest number."""
    usable = [one.name for one in key.generations if one.state in USABLE]
    proven = [one.name for one in key.generations if one.state == "proven"]
    # Its number must stay taken, or the next publish would get its name and the records that belong to it.
    return {*usable[:1], *proven[:1], *(one.name for one in key.generations[:1])}


def days(seconds: float) -> str:
    """Write an age as people say it."""
    if seconds == float("inf"):
        return "ever"
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.0f} h"
