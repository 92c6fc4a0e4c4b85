"""What this pod has claimed in the store: kept up while it tries a generation or makes the first one, then given back.

What is claimed is decided by the restore; nobody is kept from starting by a claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from sidecar.caches.client import CacheClient, Claim, HoldRequest
from sidecar.caches.messages import FIRST


class Keeper:
    """Keeps claims up in worker processes, one for those on generations and one for the first of a key."""

    def __init__(self, caches: CacheClient) -> None:
        self._caches = caches
        self._held: dict[str, asyncio.Task[None]] = {}

    def keep(self, store: str, claims: Iterable[Claim]) -> None:
        """Keep claims up from now on, instead of those kept before."""
        self.give_back()
        groups: dict[str, list[Claim]] = {}
        for claim in claims:
            groups.setdefault(FIRST if claim.what == FIRST else "tried", []).append(claim)
        for name, group in groups.items():
            request = HoldRequest(store=store, claims=tuple(group))
            self._held[name] = asyncio.create_task(self._caches.hold(request), name=f"hold {name}")

    def tried(self) -> None:
        """Give back what was claimed to try it: the engine became ready on it, or died."""
        self._release("tried")

    def first_is_made(self) -> None:
        """Give back the claim on a key's first generation: it is published, or nothing will come of it."""
        self._release(FIRST)

    def give_back(self) -> None:
        """Give everything back."""
        for name in tuple(self._held):
            self._release(name)

    async def close(self) -> None:
        """Give everything back and wait until the workers are told."""
        tasks = tuple(self._held.values())
        self.give_back()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)

    def _release(self, name: str) -> None:
        task = self._held.pop(name, None)
        if task is not None:
            task.cancel()
