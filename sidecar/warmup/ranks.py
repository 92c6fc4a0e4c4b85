"""Which data-parallel ranks worked during a stretch of warm-up, by the engine's own counters.

Requests are sent to ranks elsewhere; here it is only found out whether they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

#: An engine's counters may be a moment behind the answers.
LATE_S = 1.0


class RankWatch:
    """Compares each rank's progress. `read` gives it by rank, as in `EngineStats.progress_by_rank`; empty: not known."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        self._read = read
        self._before: Mapping[str, float] = {}

    async def begin(self) -> None:
        """Take the counters as they are now."""
        self._before = await self._read()

    async def idle(self) -> tuple[str, ...]:
        """Name the ranks whose counters stand still since `begin`; none where there is one rank, or none is told."""
        found = await self._still()
        if found:
            await asyncio.sleep(LATE_S)
            found = await self._still()
        return found

    async def _still(self) -> tuple[str, ...]:
        if len(self._before) < 2:
            return ()
        now = await self._read()
        still = [rank for rank, before in self._before.items() if rank in now and now[rank] <= before]
        return tuple(sorted(still, key=lambda rank: (len(rank), rank)))
