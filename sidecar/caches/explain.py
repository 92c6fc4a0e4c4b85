"""Say in a sentence how a restore ended, and which facts made it a miss.

Only reads of small files in the store; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.caches.fingerprint import SCHEME, Difference, Fingerprint, KeyScope, compare, key_of
from sidecar.caches.manifest import Manifest
from sidecar.caches.messages import REASONS, FamilyCount, RestoreOutcome, SourceCount
from sidecar.caches.store import Store
from sidecar.errors import StoreDamaged
from sidecar.files import in_words

# Facts files read to find the nearest key: one small read each, within a restore's budget even on a slow volume.
KEYS_LOOKED_AT = 64
NAMED = 3


@dataclass(frozen=True)
class Nearest:
    """The known key that differs in the fewest facts, and those facts, those with another value first.

    No key when the store knows none that can be compared; `older` counts keys whose facts an older version of the sidecar
    wrote down by other rules (`fingerprint.SCHEME`).
    """

    key: str
    differences: Sequence[Difference]
    older: int = 0


def nearest(store: Store, known: Fingerprint, scope: KeyScope = "exact", most: int = KEYS_LOOKED_AT) -> Nearest:
    """Find, among `most` keys of a scope in the store, the nearest to this engine's. Raises StoreUnavailable."""
    best = Nearest("", ())
    compared = set()
    for key, facts in store.known_facts(scope, most):
        compared.add(key)
        if key == known.key(scope):
            continue
        differences = compare(known.facts(scope), facts)
        if not best.key or len(differences) < len(best.differences):
            best = Nearest(key, differences)
    if not best.key:
        return Nearest(
            "", (), sum(_is_older(store, scope, key) for key in store.keys(scope)[:most] if key not in compared)
        )
    return Nearest(best.key, sorted(best.differences, key=lambda one: (one.how != "changed", one.fact)))


def _is_older(store: Store, scope: KeyScope, key: str) -> bool:
    try:
        facts = (store.read_note(scope, key, ("facts.json",)) or {}).get("facts")
    except StoreDamaged:
        return False
    return isinstance(facts, dict) and any(key_of(scope, facts, scheme) == key for scheme in range(1, SCHEME))


def older_sentence(older: int) -> str:
    """Say what keys of an older version mean."""
    keys = "1 key was" if older == 1 else f"{older} keys were"
    return (
        f"{keys} made by an older version of the sidecar, whose rules for keys were others: they are never used again."
    )


def sentence_for(
    outcome: RestoreOutcome,
    chosen: Mapping[KeyScope, Manifest],
    families: Mapping[str, FamilyCount],
    rejected: Mapping[str, int],
    near: Nearest | None,
    no_room: str = "",
) -> str:
    """Say in one or two sentences what was restored, what was left out, and why it was not more.

    `no_room` is a sentence of its own on families that were left out because they don't fit.
    """
    parts = []
    if families:
        files = sum(one.files for one in families.values())
        size = sum(one.bytes for one in families.values())
        names = " and ".join(manifest.name for manifest in chosen.values())
        parts.append(f"Restored {files} files ({in_words(size)}) of {len(families)} families from {names}.")
    elif outcome == "failed":
        parts.append(
            "What the store holds for this engine could not be used; the engine starts cold. "
            "`warmup-sidecar store verify --deep` says what is damaged."
        )
    elif outcome == "kept":
        parts.append("The store has nothing that fits; what this pod's earlier attempt compiled is kept.")
    elif outcome == "miss":
        parts.append("The store has nothing for this engine yet; it starts cold.")
    if no_room:
        parts.append(no_room)
    if near is not None:
        parts.append(_why_not_exact(near))
    bad = {
        reason: count
        for reason, count in rejected.items()
        if reason in REASONS and not (no_room and reason == "no_space")
    }
    if bad:
        parts.append("Left out: " + ", ".join(f"{count} {REASONS[reason]}" for reason, count in bad.items()) + ".")
    return " ".join(parts)


def sources_sentence(sources: Mapping[str, SourceCount]) -> str:
    """Say where packs came from, unless all of them lay on the store's own volume."""
    if not sources or set(sources) == {"volume"}:
        return ""
    places = {"node": "this node's cache", "volume": "a volume", "bucket": "the bucket"}
    named = [
        f"{in_words(one.bytes)} from {places.get(name, name)} in {one.seconds:.1f} s" for name, one in sources.items()
    ]
    return f"Packs: {', '.join(named)}."


def _why_not_exact(near: Nearest) -> str:
    if not near.key:
        nothing = "No generation for exactly these facts was ever published to it."
        return f"{nothing} {older_sentence(near.older)}" if near.older else nothing
    named = "; ".join(str(one) for one in near.differences[:NAMED])
    more = len(near.differences) - NAMED
    return f"The nearest known key differs in {named}{f'; and {more} more' if more > 0 else ''}."
