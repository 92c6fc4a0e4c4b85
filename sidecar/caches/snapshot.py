"""What of a live cache may be published: files that are quiet, complete, and of a family that travels.

The store is not known here; what is new against it is decided in `delta`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sidecar.caches import validity
from sidecar.caches.confinement import is_confined, is_confined_link
from sidecar.caches.families import BY_NAME, Family, Ranks, is_left_out, left_out_by_ranks, stored_families
from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.kernel_entries import Entries
from sidecar.caches.listing import Listing, listing_of

# Artifacts in this format are written file by file without care for readers (vLLM 0.33 envs.py:2139-2147).
UNSAFE_FORMAT = ("VLLM_COMPILE_CACHE_SAVE_FORMAT", "unpacked")
UNSAFE_FAMILY = "vllm_compile"
ONE_RANK = Ranks(1, True)
WHOLE, BROKEN = 1, 2
# What was changed so far in the future was written before the clock was set back: nobody writes it now.
AHEAD_NS = 600 * 10**9


class Snapshot:
    """The files of each family of a scope, as they were when looked at, and which of them may be published.

    Most files have been published already, so the others are asked about one entry at a time. What may not be
    published is counted in `skipped` by reason, once.
    """

    def __init__(
        self,
        live_cache: Path,
        listings: Mapping[str, Listing],
        newest_unix_s: float,
        ranks: Ranks,
        skipped: Counter[str],
    ) -> None:
        self.live_cache = live_cache
        self.listings = listings
        self._newest_ns = int(newest_unix_s * 1e9)
        self._ranks = ranks
        self._skipped = skipped
        self._counted: set[tuple[str, str, str]] = set()
        self._of_ranks: dict[str, frozenset[str]] = {}
        self._entries = {
            name: Entries(BY_NAME[name], found.paths, range(len(found))) for name, found in listings.items()
        }

    def entries(self, family: Family) -> Entries:
        """Give the entries of a family."""
        return self._entries[family.name]

    def publishable(self, family: Family, entry: str) -> list[int]:
        """Give the rows of an entry's files that travel; none while any of them is still being written."""
        listing = self.listings[family.name]
        rows = [row for row in self._entries[family.name].rows(entry) if self._travels(family, listing, row)]
        if any(self._newest_ns < listing.mtimes[row] < self._newest_ns + AHEAD_NS for row in rows):
            self._skip(family, entry, "unstable", len(rows))
            return []
        return rows

    def place(self, family: Family, row: int) -> str:
        """Give the path of a file."""
        return f"{self.live_cache}/{family.directory}/{self.listings[family.name].paths[row]}"

    def _travels(self, family: Family, listing: Listing, row: int) -> bool:
        path = listing.paths[row]
        return (
            not is_left_out(family, path)
            and self._is_confined(family, listing, row, path)
            and path not in self._left_out_by_ranks(family, listing)
        )

    def _is_confined(self, family: Family, listing: Listing, row: int, path: str) -> bool:
        target = listing.links.get(row)
        if is_confined(path) and (target is None or is_confined_link(path, target)):
            return True
        self._skip(family, path, "not_confined", 1)
        return False

    def _left_out_by_ranks(self, family: Family, listing: Listing) -> frozenset[str]:
        if self._ranks == ONE_RANK:
            return frozenset()
        if family.name not in self._of_ranks:
            rows = enumerate(listing.paths)
            kept = (
                path
                for row, path in rows
                if not is_left_out(family, path) and self._is_confined(family, listing, row, path)
            )
            self._of_ranks[family.name] = left_out_by_ranks(family, kept, self._ranks)
        return self._of_ranks[family.name]

    def _skip(self, family: Family, what: str, reason: str, files: int) -> None:
        if (family.name, what, reason) not in self._counted:
            self._counted.add((family.name, what, reason))
            self._skipped[reason] += files


def take(
    live_cache: Path,
    scope: KeyScope,
    newest_unix_s: float,
    skipped: Counter[str],
    ranks: Ranks = ONE_RANK,
    exclude: Collection[str] = (),
) -> Snapshot:
    """Look at the families of a scope. Raises OSError when the live cache can't be read.

    Entries with a file changed after `newest_unix_s`, and less than ten minutes after it, are still being written.
    """
    listings = {
        family.name: listing_of(f"{live_cache}/{family.directory}")
        for family in stored_families()
        if family.scope == scope and family.name not in exclude
    }
    skipped["not_confined"] += sum(listing.before_1970 for listing in listings.values())
    return Snapshot(live_cache, listings, newest_unix_s, ranks, skipped)


class Wholeness:
    """Say of entries of a snapshot whether they are whole; each is opened once, and only when it is asked for."""

    def __init__(self, snapshot: Snapshot, skipped: Counter[str], cuda_majors: Collection[str] = ()) -> None:
        self._snapshot = snapshot
        self._cuda_majors = cuda_majors
        self._skipped = skipped
        # By the first row of an entry: 0 while it is not known.
        self._known = {name: bytearray(len(listing)) for name, listing in snapshot.listings.items()}

    def of(self, family: Family, rows: Sequence[int]) -> bool:
        """Say whether an entry is whole; the first time, one that is not is counted as skipped, with the reason."""
        known = self._known[family.name]
        if known[rows[0]]:
            return known[rows[0]] == WHOLE
        listing, root = self._snapshot.listings[family.name], self._snapshot.live_cache / family.directory
        sizes = {listing.paths[row]: listing.sizes[row] for row in rows if row not in listing.links}
        reasons = validity.broken(family, sizes, root, root, self._cuda_majors)
        for reason in reasons.values():
            self._skipped[reason] += len(rows)
        known[rows[0]] = BROKEN if reasons else WHOLE
        return not reasons


def unchanged(snapshot: Snapshot, family: Family, rows: Sequence[int]) -> bool:
    """Say whether files are still exactly what the snapshot saw: size, time and inode."""
    listing = snapshot.listings[family.name]
    for row in rows:
        try:
            status = os.lstat(snapshot.place(family, row))
        except OSError:
            return False
        if (status.st_size, status.st_mtime_ns, status.st_ino) != listing.seen(row):
            return False
    return True
