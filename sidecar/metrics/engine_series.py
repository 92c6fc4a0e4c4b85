"""Splits the engine's numbers at ready: what warm-up made of them, and what traffic did.

An engine counts warm-up like traffic, and shows no name for it. Which metrics there are is declared in
`engine_table.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.metrics.engine_table import BUCKETS_KEPT, ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_HISTOGRAMS, ENGINE_PHASES
from sidecar.metrics.numbers import number

Labels = tuple[str, ...]


@dataclass
class Buckets:
    """One histogram series: for each upper bound all observations up to it, ascending, and their sum."""

    counts: dict[float, float]
    sum: float = 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        """Give the buckets with their bounds as text, as prometheus_client takes them."""
        return [("+Inf" if math.isinf(bound) else str(bound), count) for bound, count in self.counts.items()]


@dataclass
class _Split:
    """What one counter showed last, and how much of it belongs to each phase."""

    last: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def take(self, value: float, phase: str) -> None:
        """Add what came since the last reading. A reading that is older than the last one, and so less, adds nothing."""
        grown = max(0.0, value - self.last)
        self.last += grown
        self.parts = {name: self.parts.get(name, 0.0) for name in ENGINE_PHASES}
        self.parts[phase] += grown


class EngineSeries:
    """The split numbers of one engine process after another; none outlives its process."""

    def __init__(self) -> None:
        self._identity: object = None
        self._splits: dict[tuple[str, float | None], _Split] = {}
        self.gauges: dict[str, dict[Labels, float]] = {}
        self.counters: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Buckets]] = {}
        self.take(None, ENGINE_PHASES[0])

    def take(self, stats: Mapping[str, Any] | None, phase: str) -> None:
        """Take one reading, whose growth belongs to `phase`; None or an absent field takes the series away."""
        identity = None if stats is None else stats.get("identity") or "unnamed"
        if identity != self._identity:
            self._identity, self._splits = identity, {}
        found = stats or {}
        self.gauges = {
            metric: {} if (value := number(found.get(name))) is None else {(phase,): value}
            for name, metric in ENGINE_GAUGES.items()
        }
        self.counters = {
            metric: self._counter(name, found.get(name), phase) for name, metric in ENGINE_COUNTERS.items()
        }
        self.histograms = {
            metric: self._histogram(name, found.get(name), phase) for name, metric in ENGINE_HISTOGRAMS.items()
        }

    def _counter(self, name: str, raw: object, phase: str) -> dict[Labels, float]:
        value = number(raw)
        return {} if value is None else {(part,): each for part, each in self._grow(name, None, value, phase).items()}

    def _histogram(self, name: str, raw: object, phase: str) -> dict[Labels, Buckets]:
        counts = thinned(_bounds(raw))
        total = number(raw.get("sum")) if isinstance(raw, Mapping) else None
        if not counts:
            return {}
        known = {bound for kept, bound in self._splits if kept == name and bound is not None}
        if known and known != set(counts):
            # Another set of buckets can't go on where this one stood.
            self._splits = {key: split for key, split in self._splits.items() if key[0] != name}
        parts = {bound: self._grow(name, bound, count, phase) for bound, count in counts.items()}
        sums = self._grow(name, None, total or 0.0, phase)
        return {
            (each,): Buckets({bound: part[each] for bound, part in parts.items()}, sums[each]) for each in ENGINE_PHASES
        }

    def _grow(self, name: str, bound: float | None, value: float, phase: str) -> dict[str, float]:
        split = self._splits.setdefault((name, bound), _Split())
        split.take(value, phase)
        return split.parts


def _bounds(raw: object) -> dict[float, float]:
    """Read `buckets` of a histogram's JSON: bound as text → count. The last bound is infinity, or there is none."""
    buckets = raw.get("buckets") if isinstance(raw, Mapping) else None
    found: dict[float, float] = {}
    for bound, raw_count in buckets.items() if isinstance(buckets, Mapping) else ():
        count = number(raw_count)
        try:
            upper = float(bound)
        except ValueError:
            continue
        if count is not None and not math.isnan(upper):
            found[upper] = count
    return dict(sorted(found.items())) if math.inf in found else {}


def thinned(counts: dict[float, float]) -> dict[float, float]:
    """Leave every second bucket out until few enough are left; counts up to a bound stay true without those between."""
    while len(counts) > BUCKETS_KEPT:
        bounds = list(counts)
        kept = [*bounds[:-1][::2], bounds[-1]]
        counts = {bound: counts[bound] for bound in kept}
    return counts
