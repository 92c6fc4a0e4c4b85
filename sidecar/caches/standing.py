"""How a claim in the store stands, for people: its holder is at work, it lapsed, or nobody can say.

What a pod does about a claim of another is decided in `claims` and `flight`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.caches.claims import BEAT_S, TTL_S, Claims, Seen
from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.store import Store
from sidecar.errors import WarmupError

#: Who beat within three beats is at work; a client of a network volume sees a beat late, never early.
FRESH_S = 3 * BEAT_S
#: One beat more than pods wait before they take a holder's place.
GONE_S = TTL_S + BEAT_S
LOOK_S = 1.0

Place = tuple[KeyScope, str, str]


@dataclass(frozen=True)
class Standing:
    """One claim that was not given back: its holder, and what the age of its last beat in seconds says of it.

    `state` is held, lapsed or unsure. `beat_age_s` is by the store's own clock; None where that could not be asked, because
    the store can't be written. `watched_s` is for how long its beat was watched without a change, 0 where it was not.
    """

    holder: str
    state: Literal["held", "lapsed", "unsure"]
    beat_age_s: float | None
    watched_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Give all fields, times rounded to a tenth."""
        age = None if self.beat_age_s is None else round(self.beat_age_s, 1)
        return {**vars(self), "beat_age_s": age, "watched_s": round(self.watched_s, 1)}


@dataclass(frozen=True)
class Watch:
    """How long beats are watched, in seconds; `clock` is monotonic."""

    seconds: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]


def standings(store: Store, places: Sequence[Place], watch: Watch | None = None) -> dict[Place, Standing]:
    """Judge the claims on what `places` name (scope, key, generation or `first`); those that nobody holds are left out.

    A beat that changes while it is watched is a holder at work, whatever clocks say; one that does not change for longer
    than pods wait has lapsed. Otherwise its age decides. Raises StoreUnavailable.
    """
    found = {place: seen for place in places if (seen := _look(store, place)) and not seen.released}
    moved, watched_s = _watched(store, found, watch) if watch and found else ({}, 0.0)
    judged = {}
    for place, seen in {**found, **moved}.items():
        if not seen.released:
            judged[place] = _judged(store, place, seen, place in moved, watched_s)
    return judged


def _judged(store: Store, place: Place, seen: Seen, moved: bool, watched_s: float) -> Standing:
    age = _age(store, place, seen)
    if moved:
        return Standing(seen.holder, "held", age, 0.0)
    if watched_s >= GONE_S or (age is not None and age > GONE_S):
        return Standing(seen.holder, "lapsed", age, watched_s)
    # A beat of a time to come was written before the store's clock was set back: nobody knows when.
    fresh = age is not None and -BEAT_S <= age <= FRESH_S and watched_s <= FRESH_S
    return Standing(seen.holder, "held" if fresh else "unsure", age, watched_s)


def _watched(store: Store, found: dict[Place, Seen], watch: Watch) -> tuple[dict[Place, Seen], float]:
    """Look again and again until every claim has moved; give those that did as they are now, and the seconds watched."""
    began = watch.clock()
    moved: dict[Place, Seen] = {}
    while len(moved) < len(found):
        left = watch.seconds - (watch.clock() - began)
        if left <= 0:
            break
        watch.sleep(min(LOOK_S, left))
        for place, seen in found.items():
            now = _look(store, place) if place not in moved else None
            if now is not None and now != seen:
                moved[place] = now
    return moved, watch.clock() - began


def _look(store: Store, place: Place) -> Seen | None:
    scope, key, what = place
    return Claims(store, scope, key, "").look(what)


def _age(store: Store, place: Place, seen: Seen) -> float | None:
    scope, key, what = place
    try:
        return Claims(store, scope, key, "").age_s(what, seen.epoch)
    except WarmupError:
        return None
