"""SIGKILL of the daemon in every phase: no half cache, the engine goes on, and the next daemon makes the pod ready."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from tests.faults.planted import Planted
from tests.faults.rig import PATIENCE_S, Pod, descendants, runs, throughout, until

#: Enough for an output check of some seconds: its answers are longer than those of the warm-up.
SLOW_TOKENS = 0.05


def start_again(pod: Pod) -> None:
    """Start the next daemon and wait until the pod is ready; no family may be half there at any time."""
    daemon = pod.start_daemon()
    daemon.wait_until_ready(PATIENCE_S)


def whole_or_empty(pod: Pod, planted: Planted) -> bool:
    return all(state in ("whole", "empty") for state in planted.states(pod.place.live_cache).values())


def test_killed_while_it_waits_for_the_launcher(pod: Pod, planted: Planted):
    pod.start_daemon().caught_in("awaiting_launcher")
    pod.daemon.kill()
    container = pod.start_container()
    start_again(pod)
    assert container.process.poll() is None
    assert pod.daemon.status()["restore"]["outcome"] == "hit"
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_while_it_stages_files(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container()
    staging = pod.place.live_cache / ".staging"
    until(lambda: any(staging.glob("*/triton*/*")), "staged files")
    workers = descendants(daemon.process.pid)
    daemon.kill()
    assert whole_or_empty(pod, planted)
    until(lambda: not any(runs(pid) for pid in workers), "the end of the worker")
    # It ended with its daemon and not when all was staged.
    assert sum(path.is_file() for path in staging.rglob("*")) < sum(map(len, planted.families.values()))
    start_again(pod)
    assert pod.daemon.status()["restore"]["outcome"] == "hit"
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}
    assert not any(staging.glob("*/*/*"))


def test_killed_while_the_engine_loads(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container(load_seconds=2)
    daemon.caught_in("awaiting_engine")
    engine = pod.engine_pid()
    daemon.kill()
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}
    start_again(pod)
    assert pod.engine_pid() == engine
    assert len(pod.attempts()) == 1
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_while_it_warms_up(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container(generation="hang")
    daemon.caught_in("warming")
    until(lambda: pod.engine()["counters"]["running"], "a warm-up request")
    engine = pod.engine_pid()
    daemon.kill()
    pod.tell_engine(generation="ok")
    start_again(pod)
    assert pod.engine_pid() == engine
    assert pod.daemon.status()["warmup"]["outcome"] == "converged"
    assert pod.engine()["counters"]["aborted"] == 1
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_while_it_checks_the_output(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container(token_seconds=SLOW_TOKENS)
    daemon.caught_in("verifying")
    daemon.kill()
    pod.tell_engine(token_seconds=0)
    start_again(pod)
    assert pod.daemon.status()["golden"]["outcome"] == "passed"
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_when_ready_the_next_daemon_adopts_the_engine_within_5_seconds(pod: Pod, planted: Planted):
    pod.start()
    engine, requests = pod.engine_pid(), pod.engine()["counters"]["texts"]
    pod.daemon.kill()
    began = time.monotonic()
    start_again(pod)
    assert time.monotonic() - began < 5
    status = pod.daemon.status()
    assert (status["restore"]["outcome"], status["flagged"]) == ("skipped", False)
    assert "Adopted" in status["reason"]
    assert pod.engine()["counters"]["texts"] == requests + 1
    assert pod.engine_pid() == engine
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_when_ready_an_engine_that_was_replaced_meanwhile_is_not_adopted(pod: Pod):
    pod.start()
    pod.daemon.kill()
    pod.container.close()
    pod.start_container({"WARMUP_LAUNCHER_ALONE_S": "0"})
    until(pod.engine_answers, "the next engine")
    start_again(pod)
    assert "Adopted" not in pod.daemon.status()["reason"]
    assert pod.daemon.status()["warmup"]["outcome"] == "converged"


def test_killed_when_ready_an_engine_is_not_adopted_that_took_the_port_of_the_proven_one_unseen(pod: Pod):
    """Beside mode: no launcher tells one engine from the next, only the identity in its metrics."""
    daemon = pod.start_daemon(launcher="false", store=None)
    engine = pod.start_bare_engine()
    daemon.wait_until_ready(PATIENCE_S)
    daemon.kill()
    engine.kill()
    engine.wait()
    pod.start_bare_engine()
    daemon = pod.start_daemon(launcher="false", store=None)
    daemon.wait_until_ready(PATIENCE_S)
    assert "Adopted" not in daemon.status()["reason"]


def test_killed_when_suspended(pod: Pod, planted: Planted):
    daemon = pod.start_daemon(on_golden_failed="hold")
    pod.start_container(generation="repeat")
    daemon.caught_in("suspended")
    engine = pod.engine_pid()
    daemon.kill()
    pod.tell_engine(generation="ok")
    start_again(pod)
    assert pod.engine_pid() == engine
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_killed_while_it_drains(pod: Pod):
    daemon = pod.start()
    pod.sidecar("drain")
    daemon.caught_in("draining")
    daemon.kill()
    start_again(pod)
    assert "Adopted" not in pod.daemon.status()["reason"]


def test_killed_while_it_publishes_leaves_a_store_that_the_next_pod_restores(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container(bucket_tokens=4)
    # Noted before the worker has written anything, and it has some hundred files to look through.
    until(lambda: daemon.status()["publish"]["outcome"] == "running", "a publish")
    daemon.kill()
    pod.container.close()
    pod.start_container()
    start_again(pod)
    assert pod.daemon.status()["restore"]["outcome"] in ("hit", "partial", "kept")
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}


def test_a_daemon_that_hangs_keeps_the_engine_waiting_no_longer_than_the_cap(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    daemon.caught_in("awaiting_launcher")
    daemon.kill(signal.SIGSTOP)
    began = time.monotonic()
    pod.start_container({"WARMUP_LAUNCHER_WAIT_S": "2"})
    pod.engine_pid()
    assert 1.9 < time.monotonic() - began < 20
    assert pod.decision()["by"] == "launcher"
    assert set(planted.states(pod.place.live_cache).values()) == {"empty"}
    daemon.kill(signal.SIGCONT)
    daemon.wait_until_ready(PATIENCE_S)
    assert whole_or_empty(pod, planted)


def test_a_daemon_that_hangs_while_restoring_is_late_and_touches_nothing(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container({"WARMUP_LAUNCHER_WAIT_S": "2"})
    # The worker first: it may have ended before the daemon is stopped, and then there is nothing to be late with.
    workers = until(lambda: descendants(daemon.process.pid, "sidecar.caches.worker"), "a worker")
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    daemon.kill(signal.SIGSTOP)
    assert pod.decision()["by"] == "launcher"
    pod.engine_pid()
    daemon.kill(signal.SIGCONT)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["restore"]["outcome"] == "late"
    assert set(planted.states(pod.place.live_cache).values()) == {"empty"}


def test_a_restore_that_hangs_is_ended_when_the_launcher_went_on_without_it(pod: Pod, planted: Planted):
    daemon = pod.start_daemon()
    pod.start_container({"WARMUP_LAUNCHER_WAIT_S": "2"})
    # By its name: stopped before it has become the worker, it would hold up the daemon that is starting it.
    workers = until(lambda: descendants(daemon.process.pid, "sidecar.caches.worker"), "a worker")
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    assert pod.decision()["by"] == "launcher"
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["restore"]["outcome"] == "late"
    assert 'warmup_sidecar_restore_outcome_total{outcome="late"} 1.0' in daemon.get("/metrics")[1]
    assert not any(runs(pid) for pid in workers)
    assert set(planted.states(pod.place.live_cache).values()) == {"empty"}


def test_a_daemon_that_died_keeps_the_engine_waiting_no_longer_than_its_return_may_take(pod: Pod):
    pod.start_daemon().caught_in("awaiting_launcher")
    pod.daemon.kill()
    began = time.monotonic()
    pod.start_container({"WARMUP_LAUNCHER_ALONE_S": "1"})
    pod.engine_pid()
    assert time.monotonic() - began < 5
    assert "gone" in pod.decision()["why"]
    throughout(0.5, lambda: pod.container.process.poll() is None, "a launcher that stays with its engine")
