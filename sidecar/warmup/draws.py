"""Random draws from the traffic mix, spread over it in strata, until so many in a row compile nothing.

What a draw holds is decided in `planner.py`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from sidecar.warmup import sentences
from sidecar.warmup.bursts import Burst
from sidecar.warmup.journal import Journal
from sidecar.warmup.planner import draw_burst

#: The planner draws concurrency, the first output's length and the first prompt's length, in this order.
_CONCURRENCY, _PROMPT = 0, 2


class StratifiedRandom(random.Random):
    """A source of random numbers whose next draw lies in a given cell of the mix.

    With one draw in each of n cells of equal share, a part of the mix with share p is missed with a probability
    of at most (1 - p)^n: that of n independent draws, by the inequality of the means. So the rule of three holds.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(0)
        self._rng = rng
        self._given: dict[int, float] = {}
        self._number = 0

    def aim(self, concurrency: tuple[int, int], prompt: tuple[int, int]) -> None:
        """Let the next draw fall into one cell: the i-th of n strata of concurrency, the j-th of m of lengths."""
        self._number = 0
        self._given = {
            at: (part + self._rng.random()) / whole
            for at, (part, whole) in ((_CONCURRENCY, concurrency), (_PROMPT, prompt))
        }

    def random(self) -> float:
        """Give the next number from 0 to 1."""
        given = self._given.get(self._number)
        self._number += 1
        return self._rng.random() if given is None else given

    def getrandbits(self, k: int, /) -> int:
        """Give random bits, of the source behind."""
        return self._rng.getrandbits(k)


def cells(count: int) -> tuple[int, int]:
    """Split so many draws into strata of concurrency and of lengths, as evenly as their product allows."""
    rows = next(each for each in range(math.isqrt(count), 0, -1) if count % each == 0)
    return rows, count // rows


class Draws:
    """Draws bursts for one warm-up. `learn` is told of each that compiled, and may send more because of it."""

    def __init__(
        self, journal: Journal, rng: random.Random, learn: Callable[[Burst, Iterable[str]], Awaitable[None]]
    ) -> None:
        self._journal = journal
        self._plain = rng
        self._rng = StratifiedRandom(rng)
        self._learn = learn
        self._number = 0
        self._below = journal.limits()

    async def until_clean(self) -> None:
        """Draw until a whole set of draws in a row compiles nothing.

        A draw that compiles starts anew: what it compiled is warm now, and says that there may be more.
        """
        journal, converge = self._journal, self._journal.plan.profile.converge
        wanted, most = converge.random_draws, converge.random_draws * converge.max_rounds
        while not await self.one_set(wanted, most):
            if self._number >= most:
                clean = journal.draws
                point = f"Of {self._number} random draws, the last {clean} compiled nothing, not {wanted}."
                journal.end("exhausted", "random_draws", sentences.exhausted_by_rounds(journal.done(), point))

    async def one_set(self, wanted: int, most: float = math.inf) -> bool:
        """Draw so many bursts, one from each cell of the mix, and stop at one that compiles. Say whether none did."""
        journal = self._journal
        journal.draws, journal.phase = 0, "draws"
        for row, column in self._cells(wanted):
            if self._number >= most:
                return False
            self._number += 1
            name = f"random draw {self._number}"
            rows, columns = cells(wanted)
            self._rng.aim((row, rows), (column, columns))
            burst = draw_burst(journal.plan, self._rng, self._number, self._below)
            if journal.deadly.leaves_out(burst):
                # Not made up for by another draw: the share of the mix that this cell stands for stays unknown.
                continue
            attempt, evidence = await journal.send(burst, name)
            journal.judge(attempt, name, burst)
            if evidence or evidence.loaded:
                await self._learn(burst, evidence.identity)
                return False
            journal.draws += 1
            journal.show(f"random draws: {journal.draws} of {wanted} in a row compiled nothing")
        return True

    def _cells(self, wanted: int) -> deque[tuple[int, int]]:
        rows, columns = cells(wanted) if wanted else (0, 0)
        found = [(row, column) for row in range(rows) for column in range(columns)]
        self._plain.shuffle(found)
        return deque(found)
