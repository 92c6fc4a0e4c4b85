"""Two runs beside each other: ratios, and which of them are larger than the noise within the runs.

Reads no files and prints nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.bench.durations import duration, three_digits
from sidecar.bench.noise import Interval, ratio_interval
from sidecar.bench.percentiles import SHARES, percentile
from sidecar.bench.report import Report

Verdict = Literal["faster", "slower", "same", "unknown"]
#: A run is cut into so many stretches of time, whose rates tell how even its throughput was.
STRETCHES = 20
#: So many waves (requests divided by concurrency) a run needs before its percentile says anything: of fewer, a third of
#: all p95 of equal runs would be called different (simulated).
LEAST_WAVES = {"p50": 10, "p95": 20, "p99": 50}
#: Resampling is by chance; the same two files shall give the same answer.
SEED = 20_240_501
#: Settings that may differ between runs that are compared, and how they are called.
_AMOUNTS = {"requests": "requests", "duration_s": "seconds"}
_TIMES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "total": "total_s"}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of two runs, written with its unit. `ratio`: second / first; `interval`: where the true one lies."""

    name: str
    first: str
    second: str
    ratio: float
    interval: Interval | None
    verdict: Verdict


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """List in words what was sent differently: then a difference of figures says nothing of the engines.

    Takes the settings of two runs. How much was sent, and which lengths a seed drew, makes no other load.
    """
    names = sorted({*first, *second} - {*_AMOUNTS, "seed"})
    return [
        f"{name.replace('_', ' ')} {_text(first.get(name))} and {_text(second.get(name))}"
        for name in names
        if first.get(name) != second.get(name)
    ]


def differing_circumstances(first: Report, second: Report) -> list[str]:
    """List in words what else differs and may explain the figures: engine, model, seed, amount."""
    found = [
        f"{name.replace('_', ' ')} {first.about.get(name, '')} and {second.about.get(name, '')}"
        for name in ("model", "engine", "url")
        if first.about.get(name) != second.about.get(name)
    ]
    before, after = first.settings, second.settings
    if _amount(before) != _amount(after):
        found.append(f"{_amount(before)} and {_amount(after)}")
    if before.get("seed") != after.get("seed"):
        found.append(f"seed {_text(before.get('seed'))} and {_text(after.get('seed'))}")
    return found


def compare(first: Report, second: Report) -> list[Row]:
    """Compare percentiles of times, and throughput; figures that one run lacks are left out."""
    rng = random.Random(SEED)
    block = max(int(first.settings.get("concurrency", 1)), int(second.settings.get("concurrency", 1)))
    rows = []
    for name, column in _TIMES.items():
        one, other = _column(first, column), _column(second, column)
        if one and other:
            rows += [_time_row(name, short, one, other, block, rng) for short in SHARES]
    one, other = _stretches(first), _stretches(second)
    before, after = first.rates.output_tokens_per_s, second.rates.output_tokens_per_s
    if before > 0 and after > 0:
        interval = ratio_interval(one, other, _mean, 1, rng)
        texts = (f"{three_digits(before)} tok/s", f"{three_digits(after)} tok/s")
        rows.append(Row("output", *texts, after / before, interval, _verdict(interval, more_is_better=True)))
    return rows


def summary(rows: Sequence[Row]) -> str:
    """Say in a sentence what of it all is more than noise."""
    if rows and all(row.verdict == "unknown" for row in rows):
        return "There are too few requests to tell differences from noise; send at least 10 per stream in each run."
    parts, few = [], [row.name for row in rows if row.verdict == "unknown"]
    rest = f" Too few requests to tell: {', '.join(few)}." if few else ""
    for word in ("faster", "slower"):
        names = [row.name for row in rows if row.verdict == word]
        if names:
            parts.append(f"{word} beyond noise: {', '.join(names)}")
    if not parts:
        return f"No difference is larger than the noise within the runs.{rest}"
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}. What is called noise is not proven equal.{rest}"


def _time_row(name: str, short: str, one: list[float], other: list[float], block: int, rng: random.Random) -> Row:
    statistic = _percentile_of(SHARES[short])
    before, after = statistic(one), statistic(other)
    enough = min(len(one), len(other)) >= LEAST_WAVES[short] * block
    interval = ratio_interval(one, other, statistic, block, rng) if enough else None
    ratio = after / before if before > 0 else float("inf")
    verdict = _verdict(interval, more_is_better=False)
    return Row(f"{name} {short}", duration(before), duration(after), ratio, interval, verdict)


def _verdict(interval: Interval | None, *, more_is_better: bool) -> Verdict:
    if interval is None:
        return "unknown"
    if not interval.excludes_one:
        return "same"
    return "faster" if (interval.low > 1) == more_is_better else "slower"


def _percentile_of(share: float) -> Callable[[list[float]], float]:
    return lambda values: percentile(sorted(values), share)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _column(report: Report, name: str) -> list[float]:
    return [each for each in getattr(report.samples, name) if each is not None]


def _stretches(report: Report) -> list[float]:
    """Give output tokens per stretch of time, each request's spread evenly over its time from first text to end."""
    columns = report.samples
    ends = [start + total for start, total in zip(columns.started_s, columns.total_s, strict=True)]
    width = max(ends, default=0.0) / STRETCHES
    if width <= 0:
        return []
    made = [0.0] * STRETCHES
    for start, ttft, end, tokens in zip(columns.started_s, columns.ttft_s, ends, columns.tokens, strict=True):
        begin = min(start + (ttft or 0.0), end)
        first, last = (min(STRETCHES - 1, int(at / width)) for at in (begin, end))
        for at in range(first, last + 1):
            overlap = min(end, (at + 1) * width) - max(begin, at * width)
            made[at] += tokens * (overlap / (end - begin) if end > begin else 1.0)
    return [each / width for each in made]


def _amount(settings: Mapping[str, Any]) -> str:
    """Say how much was sent: so many requests, or for so many seconds."""
    given = [f"{_text(settings[name])} {words}" for name, words in _AMOUNTS.items() if settings.get(name) is not None]
    return ", ".join(given) or "an unknown amount"


def _text(value: object) -> str:
    if value is None:
        return "not given"
    return value if isinstance(value, str) else json.dumps(value)
