"""Readings with every field filled: of eight GPUs, of an engine, of its processes.

Nothing is asserted here.
"""

from __future__ import annotations

from typing import Any

from sidecar.gpu.fields import CLOCKS, ECC_ERRORS, THROTTLE_REASONS
from sidecar.gpu.reading import Gpu, GpuSnapshot, Seen

#: vLLM 0.33's bounds of time to first token (vllm/v1/metrics/buckets.py), in seconds.
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


def full_gpu(index: int) -> Gpu:
    """Make a GPU that shows everything."""
    return Gpu(
        index=index,
        uuid=f"GPU-{index:08d}-aaaa-bbbb-cccc-0123456789ab",
        name="NVIDIA H200",
        sm="sm90",
        memory="device",
        utilization_ratio=0.5,
        memory_busy_ratio=0.25,
        memory_used_bytes=100 << 30,
        memory_size_bytes=141 << 30,
        memory_reserved_bytes=600_000_000,
        power_watts=400.0 + index,
        power_limit_watts=700.0,
        energy_joules=5e6,
        temperature_celsius=54.0,
        memory_temperature_celsius=61.0,
        clock_hertz=dict.fromkeys(CLOCKS, 1.98e9),
        clock_max_hertz=dict.fromkeys(CLOCKS, 1.98e9),
        throttled=dict.fromkeys(THROTTLE_REASONS, 0.0),
        ecc_errors=dict.fromkeys(ECC_ERRORS, 0.0),
        remapped_rows={"corrected": 0, "uncorrected": 0},
        row_remap_pending=0.0,
        row_remap_failed=0.0,
        pcie_link_generation=5,
        pcie_link_width=16,
        pcie_replays=0,
        pcie_bytes={"sent": 1e9, "received": 2e9},
        nvlink_links={"active": 18, "inactive": 0},
        nvlink_bytes={"sent": 1e12, "received": 1e12},
        nvlink_errors={"crc": 0.0, "replay": 0.0, "recovery": 0.0},
    )


def full_snapshot(gpus: int = 8) -> GpuSnapshot:
    """Make a reading of so many GPUs."""
    found = tuple(full_gpu(index) for index in range(gpus))
    seen = tuple(Seen(index, gpu.uuid, gpu.name, gpu.sm) for index, gpu in enumerate(found))
    return GpuSnapshot("570.133.20", "12.8", found, seen, gpus, (), 0.02)


def histogram(count: float, bounds: tuple[float, ...] = TTFT_BOUNDS) -> dict[str, Any]:
    """Make a histogram's JSON whose observations lie evenly between 0 and the last bound but one."""
    buckets = {str(bound): round(count * (at + 1) / len(bounds)) for at, bound in enumerate(bounds)}
    return {"buckets": {**buckets, "inf": count}, "sum": count * 0.1}


def full_stats(identity: str = "1", scale: float = 1.0) -> dict[str, Any]:
    """Make an engine's reading that shows everything; counters grow with `scale`."""
    return {
        "identity": identity,
        "kv_cache_usage": 0.41,
        "running": 3.0,
        "waiting": 0.0,
        "prompt_tokens_total": 10.0 * scale,
        "generation_tokens_total": 20.0 * scale,
        "preemptions_total": 0.0,
        "prefix_cache_hits_total": 1.0 * scale,
        "prefix_cache_queries_total": 2.0 * scale,
        "time_to_first_token": histogram(100 * scale),
        "inter_token_latency": histogram(1000 * scale),
        "asleep": False,
    }


FULL_USAGE: dict[str, Any] = {
    "processes": 3,
    "resident_bytes": 9 << 30,
    "cpu_seconds": 12.5,
    "open_files": 120,
}
