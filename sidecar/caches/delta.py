"""What a publisher adds to a generation that is already there: a union by kernel entry, never less than before.

Entries are taken whole, because their files belong together: ninja's log fits only the objects it was written with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches import validity
from sidecar.caches.families import BY_NAME, Family, is_restless
from sidecar.caches.manifest import Manifest, StoredFile
from sidecar.caches.scan import Entry, Tree
from sidecar.caches.snapshot import Snapshot

CHUNK = 1024 * 1024
Stored = dict[str, dict[str, StoredFile]]
ByEntry = Callable[[Mapping[str, Entry]], dict[str, list[str]]]


@dataclass
class Delta:
    """Paths to add, by family, and the paths of the parent that they take the place of."""

    added: dict[str, list[str]] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.added.values())


class Digests:
    """Digests of live files, each computed once: a publisher that loses a race compares again."""

    def __init__(self, live_cache: Path) -> None:
        self._live_cache = live_cache
        self._known: dict[tuple[str, str], str] = {}

    def of(self, family: str, path: str) -> str:
        """Return the SHA-256 of a live file, empty when it can't be read."""
        if (family, path) not in self._known:
            self._known[family, path] = _digest(self._live_cache / BY_NAME[family].directory / path)
        return self._known[family, path]


def compute(
    snapshot: Snapshot,
    parent: Manifest | None,
    restored: Manifest | None,
    digests: Digests,
    is_whole: Callable[[Family, str, list[str]], bool],
) -> Delta:
    """Compare the snapshot with the newest generation, and with the one this live cache was restored from.

    An entry that the parent lacks is added. One that both have and that differs stays the parent's, unless the engine
    rebuilt what was restored from just this version (then the stored one is of no use), or the live one has more
    files. `is_whole` is asked of entries that would be added: there are few, and each answer opens files.
    """
    delta = Delta()
    theirs = _by_family(parent)
    origin = theirs if restored is parent else _by_family(restored)
    for name, tree in snapshot.trees.items():
        stored = theirs.get(name, {})
        family = BY_NAME[name]
        live_entries = validity.entries(family, tree)
        # Most paths are on both sides, and the pattern that tells a path's entry costs more than all else here.
        known = {path: entry for entry, paths in live_entries.items() for path in paths}
        stored_entries: dict[str, list[str]] = {}
        for path in stored:
            stored_entries.setdefault(known.get(path) or validity.entry_of(family, path), []).append(path)
        for entry, paths in live_entries.items():
            chosen = _Choice(name, tree, stored, origin.get(name, {}), digests).of(paths, stored_entries.get(entry, []))
            if chosen and is_whole(family, entry, paths):
                delta.added.setdefault(name, []).extend(chosen)
                if len(chosen) == len(paths):
                    delta.replaced.setdefault(name, []).extend(stored_entries.get(entry, []))
    return delta


@dataclass(frozen=True)
class _Choice:
    family: str
    tree: Tree
    stored: dict[str, StoredFile]
    origin: dict[str, StoredFile]
    digests: Digests

    def of(self, live: list[str], theirs: list[str]) -> list[str]:
        """Name the live files of one entry to add: all of them, the extra ones, or none."""
        extra = [path for path in live if path not in self.stored]
        if len(extra) == len(live):
            return live
        if all(self._same(path) for path in live if path in self.stored):
            return extra
        covers = set(live).issuperset(theirs)
        return live if covers and (extra or self._is_rebuilt(theirs)) else []

    def _is_rebuilt(self, theirs: list[str]) -> bool:
        """Say whether the parent's version is the one this live cache was restored from."""
        return all(path in self.origin and self.origin[path].sha256 == self.stored[path].sha256 for path in theirs)

    def _same(self, path: str) -> bool:
        ours, theirs = self.tree[path], self.stored[path]
        if is_restless(BY_NAME[self.family], path):
            return True
        if ours.link or theirs.link:
            return ours.link == theirs.link
        if ours.size != theirs.size:
            return False
        # Restored files keep their times to the nanosecond, so equal times mean equal bytes.
        return ours.mtime_ns == theirs.mtime_ns or self.digests.of(self.family, path) == theirs.sha256


def _by_family(manifest: Manifest | None) -> Stored:
    found: Stored = {}
    for file in manifest.files if manifest else ():
        found.setdefault(file.family, {})[file.path] = file
    return found


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while data := stream.read(CHUNK):
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()
