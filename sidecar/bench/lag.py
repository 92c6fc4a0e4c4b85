"""How late this process comes to read its sockets: when it is late, its figures say more of it than of the engine.

Measures only; what lag means for figures is told by `report.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar.bench.percentiles import Tally

#: Time between two looks. Short against the lag that matters, long enough to cost nothing. Seconds.
EVERY_S = 0.01
#: A lag beyond this is told: answers were read that late, and their times count it as the engine's. Seconds.
TOLERABLE_S = 0.05


class LagMeter:
    """Notes how much later than asked a timer fires, `clock` in monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lags = Tally()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.lags.add(max(0.0, self._clock() - due))
