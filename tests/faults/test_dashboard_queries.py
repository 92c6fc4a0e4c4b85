"""Every query of the dashboard, asked of a real Prometheus that scraped a real start: it is answered, and shows something.

That names and queries fit the declarations: tests/contract/test_dashboard.py. No Grafana server is asked.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.metrics.dashboard import ROWS
from tests.fakes.nvml import NvmlStub, compile_stub
from tests.faults import test_prometheus
from tests.faults.rig import Pod, ask, until

pytestmark = test_prometheus.pytestmark

#: What Grafana puts in before it asks; scrapes come every half second here.
FILLED = {"$__rate_interval": "5s", "$__range": "10m", "$namespace": ".*", "$pod": ".*"}
QUERIES = {
    f"{panel.title} {number}": query.expr
    for row in ROWS
    for panel in row.panels
    for number, query in enumerate(panel.queries)
}
#: Panels, or queries of them, that are empty when all is well, or without what this start hasn't, with the reason.
EMPTY = {
    "Firing alerts": "this Prometheus has no rules",
    "Not ready: where": "the pod is ready",
    "Not ready: the engine": "the pod is ready",
    "Ready withdrawn": "it never was",
    "Output checks that were not good": "all were",
    "Drift from the golden file": "there is no golden file",
    "Pods with a fallback": "none was needed",
    "Residual risk": "this profile makes no random draws",
    "Restored and used": "nothing was there to restore",
    "Grown outside of all families": "nothing did",
    "Quarantines, and files refused": "nothing was condemned or refused",
    "Cleaned from the store 2": "the store has no limit",
    "Memory of the engines": "read every 15 s, which is too long for this test",
    "CPUs the engines use": "the same",
    "Open files and sockets": "the same",
    "Time between tokens": "the scripted engine doesn't count it",
    "Calls to the API server": "no cluster",
    "Rights missing, conditions not in step": "no cluster",
    "Injector: reviews": "another process",
    "Injector: certificate ends in": "another process",
}
#: They need the stub libnvidia-ml, and so a compiler.
GPU_ROW = "GPUs"


def answered(url: str, query: str) -> list[dict[str, Any]]:
    """Ask a query as Grafana would; what Prometheus refuses fails with its sentence."""
    for variable, value in FILLED.items():
        query = query.replace(variable, value)
    try:
        answer = json.loads(ask(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    except urllib.error.HTTPError as error:
        pytest.fail(f"{query}: {error.read().decode()}")
    assert answer["status"] == "success"
    return list(answer["data"]["result"])


def start_with_gpus(pod: Pod, folder: Path) -> bool:
    """Start daemon and engine on a stub's GPUs, where it can be compiled; say whether it could."""
    has_stub = compile_stub(folder)
    if not has_stub:
        pod.start(store_gc_interval_s=3600)
        return False
    stub = NvmlStub(folder, folder)
    # 0x40: the chip is too hot (nvmlClocksEventReasonHwThermalSlowdown).
    stub.set(GPUS=2, THROTTLE=0x40)
    around = ["env", *(f"{name}={value}" for name, value in stub.environment.items())]
    daemon = pod.start_daemon(wrapper=around, gpu_interval_s=0.2, store_gc_interval_s=3600)
    pod.start_container(environment={"NVIDIA_VISIBLE_DEVICES": "GPU-stub-0,GPU-stub-1"})
    daemon.wait_until_ready(30)
    return True


def test_every_query_is_answered_and_shows_what_a_start_was_like(pod: Pod, tmp_path: Path):
    (tmp_path / "prometheus").mkdir()
    with test_prometheus.prometheus(tmp_path / "prometheus", pod.listen) as server:
        has_gpus = start_with_gpus(pod, tmp_path)
        until(lambda: server.value("warmup_sidecar_ready") == 1, "a scrape of the ready pod")
        body = json.dumps({"prompt": [1] * 40, "max_tokens": 3}).encode()
        expected_empty = set(EMPTY)
        if not has_gpus:
            expected_empty |= {panel.title for row in ROWS if row.title == GPU_ROW for panel in row.panels}

        left = [name for name in QUERIES if not {name, name.rpartition(" ")[0]} & expected_empty]

        def shown() -> bool:
            ask(f"{pod.engine_url}/v1/completions", body)
            left[:] = [name for name in left if not answered(server.url, QUERIES[name])]
            return not left

        try:
            until(shown, "something to see in every panel", 60)
        except AssertionError:
            pytest.fail(f"nothing to see in {left}")
        for query in QUERIES.values():
            answered(server.url, query)


def samples(query: str, series: dict[str, str], expected: dict[str, float], folder: Path) -> str:
    """Let promtool ask a query three hours after the beginning of series of one value a minute; give what differs."""
    for variable, value in FILLED.items():
        query = query.replace(variable, {"$__range": "1h"}.get(variable, value))
    content = {
        "interval": "1m",
        "input_series": [{"series": f"warmup_sidecar_{name}", "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "180m30s",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    (folder / "queries.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [content]}), encoding="utf-8")
    command = ["promtool", "test", "rules", "queries.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_what_happened_is_counted_for_new_pods_and_for_pods_that_are_gone(tmp_path: Path):
    def restores(pod: str, outcome: str) -> str:
        return f'restore_outcome_total{{namespace="n", pod="{pod}", outcome="{outcome}"}}'

    series = {
        # Six restores before the range of an hour, two in it.
        restores("old", "hit"): "6x140 7x20 8x40",
        # Restored before its first scrape, and once more.
        restores("new", "hit"): "_x150 1x10 2x40",
        restores("new", "miss"): "_x150 0x50",
        # Ended within the range.
        restores("gone", "miss"): "0x100 0x30 1x20",
        # Nothing new.
        restores("quiet", "hit"): "4x200",
    }
    assert samples(QUERIES["Restores 0"], series, {'{outcome="hit"}': 4, '{outcome="miss"}': 1}, tmp_path) == ""


def test_a_mig_instance_and_its_parent_are_two_lines(tmp_path: Path):
    series = {
        f'gpu_utilization_ratio{{namespace="n", pod="p", gpu="0", uuid="{uuid}"}}': f"{value}x200"
        for uuid, value in {"GPU-0": 0.9, "MIG-0": 0.2}.items()
    }
    expected = {f'{{gpu="0", pod="p", uuid="{uuid}"}}': value for uuid, value in {"GPU-0": 0.9, "MIG-0": 0.2}.items()}
    assert samples(QUERIES["Utilisation 0"], series, expected, tmp_path) == ""


def test_pods_without_readings_of_a_lost_gpu_are_shown_and_no_gpu_is_no_zero(tmp_path: Path):
    lost, withheld = (QUERIES[f"Lost, or to be exchanged {number}"] for number in (0, 1))
    series = {'engine_state{namespace="n", pod="p", state="gpu_lost"}': "1x200"}
    assert samples(lost, series, {}, tmp_path) == ""
    assert samples(withheld, series, {"{}": 1}, tmp_path) == ""
