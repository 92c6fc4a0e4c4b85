"""What a run of `bench` is held against: a file of targets, and which of them a run keeps.

Sends nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import BeforeValidator, Field

from sidecar.bench.durations import duration, three_digits
from sidecar.bench.report import Report
from sidecar.errors import ProfileError, UsageError
from sidecar.warmup import marked_yaml
from sidecar.warmup.problems import problems_of
from sidecar.warmup.steps import Strict, known_version

VERSION = 1
#: Targets by their names in the file, with what a run calls the time and its figures.
TIMES = {
    "ttft_ms": ("TTFT", "ttft_s"),
    "tpot_ms": ("TPOT", "tpot_s"),
    "request_latency_ms": ("total", "total_s"),
}
_Milliseconds = Annotated[float | None, Field(gt=0, le=86_400_000)]


class Predicted(Strict):
    """What a planner says will be reached, to be shown; milliseconds, and output tokens per second."""

    ttft_ms: _Milliseconds = None
    tpot_ms: _Milliseconds = None
    request_latency_ms: _Milliseconds = None
    output_tokens_per_s: float | None = Field(None, gt=0)


class Targets(Strict):
    """A load, and what its requests may take: lengths in tokens, times in milliseconds by mean or percentile."""

    version: Annotated[Literal[1], BeforeValidator(known_version(VERSION))] = 1
    prompt_tokens: int = Field(ge=1, le=10_000_000)
    output_tokens: int = Field(ge=1, le=10_000_000)
    concurrency: int = Field(ge=1, le=4096)
    statistic: Literal["mean", "p50", "p95", "p99"] = "mean"
    ttft_ms: _Milliseconds = None
    tpot_ms: _Milliseconds = None
    request_latency_ms: _Milliseconds = None
    predicted: Predicted = Predicted()

    @pydantic.model_validator(mode="after")
    def _something_to_keep(self) -> Targets:
        if all(getattr(self, name) is None for name in TIMES):
            raise ValueError(f"give at least one of {', '.join(TIMES)}")
        return self


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its target and what was predicted, as text. `kept`: None where there is no target."""

    name: str
    measured: str
    target: str
    predicted: str
    kept: bool | None


def read_targets(path: Path) -> Targets:
    """Read a file of targets. Raises UsageError with the place of each fault."""
    try:
        found = marked_yaml.read(path, noun="file of targets")
        if not isinstance(found.value, dict):
            raise UsageError(
                f"{found.place(())}: targets are a mapping with `prompt_tokens`, `output_tokens` and so on."
            )
        try:
            return Targets.model_validate(found.value)
        except pydantic.ValidationError as error:
            raise UsageError("\n".join(problems_of(found, error))) from error
    except ProfileError as error:
        raise UsageError(str(error)) from error


def compared(report: Report, targets: Targets) -> list[Row]:
    """Hold a run against its targets. A time that no request showed keeps no target."""
    rows = []
    for field, (name, figure) in TIMES.items():
        target, predicted = getattr(targets, field), getattr(targets.predicted, field)
        if target is None and predicted is None:
            continue
        spread = getattr(report.figures, figure)
        value = None if spread is None else getattr(spread, targets.statistic)
        kept = None if target is None else value is not None and value * 1000 <= target
        rows.append(Row(f"{name} {targets.statistic}", _text(value), _of_ms(target), _of_ms(predicted), kept))
    if (rate := targets.predicted.output_tokens_per_s) is not None:
        made = report.rates.output_tokens_per_s
        rows.append(Row("output", f"{three_digits(made)} tok/s", "", f"{three_digits(rate)} tok/s", None))
    return rows


def verdict(rows: Sequence[Row]) -> str:
    """Say in a sentence which targets are kept."""
    missed = [row.name for row in rows if row.kept is False]
    if missed:
        return f"Missed: {', '.join(missed)}."
    return "All targets are kept."


def _of_ms(value: float | None) -> str:
    return "" if value is None else duration(value / 1000)


def _text(seconds: float | None) -> str:
    return "not measured" if seconds is None else duration(seconds)
