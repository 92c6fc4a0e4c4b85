"""Read an engine's Prometheus text: which series means what, across vLLM versions and processes.

No HTTP and no judgement lives here; the text format itself is parsed by prometheus_client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sidecar.engines.protocol import EngineStats

#: How the series of several data-parallel engines or processes become one number.
Merge = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of EngineStats: the names it had, newest first, and how several series are merged."""

    field: str
    names: tuple[str, ...]
    merge: Merge


#: Names by version: vLLM documentation "Production metrics" and vllm/v1/metrics/loggers.py, 0.6 to 0.33.
#: `gpu_cache_usage_perc` until 0.11, `kv_cache_usage_perc` since 0.9.2, and so for prefix caching.
#: Usage is the fullest of several engines, since that one preempts first; everything else adds up.
READINGS = (
    Reading("kv_cache_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), "max"),
    Reading("running", ("vllm:num_requests_running",), "sum"),
    Reading("waiting", ("vllm:num_requests_waiting",), "sum"),
    Reading("prompt_tokens_total", ("vllm:prompt_tokens_total",), "sum"),
    Reading("generation_tokens_total", ("vllm:generation_tokens_total",), "sum"),
    Reading("preemptions_total", ("vllm:num_preemptions_total",), "sum"),
    Reading("prefix_cache_hits_total", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), "sum"),
    Reading(
        "prefix_cache_queries_total",
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "sum",
    ),
)

#: Grow when the engine works: tokens read, tokens written, engine steps. Requests that ended are not among
#: them, because those that clients give up on a frozen engine end too.
PROGRESS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
)
SLEEP = "vllm:engine_sleep_state"
CACHE_CONFIG = "vllm:cache_config_info"
PROCESS_START = "process_start_time_seconds"
#: One series for each position of a draft, so their number is how many tokens are drafted at once
#: (vllm/v1/spec_decode/metrics.py, 0.32).
DRAFTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

_WANTED = frozenset(
    {SLEEP, CACHE_CONFIG, PROCESS_START, DRAFTED, *PROGRESS, *(name for each in READINGS for name in each.names)}
)
#: Prefixes of metric names by which engines are told apart; trtllm_: TensorRT-LLM's metrics/collector.py.
FLAVOURS = {"vllm": ("vllm:",), "sglang": ("sglang:", "sglang_"), "trtllm": ("trtllm_",)}


@dataclass(frozen=True, slots=True)
class Exposition:
    """The samples of interest by name, and which engine the names look like (None: no engine's)."""

    samples: Mapping[str, tuple[Sample, ...]]
    flavour: str | None
    lines: int
    unreadable: int

    def number(self, names: Iterable[str], merge: Merge) -> float | None:
        """Merge all series of the first name that is there; None when none of the names is."""
        for name in names:
            values = [sample.value for sample in self._latest(name) if not math.isnan(sample.value)]
            if values:
                return float(max(values) if merge == "max" else sum(values))
        return None

    def labels(self, name: str) -> Mapping[str, str]:
        """Give the labels of the first series of a name; empty when it isn't there."""
        found = self.samples.get(name, ())
        return found[0].labels if found else {}

    def distinct(self, name: str, label: str) -> int | None:
        """Count the values that a label has in the series of a name; None when there are no such series."""
        values = {sample.labels[label] for sample in self.samples.get(name, ()) if label in sample.labels}
        return len(values) or None

    def _latest(self, name: str) -> tuple[Sample, ...]:
        """Keep one sample per label set, the last: a page that repeats a series must not count it twice."""
        return tuple({frozenset(each.labels.items()): each for each in self.samples.get(name, ())}.values())


def read(text: str) -> Exposition:
    """Pick the wanted samples out of a page of metrics; lines that can't be parsed are counted, not fatal.

    Only wanted lines reach the parser: a page has hundreds of buckets and is read every few seconds.
    """
    found: dict[str, list[Sample]] = {}
    flavour: str | None = None
    lines = unreadable = 0
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        lines += 1
        flavour = flavour or _flavour(line)
        name = line.split("{", 1)[0].split(None, 1)[0] if not line[0].isspace() else ""
        if name not in _WANTED:
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample)
        except ValueError:
            unreadable += 1
    return Exposition({name: tuple(each) for name, each in found.items()}, flavour, lines, unreadable)


def _flavour(line: str) -> str | None:
    return next((engine for engine, prefixes in FLAVOURS.items() if line.startswith(prefixes)), None)


def identity(page: Exposition) -> str | None:
    """Give the start times of the processes behind the page as text, as the engine's identity.

    None with several API server processes: vLLM then leaves the process metrics out.
    """
    starts = sorted({sample.value for sample in page.samples.get(PROCESS_START, ())})
    return "+".join(repr(float(start)) for start in starts) or None


def asleep(page: Exposition) -> bool | None:
    """Say whether any engine on the page sleeps; None when the page doesn't say.

    vllm:engine_sleep_state has one series per state and engine, 1 for the state that holds (vLLM >= 0.11.2).
    """
    samples = page.samples.get(SLEEP, ())
    if not samples:
        return None
    return any(each.value > 0 and each.labels.get("sleep_state") != "awake" for each in samples)


def ranks(page: Exposition) -> int | None:
    """Count the data-parallel ranks behind the page: engines by the label `engine` (vLLM >= 0.8)."""
    return page.distinct(CACHE_CONFIG, "engine") or page.distinct("vllm:num_requests_running", "engine")


def progress_by_rank(page: Exposition) -> dict[str, float]:
    """Give for each rank by its number a sum that grows whenever it works; empty where metrics don't tell ranks."""
    found: dict[str, float] = {}
    for name in PROGRESS:
        for sample in page.samples.get(name, ()):
            rank = sample.labels.get("engine")
            if rank is not None and not math.isnan(sample.value):
                found[rank] = found.get(rank, 0.0) + sample.value
    return found


def statistics(page: Exposition) -> EngineStats:
    """Make one reading out of a page."""
    numbers = {reading.field: page.number(reading.names, reading.merge) for reading in READINGS}
    moved = [value for name in PROGRESS if (value := page.number((name,), "sum")) is not None]
    return EngineStats(
        identity=identity(page),
        asleep=asleep(page),
        progress=float(sum(moved)) if moved else None,
        progress_by_rank=progress_by_rank(page),
        missing="" if page.flavour == "vllm" else _missing(page),
        **numbers,
    )


def _missing(page: Exposition) -> str:
    if page.lines == 0:
        return "The engine's /metrics is empty; start the engine without --disable-log-stats to see its load."
    return (
        "The engine's /metrics has no series that start with vllm:, so load and stalls can't be seen; "
        "start the engine without --disable-log-stats."
    )
