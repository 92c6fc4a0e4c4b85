"""The numbers behind the metrics: the supervisor tells them, a scrape reads them; the only owner of
prometheus_client's registry.

Nothing is measured here and no room is asked for anything. Which metrics there are is declared in `table.py`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from sidecar.metrics.table import (
    BY_NAME,
    ENGINE_SERIES,
    GPUS_SHOWN,
    OTHER,
    PREFIX,
    SECONDS,
    SOURCES,
    STEPS_SHOWN,
    TABLE,
    UNMANAGED_SHOWN,
    Metric,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class _Bins:
    """The counts of one histogram series; `sum` in the metric's unit."""

    counts: list[int]
    sum: float = 0.0

    def observe(self, value: float, bounds: tuple[float, ...]) -> None:
        self.counts[bisect_left(bounds, value)] += 1
        self.sum += value

    def cumulative(self, bounds: tuple[float, ...]) -> list[tuple[str, float]]:
        names = [str(bound) for bound in bounds] + ["+Inf"]
        return list(zip(names, map(float, itertools.accumulate(self.counts)), strict=True))


Labels = tuple[str, ...]


class Metrics(Collector):
    """All numbers of one daemon. Methods take plain values; names that are not known count as `other`.

    `families` are the names of the live cache's families. Durations in seconds.
    """

    def __init__(self, version: str, mode: str, families: Iterable[str] = ()) -> None:
        self._domains = {m.name: self._domain(m, tuple(families)) for m in TABLE}
        self._values: dict[str, dict[Labels, float]] = {}
        self._bins: dict[str, dict[Labels, _Bins]] = {}
        for metric in TABLE:
            self._give_birth(metric)
        self._values["build_info"][(version, mode)] = 1
        for source in SOURCES:
            self._set("source_missing", 1, source)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

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
        else:
            self._values[metric.name] = dict.fromkeys(series, 0.0)

    # -- what the supervisor tells
    # -------------------------------------------------------------------------------

    def gate(self, ready: bool, flagged: bool) -> None:
        """Note whether traffic may come, and whether by policy only."""
        self._set("ready", float(ready))
        self._set("flagged", float(flagged))

    def notices(self, degraded: int, settings_problems: int) -> None:
        """Note how many things are degraded and how many settings could not be used."""
        self._set("degraded", degraded)
        self._set("settings_problems", settings_problems)

    def observe_phase(self, phase: str, seconds_of_previous: float | None, at: float) -> None:
        """Note a change of phase: the new one, how long the one that ended took, and when (since the
        epoch).
        """
        previous = [labels for labels, value in self._values["phase"].items() if value]
        if previous and seconds_of_previous is not None and previous[0] in self._bins["phase_duration_seconds"]:
            self._observe("phase_duration_seconds", seconds_of_previous, *previous[0])
        self._one_of("phase", phase)
        self._set("phase_start_timestamp_seconds", at)

    def observe_time_to_ready(self, seconds: float, restore: str) -> None:
        """Note how long the way to ready took, and what restore gave (`adopted` for a proven engine)."""
        self._observe("time_to_ready_seconds", seconds, restore)

    def observe_restore(self, result: Mapping[str, Any]) -> None:
        """Note how a restore ended: `outcome`, `seconds`, `bytes`, `files`, `rejected` per reason."""
        self._add("restore_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("restore_seconds", _number(result.get("seconds")) or 0.0)
        self._add("restore_waited_seconds_total", _number(result.get("waited_s")))
        self._add("restore_bytes_total", _number(result.get("bytes")))
        self._add("restore_files_total", _number(result.get("files")))
        for reason, files in _mapping(result.get("rejected")).items():
            self._add("restore_files_rejected_total", _number(files), str(reason))

    def effectiveness(self, ratios: Mapping[str, float]) -> None:
        """Note per family which share of the kernels needed came from the store and was used, 0 to 1."""
        known = self._domains["kernels_compiled_total"]["family"] or ()
        self._values["restore_effectiveness_ratio"] = {
            (name if name in known else OTHER,): ratio for name, ratio in ratios.items()
        }

    def observe_publish(self, result: Mapping[str, Any]) -> None:
        """Note how a publish ended: `outcome`, `seconds`, `bytes` (packed), `new_files`."""
        self._add("publish_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("publish_seconds", _number(result.get("seconds")) or 0.0)
        self._add("publish_bytes_total", _number(result.get("bytes")))
        self._add("publish_files_total", _number(result.get("new_files")))

    def count_kernels(self, when: str, family: str, kernels: int) -> None:
        """Count kernels that were compiled `before_ready` or `after_ready`."""
        self._add("kernels_compiled_total", kernels, when, family)

    def count_requests(self, outcome: str, requests: int = 1) -> None:
        """Count warm-up requests that ended `ok`, `unsupported` or `failed`."""
        self._add("warmup_requests_total", requests, outcome)

    def observe_warmup(self, result: Mapping[str, Any]) -> None:
        """Note how a warm-up ended: `outcome`, `seconds`, `rounds`, `steps`, and `residual_risk` (0..1)
        if known.
        """
        self._add("warmup_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("warmup_seconds", _number(result.get("seconds")) or 0.0)
        self._add("warmup_rounds_total", _number(result.get("rounds")))
        self._optional("warmup_residual_risk_ratio", _number(result.get("residual_risk")))
        self._values["warmup_step_ttft_seconds"].clear()
        for step in list(result.get("steps") or ())[:STEPS_SHOWN]:
            for request in ("first", "best", "last"):
                seconds = _number(step.get(f"ttft_{request}_s"))
                if seconds is not None:
                    self._values["warmup_step_ttft_seconds"][(str(step.get("name", OTHER)), request)] = seconds

    def observe_verify(self, outcome: str) -> None:
        """Note how a check of the output ended."""
        self._add("verify_total", 1, outcome)

    def engine_state(self, state: str) -> None:
        """Note how the engine looks: one of ENGINE_STATES."""
        self._set("engine_up", float(state in ("up", "asleep", "stalled")))
        self._one_of("engine_state", state)

    def engine_stats(self, stats: Mapping[str, Any] | None) -> None:
        """Take one reading of the engine's metrics; None or an absent field takes the series out of the
        scrape.
        """
        self._source("engine_metrics", stats is not None)
        found = stats or {}
        asleep = found.get("asleep")
        self._optional("engine_asleep", None if asleep is None else float(bool(asleep)))
        for name, metric in ENGINE_SERIES.items():
            value = _number(found.get(name))
            self._source("engine_" + name, value is not None)
            self._optional(metric, value)

    def count_restart(self, cause: str) -> None:
        """Count an engine process that ended or was replaced, by one of RESTART_CAUSES."""
        self._add("engine_restarts_total", 1, cause)

    def live_cache(self, families: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Take `bytes` and `files` per family of the live cache; None when it can't be read."""
        self._source("live_cache", families is not None)
        known = self._domains["kernels_compiled_total"]["family"] or ()
        for name in ("bytes", "files"):
            sums: dict[Labels, float] = {}
            for family, sizes in (families or {}).items():
                labels = (family if family in known else OTHER,)
                sums[labels] = sums.get(labels, 0.0) + (_number(sizes.get(name)) or 0.0)
            self._values[f"live_cache_{name}"] = sums

    def unmanaged(self, grown: Iterable[Mapping[str, Any]]) -> None:
        """Take `path` and `bytes` of each directory in no family that grew (`caches.unmanaged`); ten at most."""
        self._values["unmanaged_cache_bytes"] = {
            (str(one.get("path")),): _number(one.get("bytes")) or 0.0 for one in list(grown)[:UNMANAGED_SHOWN]
        }

    def gpu(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take what `GpuSnapshot.to_json` gives; None when NVML is away. Fields that are None are left
        out.
        """
        gpus = list(_mapping(snapshot).get("gpus") or ())[:GPUS_SHOWN]
        self._source("gpu", bool(gpus))
        self._set("gpu_up", float(bool(gpus)))
        names = [name for name in BY_NAME if name.startswith("gpu_") and BY_NAME[name].optional]
        for name in names:
            self._values[name].clear()
        for gpu in gpus:
            labels = (str(gpu.get("index")), str(gpu.get("uuid") or ""))
            words = (
                str(gpu.get("name") or ""),
                str(gpu.get("sm") or ""),
                str(_mapping(snapshot).get("driver") or ""),
            )
            self._values["gpu_info"][labels + words] = 1
            for name in names:
                value = _number(gpu.get(name.removeprefix("gpu_")))
                if value is not None:
                    self._values[name][labels] = value

    # -- what a scrape reads
    # -------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Give all metrics in Prometheus' text format 0.0.4 (CONTENT_TYPE)."""
        return generate_latest(self._registry)

    def value(self, name: str, **labels: str) -> float | None:
        """Give the value of one counter or gauge (name without prefix), or None when there is no such
        series.
        """
        return self._values[name].get(tuple(labels[label] for label in BY_NAME[name].labels))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Give prometheus_client's form of every metric that has a series."""
        for metric in TABLE:
            name, labels = PREFIX + metric.name, tuple(metric.labels)
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(name, metric.help, labels=labels)
                for key, bins in self._bins[metric.name].items():
                    histogram.add_metric(key, bins.cumulative(SECONDS), bins.sum)
                yield histogram
            elif self._values[metric.name]:
                family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                    name, metric.help, labels=labels
                )
                for key, value in self._values[metric.name].items():
                    family.add_metric(key, value)
                yield family

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

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values[name][self._known(name, labels)] = float(value)

    def _optional(self, name: str, value: float | None) -> None:
        self._values[name] = {} if value is None else {(): value}

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self._bins[name][self._known(name, labels)].observe(value, SECONDS)

    def _one_of(self, name: str, chosen: str) -> None:
        for labels in self._values[name]:
            self._values[name][labels] = float(labels == (chosen,))

    def _source(self, name: str, present: bool) -> None:
        self._set("source_missing", float(not present), name)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
