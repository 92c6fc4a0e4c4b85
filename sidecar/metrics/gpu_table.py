"""The metrics of the engine's GPUs; each field that a GPU does not show is left out of the scrape on its own.

How the fields are read is the business of `gpu`; no number lives here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.metrics.declaration import OTHER, Metric

#: GPUs and MIG instances that get series; a host has at most 16 GPUs.
GPUS_SHOWN = 16
#: Why readings failed, as `gpu/worker.py` and `gpu/reader.py` name it.
GPU_TROUBLES = ("no_library", "no_driver", "no_gpu", "no_permission", "mismatch", "lost", "unknown", "no_answer", OTHER)

_GPU: Mapping[str, None] = {"gpu": None, "uuid": None}
_MOST: Mapping[str, int] = {"gpu": GPUS_SHOWN}
_WAYS = ("sent", "received")


@dataclass(frozen=True)
class GpuField:
    """One field of a reading and the metric that shows it; `label` names the keys of a field that is a mapping."""

    field: str
    metric: Metric
    label: str = ""


def _gauge(field: str, help_: str, unit: str = "", **labels: tuple[str, ...]) -> GpuField:
    metric = Metric(f"gpu_{field}", "gauge", help_, unit, {**_GPU, **labels}, optional=True, most=_MOST)
    return GpuField(field, metric, next(iter(labels), ""))


def _counter(field: str, help_: str, unit: str = "", **labels: tuple[str, ...]) -> GpuField:
    metric = Metric(f"gpu_{field}_total", "counter", help_, unit, {**_GPU, **labels}, optional=True, most=_MOST)
    return GpuField(field, metric, next(iter(labels), ""))


#: Memory has a label of its own, so that a machine's memory is never added up with memory of GPUs.
_MEMORY = ("device", "unified")
#: Reasons as `gpu/fields.py` reads them from nvmlClocksEventReasons.
THROTTLE_REASONS = (
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake",
    "display_clock_setting",
)
_ECC = ("corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate")

GPU_FIELDS: tuple[GpuField, ...] = (
    _gauge("utilization_ratio", "Share of time in which a kernel ran, 0 to 1.", "ratio"),
    _gauge("memory_busy_ratio", "Share of time in which GPU memory was read or written, 0 to 1.", "ratio"),
    _gauge(
        "memory_used_bytes",
        'GPU memory in use, without what the driver reserves; memory="unified": the machine\'s, which this GPU shares.',
        "bytes",
        memory=_MEMORY,
    ),
    _gauge(
        "memory_size_bytes",
        'GPU memory there is; memory="unified": the machine\'s, which this GPU shares.',
        "bytes",
        memory=_MEMORY,
    ),
    _gauge("memory_reserved_bytes", "GPU memory that the driver keeps for itself.", "bytes"),
    _gauge("power_watts", "Power the GPU draws.", "watts"),
    _gauge("power_limit_watts", "Power the GPU may draw.", "watts"),
    _counter("energy_joules", "Energy used since the driver was loaded.", "joules"),
    _gauge("temperature_celsius", "Temperature of the GPU's chip.", "celsius"),
    _gauge("memory_temperature_celsius", "Temperature of the GPU's memory.", "celsius"),
    _gauge("clock_hertz", "Clocks at this moment.", "hertz", clock=("sm", "memory")),
    _gauge("clock_max_hertz", "Clocks the GPU can reach.", "hertz", clock=("sm", "memory")),
    _gauge("throttled", "1 while this reason holds the clocks down.", "", reason=THROTTLE_REASONS),
    _counter(
        "ecc_errors",
        "ECC errors of memory: volatile since the driver was loaded, aggregate in the GPU's life.",
        "",
        error=_ECC,
    ),
    _gauge("remapped_rows", "Rows of memory replaced for good.", "", error=("corrected", "uncorrected")),
    _gauge("row_remap_pending", "1 while rows of memory wait for a reset of the GPU to be replaced."),
    _gauge("row_remap_failed", "1 when a row of memory could not be replaced: the GPU should be exchanged."),
    _gauge("pcie_link_generation", "PCIe generation the GPU is connected with at this moment."),
    _gauge("pcie_link_width", "PCIe lanes in use."),
    _counter("pcie_replays", "Packets sent again over PCIe since the driver was loaded."),
    _counter("pcie_bytes", "Bytes over PCIe.", "bytes", direction=_WAYS),
    _gauge("nvlink_links", "NVLink links by state.", "", state=("active", "inactive")),
    _counter("nvlink_bytes", "Data bytes over all NVLink links.", "bytes", direction=_WAYS),
    _counter("nvlink_errors", "Errors of all NVLink links.", "", error=("crc", "replay", "recovery")),
)

GPU_TABLE: tuple[Metric, ...] = (
    Metric("gpu_up", "gauge", "1 while NVML answers."),
    Metric(
        "gpu_expected",
        "gauge",
        "How many GPUs and MIG instances the engine uses; absent while nobody says which they are.",
        optional=True,
    ),
    Metric(
        "gpu_reading_troubles_total", "counter", "GPU readings that failed, by reason.", "", {"reason": GPU_TROUBLES}
    ),
    Metric("gpu_reading_seconds", "gauge", "How long the last GPU reading took.", "seconds", optional=True),
    Metric(
        "gpu_info",
        "gauge",
        "Always 1; name, SM version, MIG profile, driver and the newest CUDA it supports are in the labels.",
        "",
        {**_GPU, "name": None, "sm": None, "mig": None, "driver": None, "cuda": None},
        optional=True,
        most=_MOST,
    ),
    Metric(
        "gpu_lost",
        "gauge",
        "1 while the driver can't reach this GPU, which the engine uses; all other series of it are left out.",
        "",
        _GPU,
        optional=True,
        most=_MOST,
    ),
    *(each.metric for each in GPU_FIELDS),
)
