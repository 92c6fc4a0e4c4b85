"""A real Prometheus scrapes a real daemon through a start: what it stores is what autoscalers and dashboards will see."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import Pod, ask, until
from tests.ports import unused_port

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: pods
    static_configs: [{{targets: ["{target}"]}}]
"""
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are missing (Debian: package prometheus)",
)


class Prometheus:
    """A server that scrapes one daemon, asked with PromQL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def values(self, query: str) -> dict[frozenset[tuple[str, str]], float]:
        """Ask once; labels without job, instance and name → value."""
        try:
            answer = json.loads(ask(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        except OSError:
            return {}
        found: list[dict[str, Any]] = answer["data"]["result"]
        return {labels_of(each["metric"]): float(each["value"][1]) for each in found}

    def value(self, query: str, **labels: str) -> float | None:
        return self.values(query).get(frozenset(labels.items()))


def labels_of(metric: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in metric.items() if name not in ("job", "instance", "__name__"))


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target), encoding="ascii")
    address = f"127.0.0.1:{unused_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield Prometheus(f"http://{address}")
    finally:
        server.terminate()
        server.wait(20)


def test_a_start_is_scraped_and_warm_up_is_told_from_traffic(pod: Pod, tmp_path: Path):
    (tmp_path / "prometheus").mkdir()
    with prometheus(tmp_path / "prometheus", pod.listen) as server:
        daemon = pod.start_daemon()
        until(lambda: server.value("warmup_sidecar_ready") == 0, "a scrape of a pod that isn't ready")
        pod.start_container()
        daemon.wait_until_ready(30)
        until(lambda: server.value("warmup_sidecar_ready") == 1, "a scrape of the ready pod")
        serving = 'warmup_sidecar_engine_requests_running{phase="serving"}'
        until(lambda: server.value(serving, phase="serving") == 0, "load of the serving pod")
        assert server.values("min_over_time(up[1h])")
        assert set(server.values("up").values()) == {1.0}
        warmed = 'warmup_sidecar_engine_prompt_tokens_total{phase="warmup"}'
        sent = server.value(warmed, phase="warmup")
        assert (sent or 0) > 0
        ask(f"{pod.engine_url}/v1/completions", json.dumps({"prompt": [1] * 40, "max_tokens": 3}).encode())
        traffic = 'warmup_sidecar_engine_prompt_tokens_total{phase="serving"}'
        until(lambda: server.value(traffic, phase="serving") == 40, "a user's tokens, and only those")
        assert server.value(warmed, phase="warmup") == sent
        parts = server.values("warmup_sidecar_start_phase_seconds")
        assert parts[frozenset({("phase", "warming")})] > 0
        bounds = "histogram_quantile(0.5, sum by (le) (warmup_sidecar_engine_time_to_first_token_seconds_bucket))"
        assert 0 < next(iter(server.values(bounds).values())) <= 10
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=daemon.get("/metrics")[1].encode(), capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
