"""A worker of a multi-pod engine beside its leader, both as real processes: ready, unready and published with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.rig import PATIENCE_S, Pod, throughout, until

#: The leader notices the loss of its engine within 2 s (DESIGN §3); its worker asks every second.
FOLLOWED_S = 4.0


@pytest.fixture
def worker(pod: Pod, tmp_path: Path) -> Pod:
    """A second pod of the same group; its live cache is its own, as on another node."""
    made = pod.neighbour()
    made.directories = made.directories.__class__(tmp_path / "worker-live", pod.directories.store, made.control)
    made.place = made.place.__class__(tmp_path / "worker-live", tmp_path / "worker.json", pod.place.home)
    return made


def start_worker(worker: Pod, leader: Pod) -> None:
    worker.start_daemon(group_leader=leader.listen, store=leader.directories.store)
    worker.start_container({"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"})


def test_a_worker_is_ready_with_its_leader_and_goes_with_it(pod: Pod, worker: Pod):
    start_worker(worker, pod)
    until(worker.engine_answers, "the worker's engine")
    assert "leader" in worker.daemon.told("leader")
    throughout(0.5, lambda: not worker.daemon.is_ready, "unready before the leader")

    pod.start()
    worker.daemon.wait_until_ready(PATIENCE_S)
    status = worker.daemon.status()
    assert f"Follows the leader at http://{pod.listen}" in status["reason"]
    assert worker.engine()["requests"] == [], "a worker sends no traffic"

    began = time.monotonic()
    os.kill(pod.engine_pid(), signal.SIGKILL)
    assert worker.daemon.unready_after(began) < FOLLOWED_S
    pod.start_container()
    worker.daemon.wait_until_ready(PATIENCE_S)


def test_a_worker_whose_own_engine_dies_is_unready_although_its_leader_is_ready(pod: Pod, worker: Pod):
    start_worker(worker, pod)
    pod.start()
    worker.daemon.wait_until_ready(PATIENCE_S)
    began = time.monotonic()
    os.kill(worker.engine_pid(), signal.SIGKILL)
    assert worker.daemon.unready_after(began) < FOLLOWED_S
    throughout(1.5, lambda: not worker.daemon.is_ready, "unready without an engine of its own")


def test_a_worker_publishes_the_cache_of_its_own_rank_and_goes_with_its_leaders_pod(pod: Pod, worker: Pod):
    start_worker(worker, pod)
    pod.start()
    worker.daemon.wait_until_ready(PATIENCE_S)

    def published() -> bool:
        return worker.daemon.status()["publish"]["outcome"] in ("published", "nothing_new")

    until(published, "the worker's publish")
    theirs, ours = (each.daemon.status()["restore"]["exact_key"] for each in (pod, worker))
    assert theirs != ours

    # The leader's whole pod is gone now, and not only its engine.
    began = time.monotonic()
    pod.daemon.kill()
    assert worker.daemon.unready_after(began) < FOLLOWED_S
