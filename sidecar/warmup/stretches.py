"""Sizes on one scale, such as token counts: which were visited, what each compiled, and what lies open between them.

Pure books; how a size becomes traffic is decided in `search.py`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import pairwise

NOTHING: frozenset[str] = frozenset()
#: A stretch with a sign counts as if it were so many times as likely: kernels border on kernels.
SIGNED_WEIGHT = 4.0


class Scale:
    """Sizes from `low` to `high`, which live traffic hits evenly in their logarithm.

    A stretch between two visited neighbours is covered when nothing lies between them, when its share of the
    traffic is at most `gap`, or, where one of them compiled something that the other did not, at most `bound`.
    """

    def __init__(self, name: str, low: int, high: int, gap: float, bound: float) -> None:
        self.name = name
        self.low, self.high = low, max(low, high)
        self._gap, self._bound = gap, bound
        self._whole = math.log(self.high / self.low) if self.high > self.low else 1.0
        self._compiled: dict[int, frozenset[str]] = {}
        self._order: list[int] = []
        self._heap: list[tuple[float, int, int]] = []

    @property
    def visited(self) -> tuple[int, ...]:
        """List the visited sizes, ascending."""
        return tuple(self._order)

    def visit(self, size: int, names: Iterable[str] = ()) -> None:
        """Enter a visit and the identities of the kernels that it compiled; sizes off the scale are passed over."""
        if not self.low <= size <= self.high:
            return
        fresh = size not in self._compiled
        known = self._compiled.get(size, NOTHING)
        self._compiled[size] = known | frozenset(names)
        if fresh:
            insort(self._order, size)
        if fresh or self._compiled[size] != known:
            at = bisect_left(self._order, size)
            for low, high in pairwise(self._order[max(0, at - 1) : at + 2]):
                self._weigh(low, high)

    def next(self) -> int | None:
        """Name the size whose visit tells most: the ends, then within the likeliest open stretch. None: all covered."""
        for end in (self.low, self.high):
            if end not in self._compiled:
                return end
        while self._heap:
            priority, low, high = self._heap[0]
            # An entry outlives what it says: since then the stretch may have been split, or have gained a sign.
            if self._adjacent(low, high) and self._priority(low, high) == -priority:
                return self._split(low, high)
            heapq.heappop(self._heap)
        return None

    def open(self) -> list[tuple[int, int]]:
        """List the stretches that are not covered, as first and last size not visited; neighbours are joined."""
        if not self._order:
            return [(self.low, self.high)]
        ends = [self.low - 1, *self._order, self.high + 1]
        found: list[tuple[int, int]] = []
        for low, high in pairwise(ends):
            outside = low < self.low or high > self.high
            if high - low > 1 and (outside or self._pieces(low, high) > 1):
                if found and found[-1][1] == low - 1:
                    found[-1] = (found[-1][0], high - 1)
                else:
                    found.append((low + 1, high - 1))
        return found

    def share(self, low: int, high: int) -> float:
        """Give the share of the traffic between two sizes."""
        return math.log(high / low) / self._whole

    def _weigh(self, low: int, high: int) -> None:
        priority = self._priority(low, high)
        if priority > 0:
            heapq.heappush(self._heap, (-priority, low, high))

    def _priority(self, low: int, high: int) -> float:
        if self._pieces(low, high) < 2:
            return 0.0
        return self.share(low, high) * (SIGNED_WEIGHT if self._signed(low, high) else 1.0)

    def _pieces(self, low: int, high: int) -> int:
        """Say into how many pieces a stretch must be split; 1 when it is covered."""
        if high - low < 2:
            return 1
        if self._signed(low, high):
            return 2 if self.share(low, high) > self._bound else 1
        return math.ceil(self.share(low, high) / self._gap)

    def _signed(self, low: int, high: int) -> bool:
        return self._compiled[low] != self._compiled[high]

    def _adjacent(self, low: int, high: int) -> bool:
        at = bisect_left(self._order, low)
        return self._order[at : at + 2] == [low, high]

    def _split(self, low: int, high: int) -> int:
        pieces = self._pieces(low, high)
        # Whole pieces on either side, so that a stretch of k pieces takes k - 1 visits and not a power of two.
        size = round(low * math.pow(high / low, (pieces // 2) / pieces))
        return min(high - 1, max(low + 1, size))
