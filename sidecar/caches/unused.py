"""Why an engine did not use what was restored, where a fact or a file explains it.

Reads small files only (vLLM's own key factors); what counts as poor is decided in `effectiveness`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.caches import switched_off
from sidecar.caches.families import Family, unit_of
from sidecar.caches.scan import Changes, Tree

FACTORS = "cache_key_factors.json"
FACTORS_LIMIT = 1 << 20
NAMED = 3
# One directory per key of the engine's own: vLLM 0.33 compilation/decorators.py:574 and backends.py:1086.
_ENGINE_KEY = re.compile(r"(torch_aot_compile/[0-9a-f]+|[0-9a-f]{10})/")


@dataclass(frozen=True)
class Reason:
    """Why a family was of little use, in one clause, empty where nothing known explains it.

    `expected`: kernels of another engine, which is no fault of anybody and nothing to look into.
    """

    clause: str = ""
    expected: bool = False


def reason(
    family: Family,
    before: Tree,
    changes: Changes,
    read: int | None,
    root: Path,
    facts: Mapping[str, Any],
    near: Sequence[str] = (),
) -> Reason:
    """Say why a family was of little use.

    `before` is what was laid down, `changes` what the engine did to it, `read` how many kernels it opened (None:
    not known), `root` where the family lies, `facts` the launcher's. `near`: in which facts the engine differs from the
    nearest one that the store knows, where another published these files; whether it was that one is not known.
    """
    fault = (
        _moved(family, facts)
        or (_rebuilt_by_ninja(before, changes, facts) if family.validity == "ninja" else "")
        or _another_key(before, changes, root)
        or _written_again(family, changes)
    )
    return Reason(fault) if fault else _beside(changes, read, near)


def _moved(family: Family, facts: Mapping[str, Any]) -> str:
    given = facts.get("overrides")
    overrides: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    for name in family.variables:
        if name in overrides:
            return f"{name} is set to {overrides[name]} in the engine's container, so the engine looks there"
    return next((why for families, why in switched_off.reasons(facts) if family.name in families), "")


def _rebuilt_by_ninja(before: Tree, changes: Changes, facts: Mapping[str, Any]) -> str:
    """Explain a rebuild: ninja compares command lines, its own log, and modification times."""
    changed = {*changes.changed, *changes.gone}
    folders = {path.rpartition("/")[0] for path in changed if path.endswith((".so", ".o"))}
    if not folders:
        return ""
    if any(f"{folder}/build.ninja" in changed for folder in folders):
        return "their build.ninja was written anew: a command line or a path differs (CUDA_HOME, flags, site-packages)"
    # Modules that were built together have one log beside their folders.
    logs = ((f"{folder}/.ninja_log", f"{folder.rpartition('/')[0]}/.ninja_log") for folder in folders)
    if any(own not in before and shared not in before for own, shared in logs):
        return "ninja's log was not among what was restored, so it built everything again"
    objects = [
        entry.mtime_ns
        for path, entry in before.items()
        if path.rpartition("/")[0] in folders and path.endswith(".o")
    ]
    newer = _installed_after(min(objects) / 1e9, facts) if objects else []
    if newer:
        return (
            f"the headers of {_some(newer)} were installed after these objects had been built: the image was built "
            "anew, or its files lost their times"
        )
    return ""


def _installed_after(unix_s: float, facts: Mapping[str, Any]) -> list[str]:
    packages = facts.get("packages")
    return sorted(
        str(name)
        for name, one in (packages.items() if isinstance(packages, Mapping) else ())
        if isinstance(one, Mapping) and isinstance(one.get("installed"), int) and one["installed"] > unix_s
    )


def _another_key(before: Tree, changes: Changes, root: Path) -> str:
    """Find the engine's own key directory that is new beside the restored ones, and what made it another key."""
    old = {found[1] for path in before if (found := _ENGINE_KEY.match(path))}
    new = {found[1] for path in changes.new if (found := _ENGINE_KEY.match(path))} - old
    if not old or not new:
        return ""
    named = (
        f"the engine's own key differs: it compiled into {_some(sorted(new))} beside the restored {_some(sorted(old))}"
    )
    differing = _factors_that_differ(before, changes.new, root)
    return f"{named}; its key differs in {_some(differing)}" if differing else named


def _factors_that_differ(before: Iterable[str], new: Iterable[str], root: Path) -> list[str]:
    """Compare vLLM's raw key factors (backends.py:1132) of the nearest pair; names only, values may be secrets."""
    ours = [found for path in new if path.endswith(FACTORS) and (found := _factors(root / path))]
    theirs = [found for path in before if path.endswith(FACTORS) and (found := _factors(root / path))]
    pairs = [
        sorted(name for name in {*one, *other} if one.get(name) != other.get(name)) for one in ours for other in theirs
    ]
    return min(pairs, key=len, default=[])


def _factors(path: Path) -> dict[str, str]:
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(FACTORS_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    env = found.pop("env", {})
    flat = {str(name): json.dumps(value, sort_keys=True) for name, value in found.items()}
    if isinstance(env, dict):
        flat.update({str(name): json.dumps(value, sort_keys=True) for name, value in env.items()})
    return flat


def _written_again(family: Family, changes: Changes) -> str:
    if not changes.changed:
        return ""
    again = {unit_of(family, path) or path for path in changes.changed}
    return f"{len(again)} of its entries were written again in place: the compiler did not accept what it found"


def _beside(changes: Changes, read: int | None, near: Sequence[str]) -> Reason:
    """Say why other entries were built beside those that were restored."""
    if not changes.new_kernels and not changes.new:
        return Reason()
    if near:
        more = f" and {len(near) - 1} more" if len(near) > 1 else ""
        return Reason(
            "another engine published it, and this one needs kernels of other sizes or features; the nearest known key "
            f"differs in {near[0]}{more}",
            expected=True,
        )
    if read == 0:
        return Reason(
            "the engine read none of it and compiled beside it: the compiler's own key differs (versions, paths, "
            "flags), or it looks in another directory"
        )
    count = len(changes.new_kernels) or len(changes.new)
    return Reason(
        f"{count} kernels more were needed than whoever published it had compiled: other shapes, or other features"
    )


def _some(names: Collection[str]) -> str:
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in list(names)[:NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
