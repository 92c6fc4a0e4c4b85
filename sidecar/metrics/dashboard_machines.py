"""The dashboard's rows for machines: GPUs, processes, and the cluster around the pods.

How they become Grafana's JSON is the business of `grafana.py`; no metric is declared here.
"""

from __future__ import annotations

from sidecar.metrics.grafana import Panel, Row
from sidecar.metrics.promql import EACH_POD, asked, grown

#: A MIG instance has its parent's number and a UUID of its own.
_EACH_GPU = "{{pod}} GPU {{gpu}} {{uuid}}"


def _gpu(title: str, means: str, name: str, unit: str, most: float | None = None) -> Panel:
    return Panel(title, means, [asked(f"max by (pod, gpu, uuid) (@gpu_{name}{{PODS}})", _EACH_GPU)], unit, most=most)


GPUS = Row(
    "GPUs",
    (
        Panel(
            "Lost, or to be exchanged",
            "GPUs that the driver can't reach; pods that take no traffic for that reason, though no reading may succeed any more; "
            "GPUs with a row of memory that could not be replaced. No value: no GPU could be asked.",
            [
                asked("sum(@gpu_lost{PODS})", "lost"),
                asked('sum(@engine_state{PODS, state="gpu_lost"})', "pods without traffic"),
                asked("sum(@gpu_row_remap_failed{PODS})", "to be exchanged"),
            ],
            kind="number",
            bad=1,
        ),
        Panel(
            "Held down",
            "GPUs whose clocks are held down, by reason; a power cap alone is how a busy GPU works.",
            [asked("sum by (reason) (@gpu_throttled{PODS}) > 0", "{{reason}}")],
        ),
        _gpu("Utilisation", "Share of time in which a kernel ran.", "utilization_ratio", "percentunit", 1),
        Panel(
            "Memory",
            "In use, of what there is.",
            [asked("max by (pod, gpu, uuid) (@gpu_memory_used_bytes{PODS} / @gpu_memory_size_bytes{PODS})", _EACH_GPU)],
            "percentunit",
            most=1,
        ),
        _gpu("Power", "What the GPUs draw.", "power_watts", "watt"),
        _gpu("Temperature", "Of the chips.", "temperature_celsius", "celsius"),
        Panel(
            "Clocks",
            "Of the multiprocessors.",
            [asked('max by (pod, gpu, uuid) (@gpu_clock_hertz{PODS, clock="sm"})', _EACH_GPU)],
            "hertz",
        ),
        Panel(
            "Links",
            "Bytes per second, all GPUs.",
            [
                asked(
                    f"sum by (direction) (rate(@gpu_{link}_bytes_total{{PODS}}[$__rate_interval]))",
                    f"{link} {{{{direction}}}}",
                )
                for link in ("pcie", "nvlink")
            ],
            "Bps",
        ),
        Panel(
            "Errors",
            "Of memory, since the driver was loaded, that could not be corrected; of links.",
            [
                asked('sum by (pod) (@gpu_ecc_errors_total{PODS, error="uncorrected_volatile"})', "{{pod}} memory"),
                asked("sum by (pod) (@gpu_nvlink_errors_total{PODS})", "{{pod}} NVLink"),
            ],
        ),
    ),
    collapsed=True,
)

PROCESSES = Row(
    "Engines' processes, and Kubernetes",
    (
        Panel(
            "Memory of the engines",
            "Resident; what processes share counts once for each.",
            [asked("max by (pod) (@engine_resident_memory_bytes{PODS})", EACH_POD)],
            "bytes",
        ),
        Panel(
            "CPUs the engines use",
            "Seconds of CPU time per second.",
            [asked("sum by (pod) (rate(@engine_cpu_seconds_total{PODS}[$__rate_interval]))", EACH_POD)],
        ),
        Panel(
            "Open files and sockets",
            "Of the engines' processes together.",
            [asked("max by (pod) (@engine_open_files{PODS})", EACH_POD)],
        ),
        Panel(
            "Calls to the API server",
            "By how they ended; none without features that need it.",
            [grown("kubernetes_calls_total", "outcome", "$__rate_interval")],
        ),
        Panel(
            "Rights missing, conditions not in step",
            "Pods, by feature; and pods whose condition was not written.",
            [
                asked("sum by (feature) (@kubernetes_right_missing{PODS}) > 0", "right missing: {{feature}}"),
                asked("count(@readiness_gate_in_step{PODS} == 0)", "condition not in step"),
            ],
        ),
        Panel(
            "Injector: reviews",
            "Pods that the webhook was asked about, by outcome, whatever pods are chosen.",
            [asked("sum by (outcome) (increase(@injector_reviews_total[$__rate_interval]))", "{{outcome}}")],
        ),
        Panel(
            "Versions",
            "Of the sidecars.",
            [asked("count by (version, mode) (@build_info{PODS})")],
            kind="table",
        ),
        Panel(
            "GPUs by type and driver",
            "As the pods see them; MIG instances by their profile.",
            [asked("count by (name, mig, driver, cuda) (@gpu_info{PODS})")],
            kind="table",
        ),
        Panel(
            "Injector: certificate ends in",
            "0 s or less: the API server refuses it, and pods start without the sidecar.",
            [asked("min(@injector_certificate_expiry_timestamp_seconds) - time()")],
            "s",
            kind="number",
        ),
    ),
    collapsed=True,
)
