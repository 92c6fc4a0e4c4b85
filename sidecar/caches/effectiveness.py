"""How much of what was restored an engine really used: copied is not hit.

Only status of files is looked at, nothing is opened; what to make of a poor ratio is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.families import Family, is_kernel, is_left_out, stored_families
from sidecar.caches.scan import Tree, compare, scan_live_cache

#: Below this share of its kernels a restored family counts as not used: the engine looked elsewhere, or rebuilt.
POOR = 0.5
_PROBE = ".warmup-atime"


@dataclass(frozen=True)
class Effect:
    """One family, in kernels (in files, where a family has none): how many were restored, and what became of them.

    `read` were opened by the engine; None where the filesystem doesn't record it (mounted noatime). `rebuilt` were
    written anew or removed, `compiled` are new ones beside them.
    """

    restored: int
    read: int | None
    rebuilt: int
    compiled: int

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

    def to_json(self) -> dict[str, float | int | bool | None]:
        """Give the counts and the ratio, rounded to a thousandth."""
        return {
            "restored": self.restored,
            "read": self.read,
            "rebuilt": self.rebuilt,
            "compiled": self.compiled,
            "ratio": round(self.ratio, 3),
            "untouched": self.untouched,
        }


def measure(live_cache: Path | str, laid: Mapping[str, Tree], restored: Iterable[str]) -> dict[str, Effect]:
    """Compare what lay in the live cache when the engine started (`laid`) with what lies there now.

    `restored` names the families that came from the store. Restored files have equal access and modification times
    (see `staging`), so a later access time means that somebody read them: relatime updates it at the first read,
    mount(8). Raises OSError.
    """
    tells = records_reads(live_cache)
    now = scan_live_cache(live_cache)
    changes = compare(laid, now)
    found: dict[str, Effect] = {}
    for family in stored_families():
        before = _counted(family, laid.get(family.name, {}))
        if family.name not in restored or not before:
            continue
        change = changes.get(family.name)
        changed = {*change.changed, *change.gone} if change else set[str]()
        rebuilt = changed & before
        new = set(change.new) if change else set[str]()
        compiled = _counted(family, dict.fromkeys(new)) if any(is_kernel(family, path) for path in before) else new
        read = _read(Path(live_cache, family.directory), before - rebuilt) if tells else None
        found[family.name] = Effect(len(before), read, len(rebuilt), len(compiled))
    return found


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
    """Say which restored families were of no use and what that hints at; empty when all were."""
    poor = [f"{name} ({effect.ratio:.0%})" for name, effect in effects.items() if effect.ratio < POOR]
    untouched = [name for name, effect in effects.items() if effect.untouched and effect.compiled]
    parts = []
    if poor:
        parts.append(f"Little of what was restored was used: {', '.join(poor)}.")
    if untouched:
        parts.append(
            f"The engine read nothing of {' and '.join(untouched)} and compiled beside it: it looks in another directory, "
            "or its own key differs (`cache_key_factors.json` in the live cache names vLLM's)."
        )
    return " ".join(parts)


def _counted(family: Family, paths: Iterable[str]) -> set[str]:
    """Pick what is counted: kernels, or all files of a family that knows none."""
    travelling = {path for path in paths if not is_left_out(family, path)}
    kernels = {path for path in travelling if is_kernel(family, path)}
    return kernels or travelling


def _read(root: Path, paths: Iterable[str]) -> int:
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            status = (root / path).stat(follow_symlinks=False)
            count += status.st_atime_ns != status.st_mtime_ns
    return count
