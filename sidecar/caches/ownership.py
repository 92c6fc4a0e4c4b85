"""Whose files lie in the live cache: which scopes are this engine's own, and which families must be cleared.

Cheap enough for the daemon's event loop: a digest, one small file and a few directory names; no store is touched.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sidecar.caches.families import Family, Ranks, is_left_out, left_out_by_ranks, stored_families
from sidecar.caches.fingerprint import Fingerprint, KeyScope, fingerprint
from sidecar.caches.live_cache import LiveMarker, read_marker
from sidecar.caches.messages import RestoreRequest, RestoreResult
from sidecar.caches.normalise import ranks
from sidecar.caches.scan import scan_tree

SCOPES: tuple[KeyScope, ...] = ("exact", "toolchain")


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """The keys of the engine that is about to start, and the scopes whose live files were written under them.

    `generations`: what these files came with, by scope. `unfit` are families of these scopes that are not kept all the same.
    """

    known: Fingerprint
    own: frozenset[KeyScope]
    marked: bool
    live_cache: str
    generations: Mapping[str, str] = field(default_factory=dict)
    unfit: frozenset[str] = frozenset()

    def without(self, scopes: Collection[KeyScope]) -> Ownership:
        """Give up the files of some scopes: they are cleared or replaced."""
        kept = {scope: name for scope, name in self.generations.items() if scope not in scopes}
        return replace(self, own=self.own - frozenset(scopes), generations=kept)

    def to_clear(self, committed: Collection[str], claimed: bool) -> tuple[str, ...]:
        """List the live directories whose files belong to another key or are unfit, less those about to be replaced.

        `claimed`: files that no marker explains are cleared too. Without a store they are left alone, as without
        a sidecar.
        """
        if not self.marked and not claimed:
            return ()
        return tuple(
            os.path.join(self.live_cache, family.directory)
            for family in stored_families()
            if family.name not in committed
            and (family.scope not in self.own or family.name in self.unfit)
            and _has_entries(Path(self.live_cache, family.directory))
        )


def ownership(request: RestoreRequest) -> Ownership:
    """Compare the live cache's marker with the facts of the engine that is about to start. Never raises OSError."""
    known = fingerprint(request.facts, request.live_cache)
    marker = read_marker(request.live_cache)
    own: set[KeyScope] = set()
    # A reboot of the machine may have cut files that were being written.
    if marker is not None and request.plan != "cold" and marker.host_boot == request.host_boot:
        if marker.exact_key == known.exact_key:
            own.add("exact")
        if marker.toolchain_key == known.toolchain_key:
            own.add("toolchain")
    found = ranks(request.facts)
    unfit = {
        family.name
        for family in stored_families()
        if family.scope in own and (family.name in request.distrusted or _diverges(request.live_cache, family, found))
    }
    return Ownership(
        known=known,
        own=frozenset(own),
        marked=marker is not None,
        live_cache=request.live_cache,
        generations={scope: name for scope, name in marker.generations.items() if scope in own} if marker else {},
        unfit=frozenset(unfit),
    )


def marker_for(request: RestoreRequest, result: RestoreResult) -> LiveMarker:
    """Make the marker to write when the engine has started on what this restore decided."""
    return LiveMarker(
        exact_key=result.exact_key,
        toolchain_key=result.toolchain_key,
        attempt=request.attempt,
        host_boot=request.host_boot,
        generations=result.generations,
    )


def _diverges(live_cache: str, family: Family, found: Ranks) -> bool:
    """Say whether an earlier engine of this pod left tactics for some ranks only, or shared by all.

    A container that starts again in its pod would hang on them as on restored ones (`families.left_out_by_ranks`).
    """
    if not (family.per_rank or family.leave_out_multi_rank) or (found.total <= 1 and found.all_here):
        return False
    try:
        paths = scan_tree(Path(live_cache, family.directory))
    except OSError:
        return True
    return bool(left_out_by_ranks(family, (path for path in paths if not is_left_out(family, path)), found))


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return next(iter(found), None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # What can't be looked into may hold another key's files.
        return True
