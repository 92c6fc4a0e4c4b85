"""What a percentile is here: of a list of values exactly, of millions of gaps within half a percent.

Values are not collected here; how sure a difference is, is the business of `noise.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

#: Shares that are shown, by name.
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Neighbouring buckets of a `Tally` differ by this ratio, so that the middle of one is within 0.5 % of all its values.
BUCKET_RATIO = 1.01
_LOG = math.log(BUCKET_RATIO)
#: Values below a microsecond count as one: no clock that is used here tells them apart.
_LEAST = 1e-6


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the percentile of ascending values, between two of them by linear interpolation.

    Definition 7 of Hyndman and Fan (The American Statistician 50, 1996): NumPy's default, which `vllm bench serve`
    uses too, so that figures of both can be compared. Raises ValueError without values.
    """
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Tally:
    """Counts values in buckets of equal ratio: bounded memory for any number of them. Values in seconds."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.sum = 0.0
        self.worst = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._buckets[math.floor(math.log(max(value, _LEAST)) / _LOG)] += 1
        self.count += 1
        self.sum += value
        self.worst = max(self.worst, value)

    def percentile(self, share: float) -> float:
        """Give the middle of the bucket in which the nearest rank lies. Raises ValueError without values."""
        if not self.count:
            raise ValueError("there is no percentile of nothing")
        rank, seen = max(1, math.ceil(share * self.count)), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.worst, math.exp((bucket + 0.5) * _LOG))
        return self.worst
