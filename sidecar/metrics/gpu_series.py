"""Turns one reading of the GPUs into series; what a reading doesn't have has no series.

Which metrics there are is declared in `gpu_table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.metrics.gpu_table import GPU_FIELDS, GPUS_SHOWN, GpuField
from sidecar.metrics.numbers import number

Labels = tuple[str, ...]
Series = dict[str, dict[Labels, float]]

#: Every metric that comes and goes with a reading.
NAMES = (
    "gpu_expected",
    "gpu_reading_seconds",
    "gpu_info",
    "gpu_lost",
    *(each.metric.name for each in GPU_FIELDS),
)


def gpu_series(snapshot: Mapping[str, Any] | None) -> Series:
    """Give all series of a reading as `GpuSnapshot.to_json` shows it; of None, all metrics without any."""
    found: Series = {name: {} for name in NAMES}
    if snapshot is None:
        return found
    for name, key in (("gpu_expected", "expected"), ("gpu_reading_seconds", "seconds")):
        value = number(snapshot.get(key))
        if value is not None:
            found[name][()] = value
    for gpu in list(snapshot.get("gpus") or ())[:GPUS_SHOWN]:
        labels = (_word(gpu.get("index")), _word(gpu.get("uuid")))
        words = [_word(each) for each in (gpu.get("name"), gpu.get("sm"), gpu.get("mig"))]
        words += [_word(snapshot.get("driver")), _word(snapshot.get("cuda"))]
        found["gpu_info"][(*labels, *words)] = 1.0
        found["gpu_lost"][labels] = float(bool(gpu.get("lost")))
        for each in GPU_FIELDS:
            found[each.metric.name].update(
                {(*labels, *more): value for more, value in _values(each, gpu)},
            )
    return found


def _values(each: GpuField, gpu: Mapping[str, Any]) -> Iterator[tuple[Labels, float]]:
    """Give the values of one field, with what its own label says of each."""
    given = gpu.get(each.field)
    if each.label == "memory":
        given = {str(gpu.get("memory")): given}
    pairs = given.items() if isinstance(given, Mapping) else [("", given)]
    for key, raw in pairs:
        value = number(raw)
        if value is not None and (not each.label or key in (each.metric.labels[each.label] or ())):
            yield ((key,) if each.label else ()), value


def _word(value: object) -> str:
    return "" if value is None else str(value)
