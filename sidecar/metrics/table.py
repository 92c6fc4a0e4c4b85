"""Every metric of the product, declared once: name, type, meaning, unit, labels.

No number lives here; `recording.py` holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sidecar.caches.families import FAMILIES
from sidecar.caches.messages import REASONS
from sidecar.handshake import CAUSES
from sidecar.lifecycle import Phase
from sidecar.lifecycle.states import Suspension
from sidecar.metrics.declaration import OTHER, PREFIX, Metric
from sidecar.metrics.engine_table import ENGINE_SERIES, ENGINE_TABLE
from sidecar.metrics.gpu_table import GPU_TABLE
from sidecar.metrics.kubernetes_table import KUBERNETES_TABLE
from sidecar.metrics.process_table import PROCESS_TABLE

#: Steps that get series of their own; a profile with more is summed up under `other`. Shipped profiles have
#: under 30.
STEPS_SHOWN = 48
#: Directories in no cache family that get series, the largest.
UNMANAGED_SHOWN = 10

#: Bounds of durations in seconds, from a probe's answer to the longest warm-up: DESIGN §1 measured 76 s to
#: over 560 s.
SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)

#: The last bucket has no bound.
BUCKETS = len(SECONDS) + 1

PHASES = tuple(phase.value for phase in Phase)
ON_THE_WAY = tuple(phase for phase in PHASES if phase not in ("ready", "stopped"))
SUSPENSIONS = tuple(cause.value for cause in Suspension)
ENGINE_STATES = ("up", "gone", "unreachable", "busy", "starting", "asleep", "stalled", "gpu_lost", "not_an_engine")
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
WARM_OUTCOMES = ("converged", "exhausted", "failed", "engine_gone", "disabled", "unwarmed", OTHER)
VERIFY_OUTCOMES = ("passed", "degenerate", "wrong", "unchecked", "failed", "engine_gone", "skipped", OTHER)
#: Ends that the engine did not bring about itself are `asked`, those without a known cause `exited`.
_PLAIN_ENDS = ("restart", "terminated", "clean", "crash")
RESTART_CAUSES = ("exited", "replaced", "asked", *(cause for cause in CAUSES if cause not in _PLAIN_ENDS), OTHER)
REJECT_REASONS = (*REASONS, "excluded", "left_out", OTHER)
GC_OUTCOMES = ("done", "failed", OTHER)
RESTORE_SOURCES = ("node", "volume", "bucket", OTHER)
STARTS = ("adopted", *RESTORE_OUTCOMES)

#: Where numbers come from; each part of the engine's is a source of its own.
SOURCES = (
    "engine_metrics",
    "gpu",
    "live_cache",
    "engine_processes",
    "store",
    *("engine_" + name for name in ENGINE_SERIES),
)

_WHEN = ("before_ready", "after_ready")
_FAMILY: tuple[str, ...] = (OTHER,)

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
        buckets=BUCKETS,
    ),
    Metric(
        "time_to_ready_seconds",
        "histogram",
        "From the engine's start (or the sidecar's, for the first) to ready, by what restore gave.",
        "seconds",
        {"restore": STARTS},
        buckets=BUCKETS,
    ),
    Metric(
        "start_phase_seconds",
        "gauge",
        "The last way to ready, taken apart: seconds spent in each phase since the start, or since ready was withdrawn.",
        "seconds",
        {"phase": ON_THE_WAY},
        optional=True,
    ),
    Metric(
        "suspensions_total",
        "counter",
        "Withdrawals of ready while the engine was there, by cause.",
        "",
        {"cause": SUSPENSIONS},
    ),
    Metric("quarantines_total", "counter", "Generations that this pod condemned."),
    Metric("restore_outcome_total", "counter", "Restores by how they ended.", "", {"outcome": RESTORE_OUTCOMES}),
    Metric("restore_seconds", "histogram", "How long restores took.", "seconds", buckets=BUCKETS),
    Metric(
        "restore_waited_seconds_total",
        "counter",
        "Time in which restores waited for another pod to publish the first generation of their key.",
        "seconds",
    ),
    Metric("restore_bytes_total", "counter", "Bytes laid down in the live cache by restores.", "bytes"),
    Metric("restore_files_total", "counter", "Files laid down in the live cache by restores."),
    Metric(
        "restore_source_bytes_total",
        "counter",
        "Bytes of archives by where they came from.",
        "bytes",
        {"source": RESTORE_SOURCES},
    ),
    Metric(
        "restore_source_seconds_total",
        "counter",
        "Time from the first to the last archive of a restore by where they came from; sources are read at the same time.",
        "seconds",
        {"source": RESTORE_SOURCES},
    ),
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
    Metric("publish_seconds", "histogram", "How long publishes took.", "seconds", buckets=BUCKETS),
    Metric("publish_bytes_total", "counter", "Packed bytes written to the store.", "bytes"),
    Metric("publish_files_total", "counter", "New files published to the store."),
    Metric(
        "store_gc_total",
        "counter",
        "This pod's cleanings of the store by how they ended.",
        "",
        {"outcome": GC_OUTCOMES},
    ),
    Metric("store_gc_removed_generations_total", "counter", "Generations that this pod removed from the store."),
    Metric(
        "store_gc_removed_bytes_total", "counter", "Bytes of archives that this pod removed from the store.", "bytes"
    ),
    Metric(
        "store_gc_last_timestamp_seconds",
        "gauge",
        "When anybody last began to clean the store up, since the epoch, as this pod saw it after its last publish.",
        "seconds",
        optional=True,
    ),
    Metric(
        "store_bytes",
        "gauge",
        "What the generations of the store took when this pod cleaned it up; absent once it sees that another one has since.",
        "bytes",
        optional=True,
    ),
    Metric(
        "store_over_limit_bytes",
        "gauge",
        "By how much that was over WARMUP_STORE_LIMIT_BYTES, after all was removed that may be.",
        "bytes",
        optional=True,
    ),
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
        most={"path": UNMANAGED_SHOWN},
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
    Metric("warmup_seconds", "histogram", "How long warm-ups took.", "seconds", buckets=BUCKETS),
    Metric(
        "warmup_bursts_replayed_total",
        "counter",
        "Bursts of earlier pods that were sent again instead of searched anew.",
    ),
    Metric("warmup_requests_searched_total", "counter", "Requests sent in search of sizes that compile something new."),
    Metric(
        "warmup_kernels_lost_total",
        "counter",
        "Kernels compiled again though an earlier pod had compiled them and its generation was restored, by family.",
        "",
        {"family": _FAMILY},
    ),
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
        most={"step": STEPS_SHOWN},
    ),
    Metric(
        "warmup_residual_risk_ratio",
        "gauge",
        "Upper bound (95 %) on the share of the traffic mix that may still compile something.",
        "ratio",
        optional=True,
    ),
    Metric(
        "no_progress_seconds",
        "gauge",
        "For how long an engine that is not ready yet has shown no progress at all; 0 while it shows some.",
        "seconds",
    ),
    Metric("verify_total", "counter", "Checks of the output by how they ended.", "", {"outcome": VERIFY_OUTCOMES}),
    Metric(
        "golden_drift_ratio",
        "gauge",
        "By how much the probability of a recorded token changed on average in the last golden check, 0 to 1.",
        "ratio",
        optional=True,
    ),
    Metric(
        "golden_failed_prompts",
        "gauge",
        "Prompts whose output was not what the golden file has, in the last golden check.",
        optional=True,
    ),
    Metric("golden_seconds", "histogram", "How long golden checks took.", "seconds", buckets=BUCKETS),
    Metric(
        "fallback_active",
        "gauge",
        "Number of the fallback with which the engine runs, counted from 1; 0: it runs as it was asked to.",
    ),
    Metric(
        "fallback_info",
        "gauge",
        "1 for the fallback with which the engine runs.",
        "",
        {"change": None},
        optional=True,
        most={"change": 1},
    ),
    Metric("fallback_starts_total", "counter", "Starts of the engine with a fallback."),
    Metric(
        "output_samples_total",
        "counter",
        "Samples of the output that were taken while serving, by how they were.",
        "",
        {"outcome": VERIFY_OUTCOMES},
    ),
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
    Metric(
        "engine_kv_cache_tokens",
        "gauge",
        "Tokens that the engine's KV cache holds, as it was sized at its start.",
        "tokens",
        optional=True,
    ),
    Metric(
        "engine_kv_cache_shortfall_ratio",
        "gauge",
        "By which share the KV cache is smaller than in the best earlier boot of the same key, 0 to 1.",
        "ratio",
        optional=True,
    ),
    *ENGINE_TABLE,
    *PROCESS_TABLE,
    *GPU_TABLE,
    *KUBERNETES_TABLE,
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in TABLE}

#: README: the columns of `documented()`.
HEADINGS = ("metric", "type", "labels", "unit", "series at most", "meaning")


def documented(table: Iterable[Metric] | None = None) -> list[tuple[str, str, str, str, str, str]]:
    """List metrics for the README, the daemon's or others': name, type, labels with values, unit, most series, meaning."""
    return [
        (PREFIX + m.name, m.kind, "; ".join(_label_words(m)), m.unit, str(m.series(len(FAMILIES))), m.help)
        for m in (TABLE if table is None else table)
    ]


def _label_words(metric: Metric) -> Iterator[str]:
    for label, values in metric.labels.items():
        if label == "family" or values is None:
            yield label
        else:
            yield f"{label} ({', '.join(values)})"
