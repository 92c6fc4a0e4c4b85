"""Keep claims up for a daemon: a beat every few seconds, until it takes them back.

This is a task of the worker: a store that hangs must not reach the daemon. What is claimed is `choice`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sidecar.caches.claims import BEAT_S, beat
from sidecar.caches.messages import HoldRequest
from sidecar.caches.store import Store
from sidecar.errors import WarmupError


def hold(request: HoldRequest, asked_back: Callable[[float], bool], opened: Callable[[], Store]) -> None:
    """Renew the claims until `asked_back`, which waits for so many seconds, says so; then release them.

    Never raises for the store: a beat that can't be written is one that others miss.
    """
    count = 1
    while True:
        back = asked_back(BEAT_S)
        count += 1
        with suppress(WarmupError):
            store = opened()
            for claim in request.claims:
                with suppress(WarmupError):
                    beat(store, claim, count, released=back)
        if back:
            return
