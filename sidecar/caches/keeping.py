"""Whether files that an earlier attempt left in the live cache may stay, by what the store says of where they came from.

Whose files they are is said in `ownership`; what takes their place is `restore`'s choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from sidecar.caches.fingerprint import KeyScope
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
    gone: set[KeyScope] = set()

    def look() -> None:
        with suppress(WarmupError, OSError):
            store = open_store(request.store, "read-only", sleep)
            for scope in owned.own & owned.generations.keys():
                key, name = owned.known.key(scope), owned.generations[scope]
                # When a generation is removed, the record of its quarantine goes, and the list of its files stays.
                unfit = store.quarantined(scope, key).union(store.unfit_names(scope, key))
                if name in unfit or is_condemned(name, store.boot_ends(scope, key)):
                    gone.add(scope)

    if owned.generations and request.store:
        looking = threading.Thread(target=look, name="kept-files", daemon=True)
        # No thread, no look: files are kept as where the store is away.
        with suppress(RuntimeError):
            looking.start()
            looking.join(LOOK_S)
    return owned.without(gone)
