"""What of a live cache may be published: files that are quiet, complete, and of a family that travels.

The store is not known here; what is new against it is decided in `delta`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches import validity
from sidecar.caches.families import Family, Ranks, is_left_out, left_out_by_ranks, stored_families
from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import is_confined, is_confined_link
from sidecar.caches.scan import Entry, Tree, scan_tree

# Artifacts in this format are written file by file without care for readers (vLLM 0.33 envs.py:2139-2147).
UNSAFE_FORMAT = ("VLLM_COMPILE_CACHE_SAVE_FORMAT", "unpacked")
UNSAFE_FAMILY = "vllm_compile"
ONE_RANK = Ranks(1, True)


@dataclass(frozen=True)
class Snapshot:
    """The quiet files of each family that may travel, as they were when looked at."""

    live_cache: Path
    trees: dict[str, Tree]
    skipped: Counter[str]


def take(
    live_cache: Path,
    scope: KeyScope,
    newest_unix_s: float,
    ranks: Ranks = ONE_RANK,
    exclude: Collection[str] = (),
) -> Snapshot:
    """Look at the families of a scope. Entries with a file changed after `newest_unix_s` are still being written.

    Raises OSError when the live cache can't be read.
    """
    skipped: Counter[str] = Counter()
    trees: dict[str, Tree] = {}
    for family in stored_families():
        if family.scope == scope and family.name not in exclude:
            tree = _travelling(family, scan_tree(live_cache / family.directory), ranks, skipped)
            trees[family.name] = _quiet(family, tree, newest_unix_s, skipped)
    return Snapshot(live_cache, trees, skipped)


class Wholeness:
    """Say of entries of a snapshot whether they are whole; each is opened once, and only when it is asked for."""

    def __init__(self, snapshot: Snapshot, skipped: Counter[str], cuda_majors: Collection[str] = ()) -> None:
        self._snapshot = snapshot
        self._cuda_majors = cuda_majors
        self._skipped = skipped
        self._known: dict[tuple[str, str], bool] = {}

    def of(self, family: Family, entry: str, paths: Collection[str]) -> bool:
        """Say whether an entry is whole; the first time, one that is not is counted as skipped, with the reason."""
        known = self._known.get((family.name, entry))
        if known is None:
            tree, root = self._snapshot.trees[family.name], self._snapshot.live_cache / family.directory
            sizes = {path: tree[path].size for path in paths if not tree[path].link}
            reasons = validity.broken(family, sizes, root, root, self._cuda_majors)
            for reason in reasons.values():
                self._skipped[reason] += len(paths)
            known = self._known[family.name, entry] = not reasons
        return known


def unchanged(snapshot: Snapshot, family: Family, paths: Collection[str]) -> bool:
    """Say whether files are still exactly what the snapshot saw: size, time and inode."""
    root = snapshot.live_cache / family.directory
    for path in paths:
        try:
            status = (root / path).lstat()
        except OSError:
            return False
        seen = snapshot.trees[family.name][path]
        if (status.st_size, status.st_mtime_ns, status.st_ino) != seen[:3]:
            return False
    return True


def _travelling(family: Family, tree: Tree, ranks: Ranks, skipped: Counter[str]) -> Tree:
    kept = {}
    for path, entry in tree.items():
        if is_left_out(family, path):
            continue
        if is_confined(path) and entry.mtime_ns >= 0 and (not entry.link or is_confined_link(path, entry.link)):
            kept[path] = entry
        else:
            skipped["not_confined"] += 1
    others = left_out_by_ranks(family, kept, ranks)
    return {path: entry for path, entry in kept.items() if path not in others} if others else kept


def _quiet(family: Family, tree: Tree, newest_unix_s: float, skipped: Counter[str]) -> Tree:
    limit = int(newest_unix_s * 1e9)
    busy = {validity.entry_of(family, path) for path, entry in tree.items() if entry.mtime_ns > limit}
    return _without(family, tree, busy, "unstable", skipped)


def _without(family: Family, tree: Tree, names: set[str], reason: str, skipped: Counter[str]) -> Tree:
    if not names:
        return tree
    kept: dict[str, Entry] = {}
    for path, entry in tree.items():
        if validity.entry_of(family, path) in names:
            skipped[reason] += 1
        else:
            kept[path] = entry
    return kept
