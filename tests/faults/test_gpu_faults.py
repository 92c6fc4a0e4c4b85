"""GPUs that get lost, drivers that hang or forget their clients: what is shown, what happens to traffic, and that it mends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fakes.nvml import NEEDS_GCC, NvmlStub, compile_stub
from tests.faults.rig import Daemon, Pod, throughout, until

#: Two of the host's eight, as the container toolkit names them in the engine's container.
OURS = {"NVIDIA_VISIBLE_DEVICES": "GPU-stub-2,GPU-stub-5"}
SECOND = 'gpu="5",uuid="GPU-stub-5"'


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    if not compile_stub(folder):
        pytest.skip(NEEDS_GCC)
    return folder


@pytest.fixture
def stub(library: Path, tmp_path: Path) -> NvmlStub:
    found = NvmlStub(library, tmp_path)
    found.set(GPUS=8)
    return found


def start(pod: Pod, stub: NvmlStub) -> Daemon:
    around = ["env", *(f"{name}={value}" for name, value in stub.environment.items())]
    daemon = pod.start_daemon(wrapper=around, gpu_interval_s=0.2)
    pod.start_container(environment=OURS)
    daemon.wait_until_ready(30)
    until(lambda: gpu_lines(daemon, "power_watts"), "the engine's GPUs")
    return daemon


def metrics(daemon: Daemon) -> str:
    return daemon.get("/metrics")[1]


def gpu_lines(daemon: Daemon, name: str) -> list[str]:
    return [line for line in metrics(daemon).splitlines() if line.startswith(f"warmup_sidecar_gpu_{name}{{")]


def is_up(daemon: Daemon) -> bool:
    return "warmup_sidecar_gpu_up 1.0" in metrics(daemon)


def test_of_eight_visible_gpus_the_engines_two_are_shown_and_a_lost_one_takes_traffic_away_until_it_is_back(
    pod: Pod, stub: NvmlStub
):
    daemon = start(pod, stub)
    assert gpu_lines(daemon, "power_watts") == [
        'warmup_sidecar_gpu_power_watts{gpu="2",uuid="GPU-stub-2"} 412.5',
        f"warmup_sidecar_gpu_power_watts{{{SECOND}}} 412.5",
    ]
    stub.set(GPUS=8, FAIL="*@5=15")
    until(lambda: daemon.readyz()[0] == 503, "readiness withdrawn")
    assert "lost GPU-stub-5" in daemon.readyz()[1]
    assert f"warmup_sidecar_gpu_lost{{{SECOND}}} 1.0" in metrics(daemon)
    assert [line.split("uuid=")[1] for line in gpu_lines(daemon, "power_watts")] == ['"GPU-stub-2"} 412.5']
    assert 'warmup_sidecar_suspensions_total{cause="gpu_lost"} 1.0' in metrics(daemon)
    stub.set(GPUS=8)
    daemon.wait_until_ready(30)
    assert len(gpu_lines(daemon, "power_watts")) == 2


def test_a_driver_that_forgets_its_clients_costs_the_numbers_and_no_traffic(pod: Pod, stub: NvmlStub):
    daemon = start(pod, stub)
    stub.set(GPUS=8, FAIL="count=999")
    until(lambda: not is_up(daemon), "NVML away")
    assert gpu_lines(daemon, "power_watts") == []
    daemon.told("NVML can't be used (Unknown Error)", "daemon-reload")
    throughout(1.5, lambda: daemon.is_ready, "ready although NVML is away")
    stub.set(GPUS=8)
    until(lambda: is_up(daemon), "NVML back")
    assert len(gpu_lines(daemon, "power_watts")) == 2


def test_a_call_that_never_returns_holds_neither_probes_nor_the_end_of_the_daemon(pod: Pod, stub: NvmlStub):
    daemon = start(pod, stub)
    stub.set(GPUS=8, HANG="power")

    def answers() -> bool:
        return daemon.is_ready and bool(metrics(daemon))

    throughout(1.0, answers, "answers while NVML hangs")
    until(lambda: not is_up(daemon) and not gpu_lines(daemon, "power_watts"), "a reading given up")
    assert 'warmup_sidecar_gpu_reading_troubles_total{reason="no_answer"}' in metrics(daemon)
    assert daemon.is_ready
    stub.set(GPUS=8)
    until(lambda: is_up(daemon), "NVML back")
    stub.set(GPUS=8, HANG="power")
    time.sleep(0.5)
    assert daemon.stop() == 0


def test_a_lost_gpu_stays_lost_by_name_while_nvml_answers_nothing_more(pod: Pod, stub: NvmlStub):
    daemon = start(pod, stub)
    stub.set(GPUS=8, FAIL="*@5=15")
    until(lambda: daemon.readyz()[0] == 503, "readiness withdrawn")
    for fail in ("count=999", "init=15"):
        stub.set(GPUS=8, FAIL=fail)
        until(lambda: "unavailable" in daemon.status()["gpu"], "NVML away")
        assert [(gpu["uuid"], gpu["lost"]) for gpu in daemon.status()["gpu"]["gpus"]] == [("GPU-stub-5", True)]
        assert gpu_lines(daemon, "lost") == [f"warmup_sidecar_gpu_lost{{{SECOND}}} 1.0"]
        assert "lost GPU-stub-5" in daemon.readyz()[1]
        stub.set(GPUS=8, FAIL="*@5=15")
        until(lambda: "unavailable" not in daemon.status()["gpu"], "NVML back")
    stub.set(GPUS=8)
    daemon.wait_until_ready(30)
    assert not any(gpu["lost"] for gpu in daemon.status()["gpu"]["gpus"])
