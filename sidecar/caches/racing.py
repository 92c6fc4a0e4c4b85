"""How a publisher goes on when somebody else took the number that it wanted: look again, rebase, and when to stop.

What is published under a number is decided in `publish`; the store is not touched here.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sidecar.errors import LostRace

# Another client's name is seen after 60 s at the latest: NFS looks at a directory again after acdirmax (nfs(5)), gcsfuse
# after its metadata-cache TTL (Cloud Storage FUSE documentation, "metadata-cache:ttl-secs"). Some more for slow servers.
UNSEEN_S = 75.0
# Where links are not supported a manifest is created and then filled: what is damaged may be a second from being whole.
UNFINISHED_S = 5.0
# One publish: the next one takes up what this one could not place. Well below the default of WARMUP_PUBLISH_TIMEOUT_S.
LIMIT_S = 600.0
# Numbers that others took before this one: more than the pods of one roll-out that end their warm-up together.
NUMBERS = 60
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


def by_lot() -> float:
    """Draw a number from 0 to below 1. The module `random` takes longer to load than all draws of a publish."""
    return int.from_bytes(os.urandom(4)) / 2**32


class Race:
    """The tries of one publisher for one scope. `clock` is monotonic; all times in seconds."""

    def __init__(
        self, clock: Callable[[], float], sleep: Callable[[float], None], draw: Callable[[], float] = by_lot
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self._began = clock()
        self._slept = 0.0
        self._wanted = self._numbers = 0
        self._since = self._began
        self._pause = FIRST_PAUSE_S
        self._void = 0
        self._damaged: dict[str, float] = {}

    def number(self, following: int) -> int:
        """Give the number to try: the one that follows what can be seen, or a later one after `lost` gave that up."""
        return max(following, self._void + 1)

    def lost(self, number: int) -> None:
        """Pause before another try for the next number after this one was taken by somebody else.

        A number that stays taken while no manifest can be seen under it is passed over after `UNSEEN_S`: a name that
        nobody can read must not stop every later publish. Raises LostRace when the time of this publish is up.
        """
        now = self._now()
        if number != self._wanted:
            self._wanted, self._since, self._pause = number, now, FIRST_PAUSE_S
            self._numbers += 1
        elif now - self._since >= UNSEEN_S:
            self._void = number
            return
        if now - self._began >= LIMIT_S or self._numbers > NUMBERS:
            raise LostRace(
                "Other publishers were faster all the time; what is new here goes out with the next publish."
            )
        self._wait()

    def may_be_unfinished(self, name: str) -> bool:
        """Pause and say whether to read a damaged manifest again: somebody may be writing it at this moment."""
        now = self._now()
        if now - self._damaged.setdefault(name, now) >= UNFINISHED_S:
            return False
        self._wait()
        return True

    def _now(self) -> float:
        # What was slept counts even where a clock stands still, so that no race can last for ever.
        return max(self._clock(), self._began + self._slept)

    def _wait(self) -> None:
        # Drawn by lot, so that a crowd that lost together does not try together again.
        pause = self._pause * (0.5 + self._draw())
        self._sleep(pause)
        self._slept += pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
