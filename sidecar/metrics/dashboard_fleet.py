"""The dashboard's rows for the fleet: how starts go, what they are worth, and what the store does.

How they become Grafana's JSON is the business of `grafana.py`; no metric is declared here.
"""

from __future__ import annotations

from sidecar.metrics.grafana import Panel, Row
from sidecar.metrics.promql import EACH_POD, asked, counted, grown, in_range

STARTS = Row(
    "Fleet: how starts go",
    (
        Panel(
            "Time to ready, by what restore gave",
            "Starts within the range of time.",
            [in_range(0.5, "time_to_ready_seconds", "restore"), in_range(0.95, "time_to_ready_seconds", "restore")],
            "s",
            kind="number",
        ),
        Panel(
            "The last way to ready, taken apart",
            "Mean of all pods.",
            [asked("avg by (phase) (@start_phase_seconds{PODS})", "{{phase}}")],
            "s",
            stacked=True,
        ),
        Panel(
            "Restores",
            "By how they ended, within the range of time.",
            [counted("restore_outcome_total", "outcome")],
            kind="number",
        ),
        Panel(
            "Restored and used",
            "Share of the kernels needed that came from the store; the worst pod of each family.",
            [asked("min by (family) (@restore_effectiveness_ratio{PODS})", "{{family}}")],
            "percentunit",
            most=1,
        ),
        Panel(
            "Kernels compiled before ready",
            "By family; with a full store it falls to 0.",
            [grown("kernels_compiled_total", "family", labels=', when="before_ready"')],
            kind="number",
        ),
        Panel(
            "Kernels compiled again",
            "An earlier pod had compiled them, and they were restored.",
            [grown("warmup_kernels_lost_total", "family")],
            kind="number",
        ),
        Panel(
            "Duration of restore, warm-up and publish",
            "95 % were shorter, within the range of time.",
            [in_range(0.95, f"{name}_seconds", legend=name) for name in ("restore", "warmup", "publish")],
            "s",
            kind="number",
        ),
        Panel(
            "Bytes moved",
            "Restored from the store, and published to it.",
            [asked(f"sum(increase(@{name}_bytes_total{{PODS}}[$__range]))", name) for name in ("restore", "publish")],
            "bytes",
            kind="number",
        ),
        Panel(
            "Publishes",
            "By how they ended, within the range of time.",
            [counted("publish_outcome_total", "outcome")],
            kind="number",
        ),
    ),
)

TRUST = Row(
    "Fleet: warm-up, output, store",
    (
        Panel(
            "Warm-ups",
            "By how they ended, within the range of time.",
            [counted("warmup_outcome_total", "outcome")],
            kind="number",
        ),
        Panel(
            "Warm-up's requests",
            "Replayed bursts need no search.",
            [
                grown("warmup_requests_total", "outcome"),
                asked("sum(increase(@warmup_requests_searched_total{PODS}[$__range]))", "searched"),
                asked("sum(increase(@warmup_bursts_replayed_total{PODS}[$__range]))", "bursts replayed"),
            ],
            kind="number",
        ),
        Panel(
            "Residual risk",
            "Upper bound (95 %) on the share of the traffic mix that may still compile something.",
            [asked("max by (pod) (@warmup_residual_risk_ratio{PODS})", EACH_POD)],
            "percentunit",
        ),
        Panel(
            "Output checks",
            "By how they ended, within the range of time.",
            [counted("verify_total", "outcome")],
            kind="number",
        ),
        Panel(
            "Quarantines, and files refused",
            "Generations condemned by these pods; files of the store that were refused, by reason; within the range of time.",
            [
                counted("quarantines_total", legend="quarantines"),
                counted("restore_files_rejected_total", "reason", "refused: {{reason}}"),
            ],
            kind="number",
        ),
        Panel(
            "Cleaned from the store",
            "By publishers (WARMUP_STORE_GC_INTERVAL_S), within the range of time; and what it took after that.",
            [
                asked("sum(increase(@store_gc_removed_bytes_total{PODS}[$__range]))", "removed"),
                asked("max(@store_bytes{PODS})", "kept"),
                asked("max(@store_over_limit_bytes{PODS}) > 0", "over the limit"),
            ],
            "bytes",
            kind="number",
        ),
        Panel(
            "Sources missing",
            "Pods for which a source of numbers is absent; the store among them.",
            [asked("sum by (source) (@source_missing{PODS}) > 0", "{{source}}")],
        ),
        Panel(
            "Room on disks",
            "The fullest of each kind.",
            [asked("min by (disk) (@disk_free_bytes{PODS} / @disk_size_bytes{PODS})", "{{disk}}")],
            "percentunit",
            most=1,
        ),
        Panel(
            "Live cache",
            "By family, the largest pod.",
            [asked("max by (family) (@live_cache_bytes{PODS})", "{{family}}")],
            "bytes",
            stacked=True,
        ),
        Panel(
            "Grown outside of all families",
            "Not restored: what a pod compiles there is lost with it.",
            [asked("max by (path) (@unmanaged_cache_bytes{PODS})", "{{path}}")],
            "bytes",
        ),
    ),
)
