"""The dashboard's rows for somebody on call: does it serve, and if not, why.

How they become Grafana's JSON is the business of `grafana.py`; no metric is declared here.
"""

from __future__ import annotations

from sidecar.metrics.grafana import Panel, Row
from sidecar.metrics.promql import EACH_POD, asked, grown, quantile

_SERVING = ', phase="serving"'
_BUCKETS = (
    "As the engine measures it. Buckets are the engine's: where pods of several versions of engines have different ones, the "
    "quantiles of all together are estimates; choose pods of one version for exact ones."
)

ON_CALL = Row(
    "On call: does it serve, and if not, why",
    (
        Panel("Ready", "Pods that may take traffic.", [asked("sum(@ready{PODS})")], kind="number", width=3, height=5),
        Panel("Pods", "Pods that are scraped.", [asked("count(@ready{PODS})")], kind="number", width=3, height=5),
        Panel(
            "Kernels compiled after ready, 1 h",
            "Each one was a stall for somebody. It should be 0.",
            [asked('sum(increase(@kernels_compiled_total{PODS, when="after_ready"}[1h]))')],
            kind="number",
            width=4,
            height=5,
            bad=0.5,
        ),
        Panel(
            "Serving unproven",
            "Pods that take traffic by policy, without proof.",
            [asked("sum(@flagged{PODS} * @ready{PODS})")],
            kind="number",
            width=3,
            height=5,
            bad=1,
        ),
        Panel(
            "Degraded",
            "Pods with parts switched off.",
            [asked("sum(@degraded{PODS} > bool 0)")],
            kind="number",
            width=3,
            height=5,
            bad=1,
        ),
        Panel(
            "Firing alerts",
            "Each has a section of its name in k8s/README.md.",
            [asked('sum by (alertname, pod, severity) (ALERTS{alertstate="firing", alertname=~"Warmup.*", PODS})')],
            kind="table",
            height=5,
        ),
        Panel(
            "Not ready: where",
            "The phase of each pod that takes no traffic.",
            [asked('max by (pod, phase) (@phase{PODS, phase!="ready"} == 1)')],
            kind="table",
        ),
        Panel(
            "Not ready: the engine",
            "How the engine looks on pods that take no traffic.",
            [asked("max by (pod, state) (@engine_state{PODS} == 1 and on (namespace, pod) @ready{PODS} == 0)")],
            kind="table",
        ),
        Panel(
            "No progress",
            "For how long a start has shown no progress at all.",
            [asked("max by (pod) (@no_progress_seconds{PODS})", EACH_POD)],
            "s",
            bad=600,
        ),
        Panel("Pods by phase", "All pods.", [asked("sum by (phase) (@phase{PODS})", "{{phase}}")], stacked=True),
        Panel(
            "Ready withdrawn",
            "Suspensions by cause, and ends of engines by cause.",
            [
                asked(
                    "sum by (cause) (increase(@suspensions_total{PODS}[$__rate_interval])) > 0", "suspended: {{cause}}"
                ),
                asked(
                    "sum by (cause) (increase(@engine_restarts_total{PODS}[$__rate_interval])) > 0", "engine: {{cause}}"
                ),
            ],
        ),
        Panel(
            "Output checks that were not good",
            "By how they ended; wrong: not what the golden file has.",
            [
                asked(
                    'sum by (outcome) (increase(@verify_total{PODS, outcome!~"passed|skipped|engine_gone"}'
                    "[$__rate_interval])) > 0",
                    "{{outcome}}",
                )
            ],
        ),
        Panel(
            "Drift from the golden file",
            "By how much the probability of a recorded token changed on average.",
            [asked("max by (pod) (@golden_drift_ratio{PODS})", EACH_POD)],
            "percentunit",
            bad=0.05,
        ),
        Panel(
            "Pods with a fallback",
            "Engines that run with another command than they were asked to, because their output was bad.",
            [asked("max by (pod, change) (@fallback_info{PODS} == 1)")],
            kind="table",
        ),
        Panel(
            "Compiled while serving",
            "By family.",
            [grown("kernels_compiled_total", "family", "$__rate_interval", ', when="after_ready"')],
        ),
    ),
)

TRAFFIC = Row(
    "Traffic, without warm-up",
    (
        Panel(
            "Time to first token",
            _BUCKETS,
            [quantile(share, "engine_time_to_first_token_seconds", labels=_SERVING) for share in (0.5, 0.95, 0.99)],
            "s",
        ),
        Panel(
            "Time between tokens",
            _BUCKETS,
            [quantile(share, "engine_inter_token_latency_seconds", labels=_SERVING) for share in (0.5, 0.95, 0.99)],
            "s",
        ),
        Panel(
            "Tokens per second",
            "All pods.",
            [
                asked(f"sum(rate(@engine_{kind}_tokens_total{{PODS{_SERVING}}}[$__rate_interval]))", kind)
                for kind in ("prompt", "generation")
            ],
            stacked=True,
        ),
        Panel(
            "Requests",
            "Running and waiting in the engines.",
            [asked(f"sum(@engine_requests_{state}{{PODS{_SERVING}}})", state) for state in ("running", "waiting")],
        ),
        Panel(
            "KV cache in use",
            "Near full, requests wait or are preempted.",
            [asked(f"max by (pod) (@engine_kv_cache_usage_ratio{{PODS{_SERVING}}})", EACH_POD)],
            "percentunit",
            most=1,
            bad=0.95,
        ),
        Panel(
            "Preemptions and prefix-cache hits",
            "Preemptions per second; share of prompt tokens found in the prefix cache.",
            [
                asked(f"sum(rate(@engine_preemptions_total{{PODS{_SERVING}}}[$__rate_interval]))", "preemptions"),
                asked(
                    f"sum(rate(@engine_prefix_cache_hits_total{{PODS{_SERVING}}}[$__rate_interval]))"
                    f" / sum(rate(@engine_prefix_cache_queries_total{{PODS{_SERVING}}}[$__rate_interval]))",
                    "prefix-cache hits",
                ),
            ],
        ),
    ),
)
