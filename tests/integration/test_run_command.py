"""`run -- vllm serve …`: the daemon starts the engine as its child; its store does not exist."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sidecar.demo.processes import tree_of
from tests.integration.pod import END_S, HEALTH_S, READY_S, Pod
from tests.integration.stories import Status

#: The exit code of vLLM's argument parser.
WRONG_USE = 2


@dataclass(frozen=True)
class Child:
    """A child engine beside a store that is missing, ready, and then ended with SIGTERM."""

    store: Path
    ready: Status
    processes: tuple[psutil.Process, ...]
    code: int
    left: tuple[psutil.Process, ...]


@pytest.fixture(scope="module")
def child(child_pod: Pod) -> Child:
    """Run vLLM as a child until it is ready, then end the daemon. Without graphs, which would take a minute more."""
    store = child_pod.workplace.root / "not-mounted" / "store"
    daemon = child_pod.start_daemon(command=child_pod.serve("--enforce-eager"), store=store)
    ready = daemon.wait_until_ready(READY_S)
    processes = tuple(tree_of(daemon.process.pid))
    code = daemon.stop(END_S)
    left = tuple(each for each in processes if each.is_running())
    for each in left:
        with suppress(psutil.Error):
            each.kill()
    return Child(store, ready, processes, code, left)


def test_an_engine_that_the_daemon_starts_is_warmed_and_ready(child: Child):
    found = (child.ready["mode"], child.ready["warmup"]["outcome"], child.ready["flagged"])
    assert found == ("child", "converged", False), child.ready["reason"]


def test_the_status_says_that_the_store_is_missing(child: Child):
    restore = child.ready["restore"]
    assert (restore["outcome"], str(child.store) in restore["sentence"]) == ("failed", True), restore["sentence"]


def test_a_missing_store_is_not_made(child: Child):
    assert not child.store.exists()


def test_sigterm_ends_the_daemon_with_zero(child: Child):
    assert child.code == 0


def test_no_process_of_the_engine_outlives_the_daemon(child: Child):
    assert len(child.processes) > 2, "launcher and engine were to be among the daemon's processes"
    assert child.left == ()


def test_the_daemon_ends_with_the_exit_code_of_an_engine_that_cannot_start(child_pod: Pod, child: Child):
    daemon = child_pod.start_daemon(command=child_pod.serve("--no-such-flag"))
    assert daemon.process.wait(HEALTH_S) == WRONG_USE, daemon.last_lines()
