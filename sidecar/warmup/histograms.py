"""Lengths out of cumulative histograms of one engine or of many, whose buckets need not be the same.

Where the counts are from is known to the command; what becomes of them, to `learned.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.errors import NotSo
from sidecar.warmup.recorded import LARGEST, Distribution, of_buckets

#: So large a share may lie beyond the last bound of a histogram without anybody saying how long requests can be.
BEYOND_AT_MOST = 0.1
#: What lies beyond is taken for at most so many times as long, where nobody says.
BEYOND_FACTOR = 2


@dataclass(frozen=True)
class Lengths:
    """Counts by length in tokens; `beyond` is the share of the requests beyond the last bound, `last`."""

    found: Distribution
    beyond: float = 0.0
    last: int = 0


def lengths_of(series: Iterable[Mapping[float, float]], longest: int | None, what: str) -> Lengths:
    """Add up histograms, each of which counts up to its own bounds; `longest` request in tokens, where it is known.

    Each is taken apart by itself: counts up to a bound that another one lacks can't be added to its counts. Raises NotSo
    when too much lies beyond the last bounds to be placed; `what` names it.
    """
    found, beyond, last = Distribution(), 0.0, 0
    for buckets in series:
        known = {bound: count for bound, count in buckets.items() if math.isfinite(count) and not math.isnan(bound)}
        finite = [bound for bound in known if math.isfinite(bound) and bound >= 1]
        top = int(min(max(finite, default=0), LARGEST / BEYOND_FACTOR))
        end = longest or max(1, top * BEYOND_FACTOR)
        part = of_buckets(known, {}, end)
        if not finite:
            # All in one bucket without an end: how many, and nothing of how long.
            beyond += part.total
            continue
        up_to = max(0.0, *(known[bound] for bound in finite))
        beyond += max(0.0, known.get(math.inf, up_to) - up_to)
        last = max(last, top)
        found = found.plus(part, 1.0)
    total = max(found.total, beyond)
    share = beyond / total if total else 0.0
    if (share > BEYOND_AT_MOST and longest is None) or (share and not found.total):
        raise NotSo(
            f"{share:.0%} of the {what} are longer than the last bucket of the histograms ({last} tokens), so their length is "
            "not known. Give the longest request of the engine with --max-model-len, or give the engine more buckets."
        )
    return Lengths(found, share, last)
