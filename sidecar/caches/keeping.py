"""Whether files that an earlier attempt left in the live cache may stay, by what the store says of where they came from.

Whose files they are is said in `ownership`; what takes their place is `restore`'s choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sidecar.caches.live_cache import read_marker
from sidecar.caches.messages import RestoreRequest
from sidecar.caches.ownership import Ownership
from sidecar.caches.records import is_condemned
from sidecar.caches.store import open_store
from sidecar.errors import WarmupError

#: A store that hangs must not make a container's restart slow, for which nothing has to be read from it. Seconds.
LOOK_S = 5.0


def without_unfit(request: RestoreRequest, owned: Ownership, sleep: Callable[[float], None]) -> Ownership:
    """Give up what came with a generation that was quarantined or condemned since: then it is cleared or replaced.

    A store that is away, hangs or can't be read changes nothing. Never raises OSError.
    """
    marker = read_marker(request.live_cache) if owned.own and request.store else None
    came_with = {scope: name for scope, name in marker.generations.items() if scope in owned.own} if marker else {}
    gone: set[str] = set()

    def look() -> None:
        with suppress(WarmupError, OSError):
            store = open_store(request.store, "read-only", sleep)
            for scope in owned.own & came_with.keys():
                key, name = owned.known.key(scope), came_with[scope]
                if name in store.quarantined(scope, key) or is_condemned(name, store.boot_ends(scope, key)):
                    gone.add(scope)

    if came_with:
        looking = threading.Thread(target=look, name="kept-files", daemon=True)
        looking.start()
        looking.join(LOOK_S)
    return replace(owned, own=owned.own - gone)
