"""Splits the engine's numbers at ready: what warm-up made of them, and what traffic did.

An engine counts warm-up like traffic, and shows no name for it. Which metrics there are is declared in
`engine_table.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.metrics.engine_table import BUCKETS_KEPT, ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_HISTOGRAMS, ENGINE_PHASES
from sidecar.metrics.numbers import number

Labels = tuple[str, ...]
#: One reading can be overtaken by a later one; so many different ones in a row can't.
_READINGS_OF_ANOTHER = 3


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
    less: int = 0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ENGINE_PHASES, 0.0))

    def take(self, value: float, phase: str, borne: int) -> None:
        """Add what came since the last reading. One that is older than the last, and so less, adds nothing.

        `borne` times less, in a row, is a process that began anew and shows nothing that tells it from the one before; 0: it
        would show that.
        """
        if borne:
            self.less = self.less + 1 if value < self.last else 0
        if borne and self.less >= borne:
            self.parts = dict.fromkeys(ENGINE_PHASES, 0.0)
            self.last, self.less = 0.0, 0
        grown = max(0.0, value - self.last)
        self.last += grown
        self.parts[phase] += grown


class EngineSeries:
    """The split numbers of one engine process after another; none outlives its process."""

    def __init__(self) -> None:
        self._identity: object = None
        self._gap = False
        self._seen: Mapping[str, Any] | None = None
        self._borne = 0
        self._splits: dict[tuple[str, float | None], _Split] = {}
        self.gauges: dict[str, dict[Labels, float]] = {}
        self.counters: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Buckets]] = {}
        self.take(None, ENGINE_PHASES[0])

    def take(self, stats: Mapping[str, Any] | None, phase: str) -> None:
        """Take one reading, whose growth belongs to `phase`; None or an absent field takes the series away.

        They come back with the next reading of the same process, split as they were.
        """
        found = stats or {}
        if stats is not None and stats == self._seen:
            # The same reading is told every second until there is a new one; a later one may have come by another way.
            self._show(found, phase, 0)
            return
        self._seen = stats
        identity = found.get("identity") or "unnamed"
        if stats is not None and identity != self._identity:
            self._identity, self._splits = identity, {}
        unnamed = identity == "unnamed"
        self._show(found, phase, (1 if self._gap else _READINGS_OF_ANOTHER) if unnamed else 0)
        self._gap = stats is None

    def _show(self, found: Mapping[str, Any], phase: str, borne: int) -> None:
        self._borne = borne
        self.gauges = {
            metric: {} if (value := number(found.get(name))) is None or not _possible(metric, value) else {(phase,): value}
            for name, metric in ENGINE_GAUGES.items()
        }
        self.counters = {
            metric: self._counter(name, found.get(name), phase) for name, metric in ENGINE_COUNTERS.items()
        }
        self.histograms = {
            metric: self._histogram(name, found.get(name), phase) for name, metric in ENGINE_HISTOGRAMS.items()
        }

    def disown(self) -> None:
        """Count nothing that the engine shows so far for any phase: another daemon saw that, and knew whose it was."""
        for split in self._splits.values():
            split.parts = dict.fromkeys(ENGINE_PHASES, 0.0)

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
        split.take(value, phase, self._borne)
        return split.parts


def _possible(metric: str, value: float) -> bool:
    """Say whether a gauge can have this value: an engine that tells nonsense has none."""
    return 0 <= value <= 1 if metric.endswith("_ratio") else value >= 0


def _bounds(raw: object) -> dict[float, float]:
    """Read `buckets` of a histogram's JSON: bound as text → count up to it. The last bound is infinity, or there is none."""
    buckets = raw.get("buckets") if isinstance(raw, Mapping) else None
    found: dict[float, float] = {}
    for bound, raw_count in buckets.items() if isinstance(buckets, Mapping) else ():
        count = number(raw_count)
        try:
            upper = float(bound)
        except ValueError:
            continue
        if count is not None and upper > -math.inf:
            found[upper] = count
    if math.inf not in found:
        return {}
    bounds = sorted(found)
    # A page that is read while it grows may have fewer up to a bound than up to the one below.
    return dict(zip(bounds, itertools.accumulate((found[bound] for bound in bounds), max), strict=True))


def thinned(counts: dict[float, float]) -> dict[float, float]:
    """Leave every second bucket out until few enough are left; counts up to a bound stay true without those between."""
    while len(counts) > BUCKETS_KEPT:
        bounds = list(counts)
        kept = [*bounds[:-1][::2], bounds[-1]]
        counts = {bound: counts[bound] for bound in kept}
    return counts
