"""Whose files lie in the live cache: which scopes are this engine's own, and which families must be cleared.

Cheap enough for the daemon's event loop: a digest, one small file and a few directory names; no store is touched.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.families import stored_families
from sidecar.caches.fingerprint import Fingerprint, KeyScope, fingerprint
from sidecar.caches.live_cache import LiveMarker, read_marker
from sidecar.caches.messages import RestoreRequest, RestoreResult

SCOPES: tuple[KeyScope, ...] = ("exact", "toolchain")


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """The keys of the engine that is about to start, and the scopes whose live files were written under them."""

    known: Fingerprint
    own: frozenset[KeyScope]
    marked: bool
    live_cache: str

    def to_clear(self, committed: Collection[str], claimed: bool) -> tuple[str, ...]:
        """List the live directories whose files belong to another key, less those about to be replaced.

        `claimed`: files that no marker explains are cleared too. Without a store they are left alone, as without
        a sidecar.
        """
        if not self.marked and not claimed:
            return ()
        return tuple(
            os.path.join(self.live_cache, family.directory)
            for family in stored_families()
            if family.name not in committed
            and family.scope not in self.own
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
    return Ownership(known=known, own=frozenset(own), marked=marker is not None, live_cache=request.live_cache)


def marker_for(request: RestoreRequest, result: RestoreResult) -> LiveMarker:
    """Make the marker to write when the engine has started on what this restore decided."""
    return LiveMarker(
        exact_key=result.exact_key,
        toolchain_key=result.toolchain_key,
        attempt=request.attempt,
        host_boot=request.host_boot,
        generations=result.generations,
    )


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return next(iter(found), None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # What can't be looked into may hold another key's files.
        return True
