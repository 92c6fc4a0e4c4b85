"""What plots show: rows of a label, a bar's length and a text; of how values are spread, and over time.

On a terminal bars are drawn by the command that shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.bench.durations import duration

#: Rows of a plot: two of them and the tables fit on a screen.
ROWS = 12
#: Stretches of a run are no shorter: labels have two digits, and a client is as late as that. Seconds.
STRETCH_S = 0.01


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: `share` of the full width, 0 to 1."""

    label: str
    share: float
    text: str


def histogram(seconds: Sequence[float]) -> list[Bar]:
    """Count values in ranges of equal ratio, since stalls are many times longer than what is usual."""
    if not seconds:
        return []
    low, high = max(min(seconds), 1e-6), max(*seconds, 1e-6)
    if high / low < 1.001:
        return [Bar(f"about {duration(low)}", 1.0, str(len(seconds)))]
    step = math.log(high / low) / ROWS
    counts = [0] * ROWS
    for value in seconds:
        counts[min(ROWS - 1, int(math.log(max(value, low) / low) / step))] += 1
    edges = [low * math.exp(step * number) for number in range(ROWS)] + [high]
    most = max(counts)
    return [
        Bar(f"{duration(edges[at])} to {duration(edges[at + 1])}", count / most, str(count))
        for at, count in enumerate(counts)
    ]


def of_counts(counts: Sequence[tuple[int, float]]) -> list[Bar]:
    """Show counts by upper bound as shares of all; neighbours are put together where there are more than rows."""
    total = math.fsum(count for _, count in counts)
    if not total:
        return []
    size = -(-len(counts) // ROWS)
    rows, low = [], 1
    for at in range(0, len(counts), size):
        part = counts[at : at + size]
        rows.append((f"{low:,} to {part[-1][0]:,}" if low < part[-1][0] else f"{part[-1][0]:,}", part))
        low = part[-1][0] + 1
    shares = [math.fsum(count for _, count in part) / total for _, part in rows]
    most = max(shares)
    return [Bar(label, share / most, f"{share:.1%}") for (label, _), share in zip(rows, shares, strict=True)]


def drawn(bars: Sequence[Bar], width: int) -> list[str]:
    """Draw bars as lines of text, the longest so many characters wide."""
    label = max((len(bar.label) for bar in bars), default=0)
    lines = []
    for bar in bars:
        length = max(1, round(bar.share * width)) if bar.share else 0
        lines.append(f"{bar.label:>{label}}  {'█' * length:<{width}}  {bar.text}")
    return lines


def over_time(started: Sequence[float], seconds: Sequence[float]) -> list[Bar]:
    """Show the worst value of each stretch of a run, in which a stall of all streams stands out, and the median.

    A run is cut into as many stretches as it is long enough for; where that is one, there is nothing to show.
    """
    rows = min(ROWS, int(max(started, default=0.0) / STRETCH_S))
    if rows < 2:
        return []
    width = max(started) / rows
    slots: list[list[float]] = [[] for _ in range(rows)]
    for start, value in zip(started, seconds, strict=True):
        slots[min(rows - 1, int(start / width))].append(value)
    worst, digits = max(seconds), 1 if width >= 0.1 else 2
    bars = []
    for at, slot in enumerate(slots):
        slot.sort()
        text = f"{duration(slot[-1])}, median {duration(slot[len(slot) // 2])}" if slot else "none sent"
        bars.append(
            Bar(f"{at * width:.{digits}f} to {(at + 1) * width:.{digits}f} s", slot[-1] / worst if slot else 0.0, text)
        )
    return bars
