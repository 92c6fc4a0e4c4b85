"""Which generation of a key an engine is restored from, and what this pod claims for it.

Only names, records and manifests are looked at; no pack is opened, and what becomes of the choice is `restore`'s.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

from sidecar.caches.claims import Claims, beat
from sidecar.caches.fingerprint import Fingerprint, KeyScope
from sidecar.caches.flight import wait_for_the_first
from sidecar.caches.manifest import Manifest, OnPacks, unheard
from sidecar.caches.messages import FIRST, Claim, Progress, RestoreRequest
from sidecar.caches.records import is_condemned
from sidecar.caches.store import Store
from sidecar.caches.trust import Vouched, rolled_back
from sidecar.errors import StoreDamaged, StoreUnavailable, Untrusted, WarmupError


class Choice:
    """Choose generations for one restore; `claims` are what it took, `waited_s` how long it waited for another pod.

    `on_packs` hears of the packs of each generation that may be taken, before it is.

    Raises StoreUnavailable in all calls but `give_back`.
    """

    def __init__(
        self,
        request: RestoreRequest,
        store: Store,
        known: Fingerprint,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        on_progress: Callable[[Progress], None],
        on_packs: OnPacks = unheard,
    ) -> None:
        self._request = request
        self._store = store
        self._known = known
        self._clock = clock
        self._sleep = sleep
        self._on_progress = on_progress
        self._on_packs = on_packs
        self._claiming = bool(request.holder) and request.store_mode == "read-write"
        self.claims: list[Claim] = []
        self.waited_s = 0.0
        #: The highest number that a trusted key signed, by scope and key.
        self.signed: dict[str, int] = {}

    def choose(self, scope: KeyScope, rejected: Counter[str]) -> Manifest | None:
        """Take the newest generation of a key that may be used here; count the others in `rejected` by reason.

        Not used are quarantined, condemned and damaged ones, those that no trusted key vouches for, and, while there is a
        proven one, those that nobody was ready on yet and that another pod is trying. An empty exact key
        is waited for if the request says so.
        """
        if scope == "exact" and self._request.single_flight_s > 0 and self._request.holder:
            self._wait(scope)
        return self._newest(scope, rejected)

    def give_back(self, kept: set[str]) -> tuple[Claim, ...]:
        """Release the claims on generations that were not restored after all; give those that stay."""
        stay = tuple(claim for claim in self.claims if claim.what == FIRST or claim.what in kept)
        for claim in self.claims:
            if claim not in stay:
                with contextlib.suppress(WarmupError):
                    beat(self._store, claim, 0, released=True)
        self.claims = list(stay)
        return stay

    def _wait(self, scope: KeyScope) -> None:
        key = self._known.key(scope)
        flight = wait_for_the_first(
            lambda: bool(self._store.generations(scope, key)),
            Claims(self._store, scope, key, self._request.holder),
            self._request.single_flight_s,
            self._clock,
            self._sleep,
            self._on_progress,
        )
        self.waited_s = flight.waited_s
        if flight.claim is not None:
            self.claims.append(flight.claim)

    def _newest(self, scope: KeyScope, rejected: Counter[str]) -> Manifest | None:
        key = self._known.key(scope)
        names = self._store.generations(scope, key)
        vouched = Vouched(self._store, scope, key, names)
        if not names or self._is_rolled_back(scope, key, vouched, rejected):
            return None
        quarantined, ends = self._store.quarantined(scope, key), self._store.boot_ends(scope, key)
        proven = [name for name in names if ends[name, "ready"] and name not in quarantined]
        others_try, trouble = False, None
        for name in names:
            candidate = not ends[name, "ready"]
            # With a proven one to fall back on, a pod that could not have the newest takes no older candidate either.
            around = candidate and any(older < name and not vouched.refusal(older) for older in proven)
            reason = vouched.refusal(name) or (
                "quarantined"
                if name in quarantined
                else "condemned"
                if is_condemned(name, ends)
                else "claimed"
                if around and (others_try or not self._claim(scope, key, name))
                else ""
            )
            others_try = others_try or reason == "claimed"
            if not reason:
                found, reason, trouble = self._read(scope, key, name, trouble)
                if found is not None:
                    return found
            if reason:
                rejected[reason] += 1
        if trouble is not None:
            raise trouble
        return None

    def _is_rolled_back(self, scope: KeyScope, key: str, vouched: Vouched, rejected: Counter[str]) -> bool:
        """Say whether less is there than this pod saw before, where signatures are looked at."""
        if self._store.trust is None:
            return False
        newest = self.signed[f"{scope}/{key}"] = vouched.newest()
        if not rolled_back(self._request.seen, scope, key, newest):
            return False
        rejected["rolled_back"] += vouched.count
        return True

    def _read(
        self, scope: KeyScope, key: str, name: str, trouble: StoreUnavailable | None
    ) -> tuple[Manifest | None, str, StoreUnavailable | None]:
        """Read a manifest: it, or why it can't be used, and what kept it from being read."""
        try:
            return self._store.read_manifest(scope, key, name, self._on_packs), "", trouble
        except Untrusted as error:
            return None, error.reason, trouble
        except StoreDamaged:
            return None, "manifest", trouble
        except StoreUnavailable as error:
            # One manifest that can't be read must not make every start cold; a store that fails altogether fails again
            # with the next.
            return None, "manifest", error

    def _claim(self, scope: KeyScope, key: str, name: str) -> bool:
        if not self._claiming:
            return False
        claim = Claims(self._store, scope, key, self._request.holder).try_to_take(name)
        if claim is not None:
            self.claims.append(claim)
        return claim is not None


def usable(store: Store, known: Fingerprint, scope: KeyScope) -> Manifest | None:
    """Say which generation of a key may be used at all, claiming nothing. Raises StoreUnavailable."""
    request = RestoreRequest(store="", live_cache="", facts={}, attempt="", store_mode="read-only")
    choice = Choice(request, store, known, lambda: 0.0, lambda _s: None, lambda _progress: None)
    return choice.choose(scope, Counter())
