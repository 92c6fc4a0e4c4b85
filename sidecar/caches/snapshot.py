"""What of a live cache may be published: files that are complete, quiet, and of a family that travels.

The store is not known here; what is new against it is decided in `delta`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches import validity
from sidecar.caches.families import Family, is_left_out, stored_families
from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import is_confined, is_confined_link
from sidecar.caches.scan import Entry, Tree, scan_tree

# Artifacts in this format are written file by file without care for readers (vLLM 0.33 envs.py:2139-2147).
UNSAFE_FORMAT = ("VLLM_COMPILE_CACHE_SAVE_FORMAT", "unpacked")
UNSAFE_FAMILY = "vllm_compile"


@dataclass(frozen=True)
class Snapshot:
    """The publishable files of each family as they were when looked at."""

    live_cache: Path
    trees: dict[str, Tree]
    skipped: Counter[str]


def take(
    live_cache: Path,
    scope: KeyScope,
    newest_unix_s: float,
    world_size: int = 1,
    exclude: Collection[str] = (),
) -> Snapshot:
    """Look at the families of a scope. Entries with a file changed after `newest_unix_s` are still being written.

    Raises OSError when the live cache can't be read.
    """
    skipped: Counter[str] = Counter()
    trees: dict[str, Tree] = {}
    for family in stored_families():
        if family.scope == scope and family.name not in exclude:
            root = live_cache / family.directory
            tree = _travelling(family, scan_tree(root), world_size, skipped)
            tree = _quiet(family, tree, newest_unix_s, skipped)
            trees[family.name] = _whole(family, tree, root, skipped)
    return Snapshot(live_cache, trees, skipped)


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


def _travelling(family: Family, tree: Tree, world_size: int, skipped: Counter[str]) -> Tree:
    kept = {}
    for path, entry in tree.items():
        if is_left_out(family, path, world_size):
            continue
        if is_confined(path) and entry.mtime_ns >= 0 and (not entry.link or is_confined_link(path, entry.link)):
            kept[path] = entry
        else:
            skipped["not_confined"] += 1
    return kept


def _quiet(family: Family, tree: Tree, newest_unix_s: float, skipped: Counter[str]) -> Tree:
    limit = int(newest_unix_s * 1e9)
    busy = {validity.entry_of(family, path) for path, entry in tree.items() if entry.mtime_ns > limit}
    return _without(family, tree, busy, "unstable", skipped)


def _whole(family: Family, tree: Tree, root: Path, skipped: Counter[str]) -> Tree:
    sizes = {path: entry.size for path, entry in tree.items() if not entry.link}
    broken = validity.broken(family, sizes, root, root)
    for reason in sorted(set(broken.values())):
        tree = _without(family, tree, {name for name, why in broken.items() if why == reason}, reason, skipped)
    return tree


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
