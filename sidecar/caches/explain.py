"""Say in a sentence how a restore ended, and which facts made it a miss.

Only reads of small files in the store; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.caches.fingerprint import Difference, Fingerprint, KeyScope, compare
from sidecar.caches.manifest import Manifest
from sidecar.caches.messages import REASONS, FamilyCount, RestoreOutcome
from sidecar.caches.store import DirectoryStore

# Facts files read to find the nearest key: one small read each, within a restore's budget even on a slow volume.
KEYS_LOOKED_AT = 64
NAMED = 3


@dataclass(frozen=True)
class Nearest:
    """The known key that differs in the fewest facts, and those facts; no key when the store knows none."""

    key: str
    differences: Sequence[Difference]


def nearest(store: DirectoryStore, known: Fingerprint, scope: KeyScope = "exact") -> Nearest:
    """Find the key of a scope in the store that is nearest to this engine's. Raises StoreUnavailable."""
    best = Nearest("", ())
    for key, facts in store.known_facts(scope, KEYS_LOOKED_AT):
        if key == known.key(scope):
            continue
        differences = compare(known.facts(scope), facts)
        if not best.key or len(differences) < len(best.differences):
            best = Nearest(key, differences)
    return best


def sentence_for(
    outcome: RestoreOutcome,
    chosen: Mapping[KeyScope, Manifest],
    families: Mapping[str, FamilyCount],
    rejected: Mapping[str, int],
    near: Nearest | None,
) -> str:
    """Say in one or two sentences what was restored, what was left out, and why it was not more."""
    parts = []
    if families:
        files = sum(one.files for one in families.values())
        size = sum(one.bytes for one in families.values())
        names = " and ".join(manifest.name for manifest in chosen.values())
        parts.append(f"Restored {files} files ({size / 1e6:.1f} MB) of {len(families)} families from {names}.")
    elif outcome == "failed":
        parts.append(
            "What the store holds for this engine could not be used; the engine starts cold. "
            "`warmup-sidecar store verify --deep` says what is damaged."
        )
    elif outcome == "kept":
        parts.append("The store has nothing that fits; what this pod's earlier attempt compiled is kept.")
    elif outcome == "miss":
        parts.append("The store has nothing for this engine yet; it starts cold.")
    if near is not None:
        parts.append(_why_not_exact(near))
    bad = {reason: count for reason, count in rejected.items() if reason in REASONS}
    if bad:
        parts.append("Left out: " + ", ".join(f"{count} {REASONS[reason]}" for reason, count in bad.items()) + ".")
    return " ".join(parts)


def _why_not_exact(near: Nearest) -> str:
    if not near.key:
        return "No generation for exactly these facts was ever published to it."
    named = "; ".join(str(one) for one in near.differences[:NAMED])
    more = len(near.differences) - NAMED
    return f"The nearest known key differs in {named}{f'; and {more} more' if more > 0 else ''}."
