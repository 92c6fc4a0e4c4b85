"""The series behind the metrics and their text: only what changed since the last scrape is written anew.

What the numbers mean is told in `recording.py`; which metrics there are is declared in `table.py`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from sidecar.metrics.declaration import OTHER, PREFIX, Metric
from sidecar.metrics.engine_series import Buckets
from sidecar.metrics.table import SECONDS
from sidecar.metrics.text import Family, Written

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_BOUNDS = (*SECONDS, math.inf)


@dataclass
class _Bins:
    """The counts of one histogram series; `sum` in the metric's unit."""

    counts: list[int]
    sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(SECONDS, value)] += 1
        self.sum += value

    def buckets(self) -> Buckets:
        """Give the counts up to each bound."""
        return Buckets(dict(zip(_BOUNDS, map(float, itertools.accumulate(self.counts)), strict=True)), self.sum)


Labels = tuple[str, ...]


class Numbers:
    """The series of a table of metrics. Values of labels that are not known count as `other`.

    `families` are the names of the live cache's families.
    """

    def __init__(self, table: Sequence[Metric], families: tuple[str, ...]) -> None:
        self._table = {metric.name: metric for metric in table}
        self._domains = {metric.name: self._domain(metric, families) for metric in table}
        self._values: dict[str, dict[Labels, float]] = {}
        self._bins: dict[str, dict[Labels, _Bins]] = {}
        self._mirrored: dict[str, dict[Labels, Buckets]] = {m.name: {} for m in table if m.kind == "histogram"}
        self._written: dict[str, Written] = {}
        self._changed = set(self._table)
        for metric in table:
            self._give_birth(metric)

    @staticmethod
    def _domain(metric: Metric, families: tuple[str, ...]) -> dict[str, tuple[str, ...] | None]:
        domain = dict(metric.labels)
        if domain.get("family") is not None:
            domain["family"] = (*families, OTHER)
        return domain

    def _give_birth(self, metric: Metric) -> None:
        series: list[Labels] = []
        domain = list(self._domains[metric.name].values())
        if not metric.optional and all(values is not None for values in domain):
            series = list(itertools.product(*(values or () for values in domain)))
        if metric.kind == "histogram":
            self._bins[metric.name] = {labels: _Bins([0] * (len(SECONDS) + 1)) for labels in series}
            self._values[metric.name] = {}
        else:
            self._values[metric.name] = dict.fromkeys(series, 0.0)

    # -- what a scrape reads
    # -------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Give all metrics in Prometheus' text format 0.0.4 (CONTENT_TYPE).

        Only what has changed since the last scrape is written anew: scrapes are many, changes few.
        """
        for name in self._changed:
            self._write(self._table[name])
        self._changed.clear()
        return "".join(self._written[name].text for name in self._table).encode()

    def _write(self, metric: Metric) -> None:
        histograms = self._histograms(metric)
        bounds = tuple(tuple(each.counts) for each in histograms.values())
        shape = (tuple(self._values[metric.name]), tuple(histograms), bounds)
        known = self._written.get(metric.name)
        if known is None or known.shape != shape:
            self._written[metric.name] = Written.anew(shape, self._family(metric, histograms))
            return
        values = list(self._values[metric.name].values())
        for each in histograms.values():
            counts = list(each.counts.values())
            values += [*counts, counts[-1], each.sum]
        known.update(values)

    def _histograms(self, metric: Metric) -> dict[Labels, Buckets]:
        if metric.kind != "histogram":
            return {}
        own = {key: bins.buckets() for key, bins in self._bins[metric.name].items()}
        return {**own, **self._mirrored[metric.name]}

    def value(self, name: str, **labels: str) -> float | None:
        """Give the value of one counter or gauge (name without prefix), or None when there is no such
        series.
        """
        return self._values[name].get(tuple(labels[label] for label in self._table[name].labels))

    def _family(self, metric: Metric, histograms: Mapping[Labels, Buckets]) -> Family:
        """Give prometheus_client's form of a metric."""
        name, labels = PREFIX + metric.name, tuple(metric.labels)
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=labels)
            for key, buckets in histograms.items():
                histogram.add_metric(key, buckets.cumulative(), buckets.sum)
            return histogram
        family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
            name, metric.help, labels=labels
        )
        for key, value in self._values[metric.name].items():
            family.add_metric([_encodable(part) for part in key], value)
        return family

    # -- how numbers get in
    # --------------------------------------------------------------------------------------

    def _known(self, name: str, labels: Labels) -> Labels:
        domain = self._domains[name].values()
        return tuple(
            given if values is None or given in values else OTHER for given, values in zip(labels, domain, strict=True)
        )

    def _add(self, name: str, amount: float | None, *labels: str) -> None:
        if amount is not None and amount > 0:
            key = self._known(name, labels)
            self._values[name][key] = self._values[name].get(key, 0.0) + amount
            self._changed.add(name)

    def _set(self, name: str, value: float, *labels: str) -> None:
        key = self._known(name, labels)
        if self._values[name].get(key) != value:
            self._values[name][key] = float(value)
            self._changed.add(name)

    def _optional(self, name: str, value: float | None) -> None:
        self._replace(name, {} if value is None else {(): value})

    def _replace(self, name: str, series: dict[Labels, float]) -> None:
        if self._values[name] != series:
            self._values[name] = series
            self._changed.add(name)

    def _mirror(self, name: str, series: dict[Labels, Buckets]) -> None:
        if self._mirrored[name] != series:
            self._mirrored[name] = series
            self._changed.add(name)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self._bins[name][self._known(name, labels)].observe(value)
        self._changed.add(name)

    def _one_of(self, name: str, chosen: str) -> None:
        self._replace(name, {labels: float(labels == (chosen,)) for labels in self._values[name]})


def _encodable(label: str) -> str:
    """Replace what UTF-8 can't carry, such as half of a surrogate pair in a file's name."""
    return label.encode("utf-8", "replace").decode("utf-8")
