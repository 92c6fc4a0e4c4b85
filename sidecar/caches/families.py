"""The questions that the table of cache families answers: where each lies, what may travel, what in it is a kernel.

No file is opened here; the rows are in `family_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

from sidecar.caches import family_table
from sidecar.caches.family import Family, NoFamily, Ranks, Scope, Validity
from sidecar.caches.family_table import NO_FAMILY
from sidecar.caches.other_engines import OTHER_ENGINES

__all__ = ["BY_NAME", "FAMILIES", "NO_FAMILY", "Family", "NoFamily", "Ranks", "Scope", "Validity"]

FAMILIES: tuple[Family, ...] = (*family_table.FAMILIES, *OTHER_ENGINES)

# Locks and unfinished files of every compiler in the table: filelock, uuid and pid temporary names, NFS leftovers.
NEVER_STORED = (
    "**/*.lock",
    "**/lock",
    "**/locks/**",
    "**/tmp/**",
    "**/tmp.*/**",
    # Python's own temporary names, in which FlashInfer 0.7.2 writes libraries and tables beside the finished ones.
    "**/tmp????????",
    "**/tmp????????/**",
    "**/.moe_ep_knob_cache.*",
    "**/*.tmp",
    "**/*.tmp.*",
    "**/.staging*/**",
    "**/.nfs*",
    "**/flashinfer_jit.log",
)

BY_NAME: Mapping[str, Family] = MappingProxyType({family.name: family for family in FAMILIES})


def stored_families() -> tuple[Family, ...]:
    """List the families that may travel: every scope but `never`."""
    return tuple(family for family in FAMILIES if family.scope != "never")


def environment(live_cache: str) -> dict[str, str]:
    """Return the engine variables that put every family under the live cache. HOME and TMPDIR stay as they are."""
    root = live_cache.rstrip("/")
    return {
        name: template.replace("{live}", root) for family in FAMILIES for name, template in family.variables.items()
    }


def links(live_cache: str) -> dict[str, str]:
    """Map each place that no variable moves to the directory under the live cache which a link there names.

    A place begins with `~/` or `$TMPDIR/`: what that is, only the engine's container knows.
    """
    root = live_cache.rstrip("/")
    return {place: template.replace("{live}", root) for family in FAMILIES for place, template in family.links.items()}


def directories(live_cache: str) -> list[str]:
    """List the absolute directories which must exist before the engine starts, parents first."""
    root = live_cache.rstrip("/")
    found = {root}
    for value in (*environment(live_cache).values(), *links(live_cache).values()):
        if value.startswith(root + "/"):
            # Some variables name a file.
            found.add(value.rpartition("/")[0] if value.endswith(".json") else value)
    found.update(f"{root}/{family.directory}" for family in stored_families())
    return sorted(found)


def is_kernel(family: Family | str, relpath: str) -> bool:
    """Say whether a file of a family is one compiled kernel (path relative to the family's directory)."""
    known = BY_NAME[family] if isinstance(family, str) else family
    return _matches(known.kernels, relpath)


def is_left_out(family: Family, relpath: str, world_size: int = 1) -> bool:
    """Say whether a file never travels: locks, temporary names, and what the family's row leaves out.

    With several ranks, what ranks have together or each for itself is left out too. Whoever knows all files of the
    family asks with one rank here and then `left_out_by_ranks`, which lets complete sets travel.
    """
    if left_out(family).fullmatch(relpath):
        return True
    return world_size > 1 and (_matches(family.leave_out_multi_rank, relpath) or _rank_set(family, relpath) is not None)


def left_out(family: Family) -> re.Pattern[str]:
    """Give what matches the paths that never travel whatever the ranks: `is_left_out`, for whoever asks of many."""
    found = _joined((*NEVER_STORED, *family.leave_out))
    assert found is not None
    return found


def left_out_by_ranks(family: Family, paths: Iterable[str], ranks: Ranks) -> frozenset[str]:
    """Name the files that must not travel because the engine has several ranks.

    A rank that finds its tactics skips collectives in which the others wait, until the engine's timeout of half an
    hour. So it is all ranks or none: a set of files travels when there is exactly one for each rank and every rank runs
    in this pod, because what another pod restores can't be known here. A file that all ranks share never travels.
    Call it when publishing on what would travel, and when restoring on what is left after damaged files were dropped.
    """
    if ranks.total <= 1 and ranks.all_here:
        return frozenset()
    left_out: set[str] = set()
    sets: dict[str, set[str]] = {}
    for path in paths:
        name = _rank_set(family, path)
        if name is not None:
            sets.setdefault(name, set()).add(path)
        elif _matches(family.leave_out_multi_rank, path):
            left_out.add(path)
    for found in sets.values():
        if len(found) != ranks.total or not ranks.all_here:
            left_out |= found
    return frozenset(left_out)


def is_restless(family: Family, relpath: str) -> bool:
    """Say whether a change of this file says nothing."""
    return _matches(family.restless, relpath)


def unit_of(family: Family, relpath: str) -> str | None:
    """Name the kernel entry that a file belongs to; None when the family has none, or the file is beside them."""
    if family.unit is None:
        return None
    found = _pattern(family.unit).match(relpath)
    return "".join(found.groups()) if found else None


def all_goes(family: Family, entries: Iterable[str]) -> bool:
    """Say whether a family is left empty when some of its entries can't be used (`validity.entry_of`)."""
    beside = family.one_piece and any(unit_of(family, f"{entry}/") != entry for entry in entries)
    return family.unit is None or beside


def _rank_set(family: Family, relpath: str) -> str | None:
    found = _pattern(family.per_rank).fullmatch(relpath) if family.per_rank else None
    return found["set"] if found else None


def _matches(globs: Iterable[str], relpath: str) -> bool:
    joined = _joined(tuple(globs))
    return joined is not None and joined.fullmatch(relpath) is not None


@cache
def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.DOTALL)


@cache
def _joined(globs: tuple[str, ...]) -> re.Pattern[str] | None:
    if not globs:
        return None
    return re.compile("|".join(f"(?:{_translated(one)})" for one in globs), re.DOTALL)


def _translated(glob: str) -> str:
    """Turn a glob into a pattern: `**/` any folders, a last `**` anything, `*` and `?` within one name."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meaning.get(piece, re.escape(piece)) for piece in pieces)
