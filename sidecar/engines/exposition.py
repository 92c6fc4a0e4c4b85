"""Read an engine's Prometheus text: the series of interest, merged over engines and processes.

What engines call them is declared in `series.py`. No HTTP and no judgement lives here; the text format itself is
parsed by prometheus_client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sidecar.engines.protocol import EngineStats, Histogram
from sidecar.engines.series import FRONTS, HISTOGRAMS, NUMBERS, ROUTER_MARK, SAME_WORK, Merge, names
from sidecar.engines.series import SLEEP as SLEEP

CACHE_CONFIG = "vllm:cache_config_info"
PROCESS_START = "process_start_time_seconds"
#: One series for each position of a draft, so their number is how many tokens are drafted at once
#: (vllm/v1/spec_decode/metrics.py, 0.32).
DRAFTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_OWN = frozenset({SLEEP, CACHE_CONFIG, PROCESS_START, DRAFTED})
#: Workers of Dynamo show its series beside those of the engine inside them, which say more.
_AROUND = "dynamo"


@dataclass(frozen=True, slots=True)
class Exposition:
    """The samples of interest by name, and which engine the names look like (None: no engine's).

    `front` names what stands in front of engines and shows such a page; empty where none is known by it. `around`: the
    page is that of a worker of Dynamo, with the series of the engine inside it.
    """

    samples: Mapping[str, tuple[Sample, ...]]
    flavour: str | None
    lines: int
    unreadable: int
    front: str = ""
    around: bool = False

    def number(self, names: Iterable[str], merge: Merge) -> float | None:
        """Merge all series of the first name that is there; None when none of the names is."""
        for name in names:
            samples = [each for each in self.latest(name) if not math.isnan(each.value)]
            if samples:
                values = _one_per_engine(samples) if merge == "load" else [each.value for each in samples]
                return float(max(values) if merge == "max" else sum(values))
        return None

    def histogram(self, names: Iterable[str]) -> Histogram | None:
        """Merge all series of the first histogram that is there; None when none of them is.

        Bounds that not all series have are left out, since counts up to them can't be added up.
        """
        for name in names:
            series: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
            for sample in self.latest(name + "_bucket"):
                bound = _bound(sample)
                if bound is not None and math.isfinite(sample.value):
                    others = frozenset((label, value) for label, value in sample.labels.items() if label != "le")
                    series.setdefault(others, {})[bound] = sample.value
            if series:
                shared = sorted(set.intersection(*map(set, series.values())))
                buckets = {bound: sum(each[bound] for each in series.values()) for bound in shared}
                return Histogram(buckets, self.number((name + "_sum",), "sum") or 0.0)
        return None

    def labels(self, name: str) -> Mapping[str, str]:
        """Give the labels of the first series of a name; empty when it isn't there."""
        found = self.samples.get(name, ())
        return found[0].labels if found else {}

    def smallest(self, name: str, label: str) -> str | None:
        """Give the least whole number that a label has in the series of a name, as it stands there."""
        values = [sample.labels.get(label, "") for sample in self.samples.get(name, ())]
        return min((value for value in values if value.isascii() and value.isdigit()), key=int, default=None)

    def distinct(self, name: str, label: str) -> int | None:
        """Count the values that a label has in the series of a name; None when there are no such series."""
        values = {sample.labels[label] for sample in self.samples.get(name, ()) if label in sample.labels}
        return len(values) or None

    def latest(self, name: str) -> tuple[Sample, ...]:
        """Keep one sample per label set, the last: a page that repeats a series must not count it twice."""
        found = (each for each in self.samples.get(name, ()) if _counts(each))
        return tuple({frozenset(each.labels.items()): each for each in found}.values())


def read(text: str) -> Exposition:
    """Pick the wanted samples out of a page of metrics; lines that can't be parsed are counted, not fatal.

    Only wanted lines reach the parser: a page has hundreds of buckets and is read every few seconds.
    """
    wanted: list[str] = []
    flavour: str | None = None
    known = names().wanted | _OWN
    lines = 0
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        lines += 1
        if flavour is None or flavour == _AROUND:
            flavour = _flavour(line) or flavour
        name = line.split("{", 1)[0].split(None, 1)[0] if not line[0].isspace() else ""
        if name in known:
            wanted.append(line)
    samples, unreadable = _parse(wanted)
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    front = _front(text) if flavour in (None, _AROUND) or ROUTER_MARK in text else ""
    return Exposition(
        {name: tuple(each) for name, each in found.items()}, flavour, lines, unreadable, front, _is_around(text)
    )


def _parse(lines: Sequence[str]) -> tuple[list[Sample], int]:
    """Parse all lines at once, which costs a third; where one of them is broken, each by itself."""
    try:
        return list(_samples("\n".join(lines) + "\n")), 0
    except ValueError:
        pass
    found: list[Sample] = []
    unreadable = 0
    for line in lines:
        try:
            found += _samples(line + "\n")
        except ValueError:
            unreadable += 1
    return found, unreadable


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _counts(sample: Sample) -> bool:
    """Leave out ranks that repeat what rank 0 shows."""
    return all(sample.labels.get(label, "0") == "0" for label in SAME_WORK)


def _one_per_engine(samples: Iterable[Sample]) -> list[float]:
    """Give one value for each label set without `pid`: the largest, since each process shows the same load or none."""
    found: dict[frozenset[tuple[str, str]], float] = {}
    for sample in samples:
        key = frozenset((label, value) for label, value in sample.labels.items() if label != "pid")
        found[key] = max(sample.value, found.get(key, sample.value))
    return list(found.values())


def _bound(sample: Sample) -> float | None:
    try:
        bound = float(sample.labels["le"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(bound) else bound


def _flavour(line: str) -> str | None:
    return next((engine for engine, prefixes in names().prefixes.items() if line.startswith(prefixes)), None)


def _is_around(text: str) -> bool:
    return any(text.startswith(prefix) or f"\n{prefix}" in text for prefix in names().prefixes.get(_AROUND, ()))


def _front(text: str) -> str:
    """Name what stands in front of engines by its own series."""
    if ROUTER_MARK in text:
        return "the router of vLLM's production stack"
    beginnings = tuple(FRONTS)
    line = next((line for line in text.splitlines() if line.startswith(beginnings)), "")
    return next((title for beginning, title in FRONTS.items() if line.startswith(beginning)), "")


def identity(page: Exposition) -> str | None:
    """Give the start times of the processes behind the page as text, as the engine's identity.

    None with several API server processes: vLLM then leaves the process metrics out.
    """
    starts = sorted({sample.value for sample in page.samples.get(PROCESS_START, ())})
    return "+".join(repr(float(start)) for start in starts) or None


def asleep(page: Exposition) -> bool | None:
    """Say whether any engine on the page sleeps; None when the page doesn't say.

    vllm:engine_sleep_state has one series per state and engine, 1 for the state that holds (vLLM >= 0.11.2). None holds when
    scheduling is paused (/sleep?level=0) or the KV cache was released alone: no state but `awake` takes requests.
    """
    samples = page.samples.get(SLEEP, ())
    if not samples:
        return None
    return any((each.value > 0) != (each.labels.get("sleep_state") == "awake") for each in samples)


def ranks(page: Exposition) -> int | None:
    """Count the data-parallel ranks behind the page: engines by the label `engine` (vLLM >= 0.8)."""
    return page.distinct(CACHE_CONFIG, "engine") or page.distinct("vllm:num_requests_running", "engine")


def progress_by_rank(page: Exposition) -> dict[str, float]:
    """Give for each rank by its number a sum that grows whenever it works; empty where metrics don't tell ranks."""
    return _by_rank(page, _progress(page))


def load_by_rank(page: Exposition) -> dict[str, tuple[float, float]]:
    """Give the running requests and the KV cache usage of each rank by its number; empty where metrics don't tell ranks."""
    running, used = (_by_rank(page, names().numbers[field]) for field in ("running", "kv_cache_usage"))
    return {rank: (count, used.get(rank, 0.0)) for rank, count in running.items()}


def _by_rank(page: Exposition, series: Iterable[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in series:
        for sample in page.samples.get(name, ()):
            rank = sample.labels.get("engine")
            if rank is not None and not math.isnan(sample.value):
                found[rank] = found.get(rank, 0.0) + sample.value
    return found


def _progress(page: Exposition) -> tuple[str, ...]:
    """Give the series that grow when the engine of this page works.

    Requests that ended are not among them, because those that clients give up on a frozen engine end too.
    """
    return names().progress.get(page.flavour or "", ())


def lengths(page: Exposition, field: str) -> Mapping[float, float]:
    """Give for each upper bound of a histogram's buckets the count up to it, of all engines together, ascending.

    `field` is `prompt_lengths` or `output_lengths`; bounds can be overridden, so they are read.
    """
    found = page.histogram(names().lengths[field])
    return found.buckets if found else {}


def statistics(page: Exposition, engine: str = "vllm") -> EngineStats:
    """Make one reading out of a page of the engine of this name."""
    known = names()
    numbers: dict[str, Any] = {field: page.number(known.numbers[field], merge) for field, merge in NUMBERS.items()}
    histograms: dict[str, Any] = {field: page.histogram(known.histograms[field]) for field in HISTOGRAMS}
    moved = [value for name in _progress(page) if (value := page.number((name,), "sum")) is not None]
    seen = page.flavour is not None or any(value is not None for value in histograms.values())
    return EngineStats(
        identity=identity(page),
        asleep=asleep(page),
        progress=float(sum(moved)) if moved else None,
        progress_by_rank=progress_by_rank(page),
        load_by_rank=load_by_rank(page),
        prompt_lengths=lengths(page, "prompt_lengths"),
        output_lengths=lengths(page, "output_lengths"),
        missing="" if seen else _missing(page, engine),
        **numbers,
        **histograms,
    )


def _missing(page: Exposition, engine: str) -> str:
    advice = names().absent[engine]
    if page.lines == 0:
        return f"The engine's metrics are empty; {advice} to see its load."
    shown = " or ".join(prefix for prefix in names().prefixes[engine])
    return f"The engine's metrics have no series that start with {shown}, so load and stalls can't be seen; {advice}."
