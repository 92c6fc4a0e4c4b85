"""What happens to a ready pod whose engine sleeps, wakes, hangs, turns bad or only looks dead; real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import PATIENCE_S, Pod, throughout, until
from tests.faults.test_golden_fallback import GOOD, golden, metric

__all__ = ["golden"]
#: DESIGN §3, "When ready is withdrawn".
UNREADY_S = 2.0


def sent(pod: Pod) -> int:
    return int(pod.engine()["counters"]["texts"])


def test_nothing_is_sent_while_the_engine_sleeps_and_after_it_woke_it_is_warmed_and_compared(
    pod: Pod, golden: Path
) -> None:
    daemon = pod.start(script={**GOOD, "dev_mode": True}, golden=golden, sample_output_s=0.2)
    pod.tell_engine(asleep=True)
    daemon.caught_in("suspended")
    before = sent(pod)
    throughout(3, lambda: sent(pod) == before, "an engine that is left alone")
    # A sample may have been on its way when the engine fell asleep.
    assert pod.engine()["counters"]["while_asleep"] <= 1
    checked = metric(daemon, 'verify_total{outcome="passed"}')
    pod.tell_engine(asleep=False)
    daemon.wait_until_ready(PATIENCE_S)
    assert metric(daemon, 'verify_total{outcome="passed"}') == checked + 1
    assert daemon.status()["golden"]["golden"]["outcome"] == "passed"


def test_output_that_is_bad_after_a_wake_up_keeps_the_pod_unready(pod: Pod, golden: Path) -> None:
    daemon = pod.start(script={**GOOD, "dev_mode": True}, golden=golden, on_golden_failed="hold")
    pod.tell_engine(asleep=True)
    daemon.caught_in("suspended")
    pod.tell_engine(asleep=False, fault="other_weights")
    until(lambda: daemon.status()["golden"]["outcome"] == "wrong", "wrong output after the wake-up")
    daemon.caught_in("suspended")
    assert "not what was recorded" in daemon.status()["reason"]
    assert daemon.readyz()[0] == 503


def test_an_engine_that_wakes_up_and_then_hangs_is_not_ready(pod: Pod) -> None:
    daemon = pod.start(script={"dev_mode": True})
    pod.tell_engine(asleep=True)
    daemon.caught_in("suspended")
    pod.tell_engine(asleep=False, generation="hang")
    daemon.caught_in("warming")
    throughout(3, lambda: daemon.readyz()[0] == 503, "unready")


def test_degenerate_samples_withdraw_traffic_and_then_policy_decides(pod: Pod) -> None:
    daemon = pod.start(on_golden_failed="hold", sample_output_s=0.2)
    pod.tell_engine(generation="repeat")
    until(lambda: daemon.readyz()[0] == 503, "unready")
    daemon.caught_in("suspended")
    assert metric(daemon, 'suspensions_total{cause="degenerate"}') >= 1
    pod.tell_engine(generation="good")
    pod.sidecar("golden", "run")
    daemon.wait_until_ready(PATIENCE_S)


def test_requests_that_run_without_progress_withdraw_traffic_and_an_idle_engine_never_does(pod: Pod) -> None:
    daemon = pod.start(stall_s=6)
    throughout(8, lambda: daemon.is_ready, "an idle engine that is ready")
    pod.tell_engine(freeze=True)
    until(lambda: daemon.readyz()[0] == 503, "unready")
    assert daemon.status()["engine"]["state"] == "stalled"
    assert "no progress" in daemon.status()["reason"]


def test_an_engine_whose_core_died_while_its_port_stays_open_is_gone_at_once(pod: Pod) -> None:
    daemon = pod.start()
    began = time.monotonic()
    pod.tell_engine(health="503", generation="500")
    assert daemon.unready_after(began) < UNREADY_S
    assert daemon.status()["phase"] == "awaiting_engine"
    pod.tell_engine(health="ok", generation="good")
    daemon.wait_until_ready(PATIENCE_S)


def test_a_worker_that_died_under_a_living_api_is_seen_by_requests_that_stand_still(pod: Pod) -> None:
    daemon = pod.start(stall_s=5)
    pod.tell_engine(generation="hang")
    with pod.request_in_flight():
        until(lambda: daemon.readyz()[0] == 503, "unready though /health answers 200")
        assert daemon.status()["engine"]["state"] == "stalled"


def soak(pod: Pod, seconds: float, slow_s: float, stall_s: float) -> None:
    """Keep an engine busy with slow health checks and moving counters for so long: never unready; then it dies."""
    daemon = pod.start(stall_s=stall_s)
    script: dict[str, Any] = {"health": "slow", "slow_seconds": slow_s, "token_seconds": 0.05}
    pod.tell_engine(**script)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with pod.request_in_flight():
            assert daemon.is_ready, daemon.notices()
        time.sleep(0.1)
    states = daemon.status()["engine"]["state"]
    assert states in ("busy", "up")
    began = time.monotonic()
    os.kill(pod.engine_pid(), signal.SIGKILL)
    assert daemon.unready_after(began) < UNREADY_S


def test_a_busy_engine_with_slow_health_checks_is_never_unready_until_it_dies(pod: Pod) -> None:
    soak(pod, 12, 3.0, 9.0)


def test_a_busy_engine_that_answers_no_health_check_for_longer_than_a_stall_is_told_by_its_counters(pod: Pod) -> None:
    soak(pod, 25, 60.0, 8.0)


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [9.5, 12.0])
def test_a_busy_engine_is_never_unready_in_ten_minutes_and_at_most_2_s_after_its_death(
    pod: Pod, slow_s: float
) -> None:
    soak(pod, 600, slow_s, stall_s=25.0)
