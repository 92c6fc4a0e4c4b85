"""The engine or its launcher dies in every phase: unready within 2 s, and the next start of the container is ready again."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.rig import PATIENCE_S, PROFILE, Pod, runs, throughout, until

#: DESIGN §3, "When ready is withdrawn".
UNREADY_S = 2.0


def kill_engine(pod: Pod) -> None:
    os.kill(pod.engine_pid(), signal.SIGKILL)
    pod.container.process.wait(PATIENCE_S)


def kill_launcher(pod: Pod) -> None:
    engine = pod.engine_pid()
    pod.container.kill()
    pod.container.process.wait(PATIENCE_S)
    # It follows its launcher, so that nobody answers whom nobody watches.
    until(lambda: not runs(engine), "the end of the engine")


WHO = pytest.mark.parametrize("kill", [kill_engine, kill_launcher], ids=["engine", "launcher"])


def next_start_is_ready(pod: Pod) -> None:
    pod.start_container()
    pod.daemon.wait_until_ready(PATIENCE_S)
    assert pod.daemon.status()["warmup"]["outcome"] == "converged"
    assert pod.daemon.status()["flagged"] is False


@WHO
def test_killed_when_ready(pod: Pod, kill):
    daemon = pod.start()
    began = time.monotonic()
    kill(pod)
    assert daemon.unready_after(began) < UNREADY_S
    next_start_is_ready(pod)
    assert daemon.status()["engine"]["restarts"] == 1


@WHO
def test_killed_while_loading(pod: Pod, kill):
    daemon = pod.start_daemon()
    pod.start_container(load_seconds=60)
    daemon.caught_in("awaiting_engine")
    kill(pod)
    daemon.caught_in("awaiting_launcher")
    next_start_is_ready(pod)


@WHO
def test_killed_while_being_warmed(pod: Pod, kill):
    daemon = pod.start_daemon()
    pod.start_container(generation="hang")
    daemon.caught_in("warming")
    kill(pod)
    daemon.caught_in("awaiting_launcher")
    pod.start_container()
    daemon.wait_until_ready(PATIENCE_S)
    # What was sent when the engine died may have killed it: whether it is sent again is another test's claim.
    assert daemon.status()["warmup"]["outcome"] in ("converged", "exhausted")


def test_a_request_during_which_engines_were_killed_twice_is_not_sent_to_the_next_one(pod: Pod):
    pod.profile.write_text(PROFILE.replace("17", "1000"))
    daemon = pod.start_daemon()
    for _ in range(2):
        pod.start_container(die_on_tokens=900)
        assert pod.container.process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    pod.start_container(die_on_tokens=900)
    daemon.wait_until_ready(PATIENCE_S)
    status = daemon.status()
    assert (status["warmup"]["outcome"], status["flagged"]) == ("exhausted", True)
    assert status["warmup"]["killers"] == ["prefill/1000"]


@WHO
def test_killed_while_its_output_is_checked(pod: Pod, kill):
    daemon = pod.start_daemon()
    pod.start_container(token_seconds=0.1)
    daemon.caught_in("verifying")
    kill(pod)
    daemon.caught_in("awaiting_launcher")
    next_start_is_ready(pod)


@WHO
def test_killed_while_suspended(pod: Pod, kill):
    daemon = pod.start_daemon(on_golden_failed="hold")
    pod.start_container(generation="repeat")
    daemon.caught_in("suspended")
    kill(pod)
    daemon.caught_in("awaiting_launcher")
    next_start_is_ready(pod)


@WHO
def test_killed_while_draining(pod: Pod, kill):
    daemon = pod.start()
    pod.sidecar("drain")
    daemon.caught_in("draining")
    kill(pod)
    daemon.caught_in("awaiting_launcher")
    next_start_is_ready(pod)


def test_the_launcher_killed_while_it_waits_for_the_restore(pod: Pod, planted):
    daemon = pod.start_daemon()
    container = pod.start_container()
    daemon.caught_in("restoring")
    container.kill()
    container.process.wait(PATIENCE_S)
    next_start_is_ready(pod)
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_an_engine_that_ends_with_code_0_after_ready_is_gone_all_the_same(pod: Pod):
    daemon = pod.start()
    began = time.monotonic()
    # The scripted engine ends with 0 then, as vLLM does.
    os.kill(pod.engine_pid(), signal.SIGTERM)
    assert daemon.unready_after(began) < UNREADY_S
    assert pod.container.process.wait(PATIENCE_S) == 0
    assert "code 0" in daemon.told("The engine ended")
    next_start_is_ready(pod)


def test_an_engine_whose_end_nobody_reports_is_gone_when_its_port_refuses(pod: Pod):
    daemon = pod.start_daemon(launcher="false", store=None)
    engine = pod.start_bare_engine()
    daemon.wait_until_ready(PATIENCE_S)
    began = time.monotonic()
    engine.kill()
    assert daemon.unready_after(began) < UNREADY_S
    assert daemon.status()["phase"] == "awaiting_engine"
    engine.wait()
    pod.start_bare_engine()
    daemon.wait_until_ready(PATIENCE_S)


def test_an_engine_replaced_between_two_looks_is_warmed_again(pod: Pod):
    """Beside mode, where nobody reports the end: only the identity in its metrics tells."""
    daemon = pod.start_daemon(launcher="false", store=None)
    engine = pod.start_bare_engine()
    daemon.wait_until_ready(PATIENCE_S)
    seen = daemon.status()["engine"]["identity"]
    # A look takes milliseconds and they are a second apart: the port is back before the next.
    with ThreadPoolExecutor(1) as beside:
        engine.kill()
        # Beside the start, which takes its time on a busy machine.
        unready = beside.submit(daemon.unready_after, time.monotonic())
        pod.start_bare_engine()
        assert unready.result() < UNREADY_S
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["engine"]["identity"] != seen
    assert pod.engine()["counters"]["texts"] > 0


def test_a_container_that_is_asked_to_end_turns_unready_and_serves_what_is_in_flight(pod: Pod):
    daemon = pod.start(drain_s=20)
    pod.tell_engine(generation="hang")
    with pod.request_in_flight():
        began = time.monotonic()
        pod.container.kill(signal.SIGTERM)
        assert daemon.unready_after(began) < UNREADY_S
        assert daemon.status()["phase"] == "draining"
        throughout(1, lambda: pod.container.process.poll() is None, "an engine that serves what is in flight")
    assert pod.container.process.wait(PATIENCE_S) == 0
