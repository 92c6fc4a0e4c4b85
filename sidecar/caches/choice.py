"""Which generation of a key an engine is restored from.

Only names, records and manifests are looked at; no pack is opened, and what becomes of the choice is `restore`'s.
"""

from __future__ import annotations

from collections import Counter

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import Manifest
from sidecar.caches.store import DirectoryStore
from sidecar.errors import StoreDamaged


def choose(store: DirectoryStore, scope: KeyScope, key: str, rejected: Counter[str]) -> Manifest | None:
    """Take the newest generation of a key that is neither quarantined nor damaged; count those in `rejected`.

    Raises StoreUnavailable.
    """
    quarantined = store.quarantined(scope, key)
    for name in store.generations(scope, key):
        if name in quarantined:
            rejected["quarantined"] += 1
            continue
        try:
            found = store.read_manifest(scope, key, name)
        except StoreDamaged:
            rejected["manifest"] += 1
            continue
        if found is not None:
            return found
    return None
