"""Is a kernel entry whole: what each compiler needs to find before it may be published or restored.

A digest proves that bytes are those that were stored; these checks are for entries that were broken before that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sidecar.caches.families import Family, unit_of

JSON_LIMIT = 16 * 1024 * 1024
# A file of these kinds is never empty when its compiler has finished.
NEVER_EMPTY = (".so", ".cubin", ".hsaco", ".o", ".json", ".ptx", ".mlir")


def entry_of(family: Family, path: str) -> str:
    """Name what is kept or dropped together with a file: its kernel entry, else the file itself."""
    return unit_of(family, path) or path


def entries(family: Family, paths: Iterable[str]) -> dict[str, list[str]]:
    """Group paths of a family into entries."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(entry_of(family, path), []).append(path)
    return found


def broken(family: Family, sizes: Mapping[str, int], root: Path, live: Path) -> dict[str, str]:
    """Map each entry that is not whole to the reason.

    `sizes` maps every file of the family to its bytes, `root` is where they lie now, and `live` where the engine will
    find them: Triton's group files must name their children there. Files that vanish meanwhile make an entry broken.
    """
    found: dict[str, str] = {}
    for name, paths in entries(family, sizes).items():
        reason = _reason(family, paths, sizes, root, live)
        if reason:
            found[name] = reason
    return found


def _reason(family: Family, paths: list[str], sizes: Mapping[str, int], root: Path, live: Path) -> str:
    if any(sizes[path] == 0 and path.endswith(NEVER_EMPTY) for path in paths):
        return "empty"
    try:
        if family.validity == "triton":
            return _triton(paths, root, live)
        if family.validity == "ninja":
            return _ninja(paths, root)
    except OSError:
        return "unreadable"
    if family.validity == "cubin" and unit_of(family, paths[0]) and not any(path.endswith(".cubin") for path in paths):
        return "incomplete"
    return ""


def _triton(paths: list[str], root: Path, live: Path) -> str:
    """Parse each JSON file; a group's children must be in the entry, under the path the engine will use.

    Source: Triton 3.8 runtime/cache.py:73-93, `child_paths` maps a file's name to its absolute path.
    """
    there, prefix = set(paths), f"{live}/"
    for path in paths:
        if not path.endswith(".json"):
            continue
        try:
            value = json.loads(_read(root, path))
        except (ValueError, RecursionError):
            return "json"
        if not os.path.basename(path).startswith("__grp__"):
            continue
        children = value.get("child_paths") if isinstance(value, dict) else None
        if not isinstance(children, dict):
            return "json"
        for child in children.values():
            if not isinstance(child, str) or not child.startswith(prefix):
                return "elsewhere"
            if child.removeprefix(prefix) not in there:
                return "incomplete"
    return ""


def _ninja(paths: list[str], root: Path) -> str:
    """A module with a ninja file must have its library, and ninja must have written down that it finished it."""
    names = {os.path.basename(path): path for path in paths}
    libraries = [name for name in names if name.endswith(".so")]
    if "build.ninja" in names and not libraries:
        return "incomplete"
    if ".ninja_log" not in names:
        return ""
    log = _read(root, names[".ninja_log"]).decode("utf-8", "replace")
    finished = {line.split("\t")[3].rsplit("/", 1)[-1] for line in log.splitlines() if line.count("\t") >= 4}
    return "" if finished.issuperset(libraries) else "incomplete"


def _read(root: Path, path: str) -> bytes:
    with open(f"{root}/{path}", "rb", buffering=0) as stream:
        return stream.read(JSON_LIMIT) or b""
