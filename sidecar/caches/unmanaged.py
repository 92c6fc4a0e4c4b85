"""Directories that grow while the engine runs and belong to no family: what they are, and what to say of them.

Only names and sizes are looked at. The engine's own container is looked at by the launcher.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sidecar.caches.families import FAMILIES, NO_FAMILY, stored_families
from sidecar.caches.live_cache import LOCK_NAME, MARKER_NAME, STAGING_NAME, TRASH_NAME
from sidecar.files import in_words

#: Less than both is what programs leave behind without compiling anything: a state file, a socket's directory.
WORTH_BYTES = 64 * 1024
WORTH_FILES = 10
#: So many directories at most, the largest first: label values of a metric.
TOLD = 10
#: Entries looked at in all places together; each has its share, so that a large one doesn't hide the others. The share
#: has a floor, so what many large places take together has a bound of its own.
ENTRIES = 50_000
SHARE = 2_000
MOST_ENTRIES = 400_000
#: HOME where the real one can't be written: the launcher looks into it.
HOME_NAME = "home"
_OURS = (LOCK_NAME, MARKER_NAME, STAGING_NAME, TRASH_NAME, HOME_NAME, ".warmup*", "lost+found")


class GrownDirectory(Protocol):
    """What the launcher tells of one directory (`handshake.Grown`)."""

    @property
    def path(self) -> str:
        """Absolute, as the engine's container sees it."""

    @property
    def bytes(self) -> int:
        """By how much it grew."""

    @property
    def files(self) -> int:
        """By how many files it grew."""

    @property
    def where(self) -> str:
        """Where it was found."""


@dataclass(frozen=True)
class Unmanaged:
    """One directory in no family: by how many bytes and files it grew, and where it was found.

    `where` is live (in the live cache), home, tmp, moved (the user's own place for a family) or extra. `whole` is False
    where not all of it was seen: it grew by so much at least.
    """

    path: str
    bytes: int
    files: int
    where: str
    whole: bool = True

    def to_json(self) -> dict[str, str | int]:
        """Give all fields."""
        return dict(vars(self))


def not_caches() -> tuple[str, ...]:
    """List the places that grow and are no caches of compilers, for the launcher; each is declared with its reason."""
    headers = [family.default_path.replace("$USER", "*") for family in FAMILIES if family.name == "torch_headers"]
    return (*(place for one in NO_FAMILY for place in one.places), *headers)


def sizes(live_cache: Path | str, extra_roots: Iterable[str] = ()) -> dict[str, Unmanaged]:
    """Measure what belongs to no family: below the live cache, and configured roots that can be seen from here.

    By path. What can't be read is passed over. About 50,000 entries are looked at, shared out among the directories with
    at least 2,000 for each, and never more than 400,000.
    """
    places = dict.fromkeys(_strangers(os.fspath(live_cache)) if os.fspath(live_cache) else (), "live")
    places.update(dict.fromkeys((path for path in extra_roots if os.path.isdir(path)), "extra"))
    directories = sum(os.path.isdir(path) for path in places)
    share = max(ENTRIES // max(1, directories), min(SHARE, ENTRIES))
    found: dict[str, Unmanaged] = {}
    left = MOST_ENTRIES
    for path, where in places.items():
        found[path], used = _measured(path, where, min(share, left))
        left -= used
    return {path: one for path, one in found.items() if one.files}


def grown(
    before: Mapping[str, Unmanaged], now: Mapping[str, Unmanaged], told: Sequence[GrownDirectory] = ()
) -> list[Unmanaged]:
    """List the directories that grew and are worth telling, the largest first, at most ten.

    `before` and `now` are two results of `sizes`, the first from before the engine started (empty when nobody looked
    then: all of the live cache was written by engines). `told` is what the launcher saw in the engine's container; of a
    root that both see, the launcher's word counts. Nothing is known of the growth of what was not seen whole before.
    """
    found: dict[str, Unmanaged] = {}
    for path, one in now.items():
        earlier = before.get(path)
        if earlier is not None and not earlier.whole:
            continue
        size, files = one.bytes - (earlier.bytes if earlier else 0), one.files - (earlier.files if earlier else 0)
        found[path] = Unmanaged(path, max(0, size), max(0, files), one.where, one.whole)
    for seen in told:
        whole = bool(getattr(seen, "whole", True))
        found[seen.path] = Unmanaged(seen.path, seen.bytes, seen.files, seen.where, whole)
    worth = [one for one in found.values() if one.bytes >= WORTH_BYTES or (one.files >= WORTH_FILES and one.bytes)]
    return sorted(worth, key=lambda one: (-one.bytes, one.path))[:TOLD]


def sentence(one: Unmanaged) -> str:
    """Say that a directory grew and what that means."""
    size = in_words(one.bytes)
    least = "" if one.whole else "at least "
    said = f"{one.path} grew by {least}{size} ({least}{one.files} new files) while the engine ran"
    if one.where == "moved":
        return (
            f"{said}: a cache variable of the engine's container points there, so that family is neither restored nor "
            "published. Remove the variable, and the sidecar sets it."
        )
    return (
        f"{said} and belongs to no cache family: it is neither restored nor published, and what was compiled there is "
        "compiled anew at each start."
    )


def _strangers(live_cache: str) -> list[str]:
    """List what no row of the table names, the highest directory of each."""
    known = {family.directory for family in stored_families()}
    known |= {family.directory for family in FAMILIES if family.directory and family.name != "vllm_p2p"}
    parents = {parent for path in known for parent in _parents(path)}
    found = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        for name in _names(os.path.join(live_cache, prefix)):
            path = f"{prefix}{name}"
            if path in known or _is_expected(path):
                continue
            if path in parents and os.path.isdir(os.path.join(live_cache, path)):
                pending.append(f"{path}/")
            else:
                found.append(os.path.join(live_cache, path))
    return sorted(found)


def _is_expected(path: str) -> bool:
    if "/" not in path:
        return any(fnmatch.fnmatch(path, pattern) for pattern in _OURS)
    # The row vllm_p2p: files beside the families of vLLM's root.
    return fnmatch.fnmatch(path, "vllm/gpu_p2p_access_cache_for_*.json")


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _measured(path: str, where: str, share: int) -> tuple[Unmanaged, int]:
    """Measure one place within its share of entries; give how many were looked at, too."""
    size = files = used = 0
    pending = [path]
    while pending:
        here = pending.pop()
        try:
            # A configured root may be a link to where its volume is mounted; no other link is followed.
            if not os.path.isdir(here) or (os.path.islink(here) and where != "extra"):
                status = os.lstat(here)
                size, files = size + status.st_size, files + 1
                continue
            with os.scandir(here) as entries:
                for entry in entries:
                    if used >= share:
                        return Unmanaged(path, size, files, where, whole=False), used
                    used += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        size, files = size + entry.stat(follow_symlinks=False).st_size, files + 1
        except OSError:
            continue
    return Unmanaged(path, size, files, where), used
