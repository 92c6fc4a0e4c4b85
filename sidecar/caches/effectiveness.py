"""How much of what was restored an engine really used: copied is not hit.

Only status of files is looked at; why a family was of little use is found out in `unused`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sidecar.caches import unused
from sidecar.caches.families import Family, is_kernel, is_left_out, stored_families
from sidecar.caches.folder_tree import FolderTree
from sidecar.caches.scan import Changes, Tree, changes_since

#: Below this share of its kernels a restored family counts as not used: the engine looked elsewhere, or rebuilt.
POOR = 0.5
_PROBE = ".warmup-atime"


@dataclass(frozen=True)
class Effect:
    """One family, in kernels (in files, where a family has none): how many were restored, and what became of them.

    `read` were opened by the engine; None where the filesystem doesn't record it (mounted noatime). `rebuilt` were
    written anew or removed, `compiled` are new ones beside them. `why` says in one clause what explains a poor ratio, and
    `expected` that this is nothing to look into.
    """

    restored: int
    read: int | None
    rebuilt: int
    compiled: int
    why: str = ""
    expected: bool = False

    @property
    def ratio(self) -> float:
        """Give the share of all kernels needed that came from the store and were used as they are, 0 to 1.

        Restored kernels that this start did not need are no loss, so they count as used while nothing was compiled
        beside them; when something was, only those that were read count.
        """
        kept = self.restored - self.rebuilt
        used = kept if self.read is None or not (self.compiled or self.rebuilt) else min(kept, self.read)
        needed = used + self.rebuilt + self.compiled
        return used / needed if needed else 1.0

    @property
    def untouched(self) -> bool:
        """Say whether nothing of the family was read although the filesystem would tell."""
        return self.restored > 0 and self.read == 0

    def to_json(self) -> dict[str, float | int | bool | str | None]:
        """Give the counts, the ratio rounded to a thousandth, and what explains it."""
        return {
            "restored": self.restored,
            "read": self.read,
            "rebuilt": self.rebuilt,
            "compiled": self.compiled,
            "ratio": round(self.ratio, 3),
            "untouched": self.untouched,
            "why": self.why,
        }


def measure(
    live_cache: Path | str,
    laid: Mapping[str, FolderTree],
    restored: Iterable[str],
    facts: Mapping[str, Any] | None = None,
    near: Sequence[str] = (),
) -> dict[str, Effect]:
    """Compare what lay in the live cache when the engine started (`laid`) with what lies there now.

    `restored` names the families that came from the store, `facts` are the launcher's, `near` says in which facts the
    engine differs from the nearest that the store knows, where another published them. Restored files have equal access
    and modification times (see `staging`), so a later access time means that somebody read them: relatime updates it at
    the first read, mount(8). Raises OSError.
    """
    tells = records_reads(live_cache)
    wanted = frozenset(restored)
    found: dict[str, Effect] = {}
    for family in stored_families():
        before = laid.get(family.name, FolderTree(()))
        if family.name in wanted and not family.ours and any(map(_counts(family, before), before)):
            root = Path(live_cache, family.directory)
            change = changes_since(family, before, root)
            effect = _effect(family, before, change, root, tells)
            if effect.ratio < POOR:
                found_out = unused.reason(family, before, change, effect.read, root, facts or {}, near)
                effect = replace(effect, why=found_out.clause, expected=found_out.expected)
            found[family.name] = effect
    return found


def _effect(family: Family, before: Tree, change: Changes, root: Path, tells: bool) -> Effect:
    counts = _counts(family, before)
    rebuilt = {path for path in (*change.changed, *change.gone) if counts(path)}
    compiled = sum(map(counts, change.new))
    read = _read(root, (path for path in before if counts(path) and path not in rebuilt)) if tells else None
    return Effect(sum(map(counts, before)), read, len(rebuilt), compiled)


def records_reads(live_cache: Path | str) -> bool:
    """Say whether the live cache's filesystem records reads, by reading a file of ours. Raises OSError."""
    probe = Path(live_cache, _PROBE)
    try:
        probe.write_bytes(b"probe")
        os.utime(probe, ns=(1_000_000_000, 1_000_000_000))
        probe.read_bytes()
        return probe.stat().st_atime_ns != 1_000_000_000
    finally:
        with suppress(OSError):
            probe.unlink()


def sentence(effects: Mapping[str, Effect]) -> str:
    """Say which restored families were of little use and why; empty when all were used."""
    poor = {name: effect for name, effect in effects.items() if effect.ratio < POOR}
    if not poor:
        return ""
    parts = [f"{name} ({effect.ratio:.0%}{f': {effect.why}' if effect.why else ''})" for name, effect in poor.items()]
    return f"Little of what was restored was used: {'; '.join(parts)}."


def is_explained(effects: Mapping[str, Effect]) -> bool:
    """Say whether what was of little use was so because another engine published it, which nobody has to look into."""
    return all(each.expected for each in effects.values() if each.ratio < POOR)


def _counts(family: Family, paths: Iterable[str]) -> Callable[[str], bool]:
    """Make the rule of what is counted: kernels, or all files of a family that has none among these."""
    kernels = any(is_kernel(family, path) and not is_left_out(family, path) for path in paths)
    return lambda path: not is_left_out(family, path) and (not kernels or is_kernel(family, path))


def _read(root: Path, paths: Iterable[str]) -> int:
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            status = (root / path).stat(follow_symlinks=False)
            count += status.st_atime_ns != status.st_mtime_ns
    return count
