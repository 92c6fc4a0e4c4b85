"""How sure a difference between two runs is: intervals by resampling whole waves of requests.

Says nothing about which figures are compared; that is `comparison.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Share of intervals that would hold the true ratio, were there many waves. Of few, intervals come out too narrow:
#: with 20 to 100 waves, 4 to 10 of 100 pairs of runs of the same engine differ beyond them (simulated), with 95 % 7 to 13.
CONFIDENCE = 0.99
#: Fewer values than this say nothing about noise.
LEAST_VALUES = 20
#: Blocks of one run: fewer make an interval of chance, so blocks get shorter than a wave before there are fewer.
LEAST_BLOCKS = 10
#: Values that are drawn in all for one interval, so that it takes about a second; and how often, at least and at most.
_WORK = 1_500_000
_RESAMPLES = (200, 1000)
#: Beyond so many values, evenly spaced blocks of them are used: the interval hardly changes, the time does.
_MOST_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which ratios the true one lies, at 99 % confidence; the ratio is second run / first run."""

    low: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Say whether the difference is larger than the noise within the runs."""
        return self.low > 1 or self.high < 1


def ratio_interval(
    first: Sequence[float],
    second: Sequence[float],
    statistic: Callable[[list[float]], float],
    block: int,
    rng: random.Random,
) -> Interval | None:
    """Bootstrap the ratio of a statistic of two runs; None when there are too few values to tell.

    Values are in the order of sending. What is drawn is `block` neighbours at a time (as many as are in flight
    together): requests that share the engine share its stalls, and drawn one by one they would look like as many
    independent witnesses. Moving blocks as in Künsch (Annals of Statistics 17, 1989), percentile interval as in
    Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13.
    """
    if min(len(first), len(second)) < LEAST_VALUES:
        return None
    one, other = _thinned(first, block), _thinned(second, block)
    times = max(_RESAMPLES[0], min(_RESAMPLES[1], _WORK // (len(one) + len(other))))
    ratios = []
    for _ in range(times):
        below = statistic(_resampled(one, block, rng))
        above = statistic(_resampled(other, block, rng))
        if below > 0:
            ratios.append(above / below)
    if not ratios:
        return None
    ratios.sort()
    tail = (1 - CONFIDENCE) / 2
    return Interval(ratios[math.floor(tail * (len(ratios) - 1))], ratios[math.ceil((1 - tail) * (len(ratios) - 1))])


def _resampled(values: Sequence[float], block: int, rng: random.Random) -> list[float]:
    length = _block_length(len(values), block)
    drawn: list[float] = []
    while len(drawn) < len(values):
        start = rng.randrange(len(values) - length + 1)
        drawn += values[start : start + length]
    return drawn[: len(values)]


def _block_length(count: int, block: int) -> int:
    return max(1, min(block, count // LEAST_BLOCKS))


def _thinned(values: Sequence[float], block: int) -> Sequence[float]:
    if len(values) <= _MOST_VALUES:
        return values
    length = _block_length(len(values), block)
    wanted = max(1, _MOST_VALUES // length)
    step = (len(values) - length) / max(1, wanted - 1)
    kept: list[float] = []
    for number in range(wanted):
        start = round(number * step)
        kept += values[start : start + length]
    return kept
