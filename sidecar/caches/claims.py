"""Claims in the store: one pod at a time tries a generation, or makes the first one of a key.

A claim is a folder that is created exclusively, and in it a beat that its holder renews. Nobody is ever kept from starting by one:
who finds a claim takes another way, or waits for a limited time. What is claimed is decided in `choice`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.messages import Claim
from sidecar.caches.store import Store
from sidecar.errors import WarmupError

FOLDER = "claims"
HOLDER, BEAT = "holder.json", "beat.json"
BEAT_S = 15.0
#: A holder whose beat has not changed for so long is gone. Clients of a network volume may see each other a minute late
#: (Linux nfs(5): acregmax and acdirmax are 60 s), and a beat may be missed.
TTL_S = 120.0


@dataclass(frozen=True)
class Seen:
    """The newest claim on something: its epoch and holder, how often it was renewed, whether it was given back."""

    epoch: int
    holder: str
    beat: int
    released: bool


class Claims:
    """The claims of one key. `holder` is this pod's name as others are told it."""

    def __init__(self, store: Store, scope: KeyScope, key: str, holder: str) -> None:
        self._store = store
        self._scope: KeyScope = scope
        self._key = key
        self._holder = holder

    def look(self, what: str) -> Seen | None:
        """Look at the newest claim; None when there never was one. Raises StoreUnavailable."""
        epoch = max(self._epochs(what), default=0)
        if not epoch:
            return None
        claim, beat = self._read(what, epoch, HOLDER), self._read(what, epoch, BEAT)
        count = beat.get("count")
        return Seen(
            epoch, _shown(claim.get("holder")), count if isinstance(count, int) else 0, bool(beat.get("released"))
        )

    def take(self, what: str, after: int) -> Claim | None:
        """Claim something after the holder of epoch `after`; None when another pod was faster.

        Raises StoreUnavailable, StoreReadOnly or StoreFull.
        """
        epoch = after + 1
        place = (FOLDER, what, f"{epoch:08d}", HOLDER)
        if not self._store.create_note(self._scope, self._key, place, {"format": 1, "holder": self._holder}):
            return None
        claim = Claim(scope=self._scope, key=self._key, what=what, epoch=epoch, holder=self._holder)
        beat(self._store, claim, 1)
        for old in self._epochs(what):
            # The last but one is kept: somebody may be looking at it.
            if old < epoch - 1:
                self._store.remove_notes(self._scope, self._key, (FOLDER, what, f"{old:08d}"))
        return claim

    def try_to_take(self, what: str) -> Claim | None:
        """Claim something unless somebody holds it. None also when the store takes no claims from us.

        Whether a holder is gone is judged here by the age of its beat on the store's own clock, since there is no time to watch.
        """
        try:
            seen = self.look(what)
            if seen is not None and not seen.released and not self._lapsed(what, seen):
                return None
            return self.take(what, seen.epoch if seen else 0)
        except WarmupError:
            # A store that is full or can't be written can still be restored from.
            return None

    def age_s(self, what: str, epoch: int) -> float | None:
        """Give how long ago a holder's last beat was, in seconds of the store's own clock; None when there is none.

        That clock is asked by writing a file for a moment. Raises StoreUnavailable, StoreReadOnly or StoreFull.
        """
        folder = (FOLDER, what, f"{epoch:08d}")
        ages = (self._store.note_age_s(self._scope, self._key, (*folder, name)) for name in (BEAT, HOLDER))
        return next((each for each in ages if each is not None), None)

    def _lapsed(self, what: str, seen: Seen) -> bool:
        age = self.age_s(what, seen.epoch)
        # A beat from the future was written before the store's clock was set back: nobody knows when.
        return age is None or abs(age) > TTL_S

    def _epochs(self, what: str) -> list[int]:
        names = self._store.notes(self._scope, self._key, (FOLDER, what))
        return [int(name) for name in names if name.isdecimal() and len(name) == 8]

    def _read(self, what: str, epoch: int, name: str) -> dict[str, object]:
        try:
            return self._store.read_note(self._scope, self._key, (FOLDER, what, f"{epoch:08d}", name)) or {}
        except WarmupError:
            # Half-written or strange: nobody we know holds it.
            return {}


def _shown(holder: object) -> str:
    """Give a name from the store as a terminal may print it."""
    return "".join(letter for letter in str(holder or "") if letter.isprintable())[:80]


def beat(store: Store, claim: Claim, count: int, released: bool = False) -> None:
    """Renew a claim, or give it back. Raises StoreUnavailable, StoreReadOnly or StoreFull."""
    record = {"format": 1, "holder": claim.holder, "count": count, "released": released}
    store.write_note(claim.scope, claim.key, (FOLDER, claim.what, f"{claim.epoch:08d}", BEAT), record)
