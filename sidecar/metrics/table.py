"""Every metric of the product, declared once: name, type, meaning, unit, labels.

No number lives here; `recording.py` holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidecar.caches.messages import REASONS
from sidecar.lifecycle import Phase

PREFIX = "warmup_sidecar_"
#: Where a value goes whose name isn't known, so that no outsider can grow the number of series.
OTHER = "other"
#: Steps that get series of their own; a profile with more is summed up under `other`. Shipped profiles have
#: under 30.
STEPS_SHOWN = 48
#: Directories in no cache family that get series, the largest.
UNMANAGED_SHOWN = 10
#: GPUs that get series; a host has at most 16.
GPUS_SHOWN = 16

#: Bounds of durations in seconds, from a probe's answer to the longest warm-up: DESIGN §1 measured 76 s to
#: over 560 s.
SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)

PHASES = tuple(phase.value for phase in Phase)
ENGINE_STATES = ("up", "gone", "unreachable", "busy", "starting", "asleep", "stalled", "not_an_engine")
RESTORE_OUTCOMES = (
    "hit",
    "partial",
    "miss",
    "kept",
    "failed",
    "timed_out",
    "disabled",
    "late",
    "skipped",
    OTHER,
)
PUBLISH_OUTCOMES = ("published", "nothing_new", "failed", "read_only", "timed_out", "disabled", OTHER)
WARM_OUTCOMES = ("converged", "exhausted", "failed", "engine_gone", "disabled", OTHER)
VERIFY_OUTCOMES = ("passed", "degenerate", "failed", "engine_gone", OTHER)
RESTART_CAUSES = ("exited", "killed", "out_of_memory", "refused", "replaced", "asked", OTHER)
REJECT_REASONS = (*REASONS, "excluded", "left_out", OTHER)
STARTS = ("adopted", *RESTORE_OUTCOMES)

#: Fields of an engine's stats → metric. Each is left out of the scrape while the engine does not show it.
ENGINE_SERIES: Mapping[str, str] = {
    "kv_cache_usage": "engine_kv_cache_usage_ratio",
    "running": "engine_requests_running",
    "waiting": "engine_requests_waiting",
    "prompt_tokens_total": "engine_prompt_tokens_total",
    "generation_tokens_total": "engine_generation_tokens_total",
    "preemptions_total": "engine_preemptions_total",
    "prefix_cache_hits_total": "engine_prefix_cache_hits_total",
    "prefix_cache_queries_total": "engine_prefix_cache_queries_total",
}
SOURCES = ("engine_metrics", "gpu", "live_cache", *("engine_" + name for name in ENGINE_SERIES))

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric: name without prefix, type, meaning, unit, and its labels with the values that exist from
    birth.

    A label whose values are None is open: its series appear with their source and go with it. `optional`: no
    series
    until there is a value.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    optional: bool = False


_WHEN = ("before_ready", "after_ready")
_FAMILY: tuple[str, ...] = (OTHER,)
_GPU: Mapping[str, None] = {"gpu": None, "uuid": None}

TABLE: tuple[Metric, ...] = (
    Metric(
        "build_info",
        "gauge",
        "Always 1; the version and the mode are in the labels.",
        "",
        {"version": None, "mode": None},
    ),
    Metric("ready", "gauge", "1 while traffic may come: the same as /readyz."),
    Metric("flagged", "gauge", "1 while the pod serves by policy, without full proof that it is warm and good."),
    Metric("degraded", "gauge", "How many things are switched off or replaced by defaults; /status says which."),
    Metric("settings_problems", "gauge", "Settings that could not be used; `warmup-sidecar check` names them."),
    Metric(
        "source_missing",
        "gauge",
        "1 while this source of numbers is absent, so that its series are left out.",
        "",
        {"source": SOURCES},
    ),
    Metric("phase", "gauge", "1 for the phase in which the pod is, 0 for the others.", "", {"phase": PHASES}),
    Metric("phase_start_timestamp_seconds", "gauge", "When the current phase began, since the epoch.", "seconds"),
    Metric(
        "phase_duration_seconds",
        "histogram",
        "How long ended stays in a phase took.",
        "seconds",
        {"phase": PHASES[:-1]},
    ),
    Metric(
        "time_to_ready_seconds",
        "histogram",
        "From the engine's start (or the sidecar's, for the first) to ready, by what restore gave.",
        "seconds",
        {"restore": STARTS},
    ),
    Metric("restore_outcome_total", "counter", "Restores by how they ended.", "", {"outcome": RESTORE_OUTCOMES}),
    Metric("restore_seconds", "histogram", "How long restores took.", "seconds"),
    Metric(
        "restore_waited_seconds_total",
        "counter",
        "Time in which restores waited for another pod to publish the first generation of their key.",
        "seconds",
    ),
    Metric("restore_bytes_total", "counter", "Bytes laid down in the live cache by restores.", "bytes"),
    Metric("restore_files_total", "counter", "Files laid down in the live cache by restores."),
    Metric(
        "restore_files_rejected_total",
        "counter",
        "Files of the store that were refused, by reason.",
        "",
        {"reason": REJECT_REASONS},
    ),
    Metric(
        "restore_effectiveness_ratio",
        "gauge",
        "Share of the kernels needed by the last restored start that came from the store and were used, 0 to 1.",
        "ratio",
        {"family": None},
        optional=True,
    ),
    Metric("publish_outcome_total", "counter", "Publishes by how they ended.", "", {"outcome": PUBLISH_OUTCOMES}),
    Metric("publish_seconds", "histogram", "How long publishes took.", "seconds"),
    Metric("publish_bytes_total", "counter", "Packed bytes written to the store.", "bytes"),
    Metric("publish_files_total", "counter", "New files published to the store."),
    Metric(
        "live_cache_bytes",
        "gauge",
        "Size of the live cache by family.",
        "bytes",
        {"family": None},
        optional=True,
    ),
    Metric(
        "unmanaged_cache_bytes",
        "gauge",
        "By how much a directory that is in no cache family grew while the engine ran; the ten largest.",
        "bytes",
        {"path": None},
        optional=True,
    ),
    Metric("live_cache_files", "gauge", "Files in the live cache by family.", "", {"family": None}, optional=True),
    Metric(
        "kernels_compiled_total",
        "counter",
        "Kernels the engine compiled, by family. After ready each one is a stall for somebody: it should stay 0.",
        "",
        {"when": _WHEN, "family": _FAMILY},
    ),
    Metric("warmup_outcome_total", "counter", "Warm-ups by how they ended.", "", {"outcome": WARM_OUTCOMES}),
    Metric("warmup_seconds", "histogram", "How long warm-ups took.", "seconds"),
    Metric("warmup_rounds_total", "counter", "Rounds of warm-up traffic that were sent."),
    Metric(
        "warmup_requests_total",
        "counter",
        "Warm-up requests by how they ended.",
        "",
        {"outcome": ("ok", "unsupported", "failed")},
    ),
    Metric(
        "warmup_step_ttft_seconds",
        "gauge",
        "Time to first token of each step of the last warm-up: its first, best and last request.",
        "seconds",
        {"step": None, "request": ("first", "best", "last")},
        optional=True,
    ),
    Metric(
        "warmup_residual_risk_ratio",
        "gauge",
        "Upper bound (95 %) on the share of the traffic mix that may still compile something.",
        "ratio",
        optional=True,
    ),
    Metric("verify_total", "counter", "Checks of the output by how they ended.", "", {"outcome": VERIFY_OUTCOMES}),
    Metric("engine_up", "gauge", "1 while the engine answers its health check with 200."),
    Metric(
        "engine_state",
        "gauge",
        "1 for the state in which the engine was last seen.",
        "",
        {"state": ENGINE_STATES},
    ),
    Metric(
        "engine_restarts_total",
        "counter",
        "Engine processes that ended or were replaced, by cause.",
        "",
        {"cause": RESTART_CAUSES},
    ),
    Metric("engine_asleep", "gauge", "1 while the engine sleeps.", optional=True),
    Metric(
        "engine_kv_cache_usage_ratio",
        "gauge",
        "Share of the KV cache in use, 0 to 1.",
        "ratio",
        optional=True,
    ),
    Metric("engine_requests_running", "gauge", "Requests the engine works on.", optional=True),
    Metric("engine_requests_waiting", "gauge", "Requests that wait in the engine.", optional=True),
    Metric(
        "engine_prompt_tokens_total",
        "counter",
        "Prompt tokens as the engine counts them, warm-up included.",
        "tokens",
        optional=True,
    ),
    Metric(
        "engine_generation_tokens_total",
        "counter",
        "Generated tokens as the engine counts them, warm-up included.",
        "tokens",
        optional=True,
    ),
    Metric("engine_preemptions_total", "counter", "Requests preempted for want of KV cache.", optional=True),
    Metric("engine_prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", optional=True),
    Metric(
        "engine_prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        optional=True,
    ),
    Metric("gpu_up", "gauge", "1 while NVML answers for at least one GPU."),
    Metric(
        "gpu_info",
        "gauge",
        "Always 1; name, SM version and driver are in the labels.",
        "",
        {**_GPU, "name": None, "sm": None, "driver": None},
        optional=True,
    ),
    Metric(
        "gpu_utilization_ratio",
        "gauge",
        "Share of time in which a kernel ran, 0 to 1.",
        "ratio",
        _GPU,
        optional=True,
    ),
    Metric("gpu_memory_used_bytes", "gauge", "GPU memory in use.", "bytes", _GPU, optional=True),
    Metric("gpu_memory_size_bytes", "gauge", "GPU memory there is.", "bytes", _GPU, optional=True),
    Metric("gpu_power_watts", "gauge", "Power the GPU draws.", "watts", _GPU, optional=True),
    Metric("gpu_temperature_celsius", "gauge", "Temperature of the GPU's chip.", "celsius", _GPU, optional=True),
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in TABLE}

#: README: the columns of `documented()`.
HEADINGS = ("metric", "type", "labels", "unit", "meaning")


def documented() -> list[tuple[str, str, str, str, str]]:
    """List all metrics for the README: name, type, labels with their values, unit, meaning."""
    return [(PREFIX + m.name, m.kind, "; ".join(_label_words(m)), m.unit, m.help) for m in TABLE]


def _label_words(metric: Metric) -> Iterator[str]:
    for label, values in metric.labels.items():
        if label == "family" or values is None:
            yield label
        else:
            yield f"{label} ({', '.join(values)})"
