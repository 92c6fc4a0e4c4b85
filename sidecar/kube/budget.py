"""How many writes may go to the API server: a bucket of tokens, refilled by time, and a purse for the way to ready.

Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """At most `size` at once, and one more every `refill_s` seconds; `clock` gives monotonic seconds."""

    def __init__(self, size: int, refill_s: float, clock: Callable[[], float]) -> None:
        self._size = float(size)
        self._refill_s = refill_s
        self._clock = clock
        self._left = float(size)
        self._at = clock()

    def take(self) -> bool:
        """Take one if there is one."""
        self._fill()
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def wait_s(self) -> float:
        """Give the seconds until there is one."""
        self._fill()
        return max(0.0, (1 - self._left) * self._refill_s)

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._at) / self._refill_s)
        self._at = now


class Purse:
    """Writes that can wait. Before the pod was ready for the first time there is one, then one every five minutes.

    Together with False at the start and True at the end these are the three writes of a pod that starts within five
    minutes: a hundred pods that start at once must not be a load for the API server.
    """

    #: Long against a start that goes well, short for a person who looks why a pod is not ready.
    BEFORE_READY_S = 300.0

    def __init__(self, size: int, refill_s: float, clock: Callable[[], float]) -> None:
        self._before = Bucket(1, self.BEFORE_READY_S, clock)
        self._after = Bucket(size, refill_s, clock)
        self._opened = False

    def open(self) -> None:
        """Note that the pod was ready."""
        self._opened = True

    @property
    def opened(self) -> bool:
        """Say whether the pod was ready."""
        return self._opened

    def take(self) -> bool:
        """Take leave for one write."""
        return (self._after if self._opened else self._before).take()

    def wait_s(self) -> float:
        """Give the seconds until there is leave for one."""
        return (self._after if self._opened else self._before).wait_s()
