"""The daemon alone is restarted beside an engine that it has proven: capacity is not to be lost by that."""

from __future__ import annotations

import signal
import time

import pytest

from tests.integration.pod import Pod, seconds_until

#: A restarted daemon takes its proven engine back within this time.
ADOPTED_S = 5.0
#: Long enough to tell "too late" from "never".
PATIENCE_S = 60.0

ENDS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)


def restart(pod: Pod, number: signal.Signals) -> float:
    """End the daemon with a signal, start the next one, and give the seconds until it is ready."""
    assert pod.daemon is not None
    pod.daemon.process.send_signal(number)
    pod.daemon.process.wait(10)
    began = time.monotonic()
    return seconds_until(pod.replace_daemon(proven=True), began, PATIENCE_S)


@ENDS
def test_a_daemon_restarted_beside_a_proven_engine_is_ready_within_five_seconds(
    serving_pod: Pod, number: signal.Signals
):
    assert restart(serving_pod, number) < ADOPTED_S


@ENDS
def test_a_restarted_daemon_neither_restores_nor_warms_up(serving_pod: Pod, number: signal.Signals):
    restart(serving_pod, number)
    assert serving_pod.daemon is not None
    status = serving_pod.daemon.status()
    phases = {stay["phase"] for stay in status["timeline"]}
    assert (status["restore"]["outcome"], phases & {"restoring", "warming"}) == ("skipped", set()), status["reason"]


def test_a_restarted_daemon_checks_that_the_engine_still_answers(serving_pod: Pod):
    restart(serving_pod, signal.SIGTERM)
    assert serving_pod.daemon is not None
    golden = serving_pod.daemon.status()["golden"]
    assert golden["outcome"] == "passed", golden["sentence"]


def test_sigterm_ends_the_daemon_with_zero_and_leaves_the_engine_alone(serving_pod: Pod):
    assert serving_pod.daemon is not None
    assert serving_pod.engine is not None
    code = serving_pod.daemon.stop()
    assert (code, serving_pod.engine.runs) == (0, True)
    serving_pod.replace_daemon(proven=True)


def test_an_engine_that_nobody_has_proven_is_warmed_by_a_restarted_daemon(serving_pod: Pod):
    daemon = serving_pod.replace_daemon(proven=False)
    status = daemon.wait_until_ready(PATIENCE_S * 3)
    phases = [stay["phase"] for stay in status["timeline"]]
    assert ("warming" in phases, status["restore"]["outcome"]) == (True, "skipped"), status["reason"]
