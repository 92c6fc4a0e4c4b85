"""A kubelet's waits, and its back-off between restarts, which tests may shorten.

Nothing else is shortened: the processes whose probes, budgets and grace periods these are take real time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

#: Kubernetes documentation, "Pod Lifecycle", section "Container restarts": "exponential backoff delay (10s, 20s, 40s, …),
#: that is capped at 300 seconds".
FIRST_BACKOFF_S = 10.0
LONGEST_BACKOFF_S = 300.0
#: The same section: a container that ran for 10 minutes without problems starts with a fresh back-off.
RESET_AFTER_S = 600.0


@dataclass(frozen=True)
class Clock:
    """The kubelet's waits in seconds. Only pauses between restarts may be shortened: to `backoff_scale` of their length."""

    backoff_scale: float = 1.0

    def now(self) -> float:
        """Give the monotonic time in seconds."""
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        """Wait between two questions of a probe."""
        await asyncio.sleep(seconds)

    async def back_off(self, seconds: float) -> None:
        """Wait before a restart."""
        await asyncio.sleep(seconds * self.backoff_scale)


class Backoff:
    """The pauses between the restarts of one container.

    "Pod Lifecycle", section "How Pods handle problems with containers": the first crash is followed by an immediate
    restart, later ones by the delays above.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def pause_after(self, ran_s: float) -> float:
        """Give the seconds to wait before the next start of a container that ran for `ran_s` seconds."""
        if ran_s >= RESET_AFTER_S:
            self._next = 0.0
        pause = self._next
        self._next = min(LONGEST_BACKOFF_S, 2 * pause if pause else FIRST_BACKOFF_S)
        return pause
