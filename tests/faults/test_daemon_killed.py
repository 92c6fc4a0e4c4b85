"""SIGKILL of the daemon in every phase: no half cache, the engine goes on, and the next daemon makes the pod ready."""

from __future__ import annotations

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
    start_again(pod)
    assert pod.daemon.status()["restore"]["outcome"] == "hit"
    assert set(planted.states(pod.place.live_cache).values()) == {"whole"}
    assert not any(staging.glob("*/*/*"))
