"""An engine that is not ready and makes no progress is told, with what was looked at; one that moves is not."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.held_locks import HeldLocks
from sidecar.lifecycle import Phase
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.progress import MEMORY_STEP, ProgressWatch
from sidecar.warmup.tree_watch import Look, TreeWatch
from tests.fakes.live_cache import put
from tests.unit.supervised import make_pod, observe, told

BUSY = {"gpus": [{"utilization_ratio": 1.0, "memory_used_bytes": 60 << 30}]}


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    found = make_pod(tmp_path)
    found.board.enter(Phase.WARMING)
    observe(found, progress=100.0, running=4.0)
    return found


async def look(watch: ProgressWatch, *times: float) -> None:
    for at in times:
        await watch.look(at)


async def test_a_warm_up_without_progress_is_told_once_and_is_the_reason(pod: Pod) -> None:
    watch = ProgressWatch(pod, 120)
    await look(watch, 10, 129)
    assert told(pod) == ""
    await look(watch, 131, 140)
    assert told(pod).count("No forward progress for 121 s with requests under way") == 1
    assert "No forward progress for 130 s" in pod.board.reason
    assert pod.board.engine["no_progress"] == pod.board.reason
    assert pod.metrics.value("no_progress_seconds") == 130


def kernel(pod: Pod) -> None:
    folder = Path(pod.live_cache, "triton", "A")
    folder.mkdir(parents=True)
    (folder / "k.cubin").write_bytes(b"x")


@contextlib.contextmanager
def locked(pod: Pod, name: str) -> Iterator[None]:
    with open(put(Path(pod.live_cache, name), b"")) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def grow(pod: Pod, size: int) -> None:
    Path(pod.live_cache, "triton", "A", "k.cubin").write_bytes(b"x" * size)


CHANGES: dict[str, Callable[[Pod], Any]] = {
    "token": lambda pod: observe(pod, progress=101.0, running=4.0),
    "answer": lambda pod: setattr(pod.board, "warmup", {"requests": 7}),
    "compile line": lambda pod: setattr(pod, "jit_lines", 1),
    "kernel file": kernel,
    "memory": lambda pod: setattr(pod.board, "gpu", {"gpus": [{"memory_used_bytes": MEMORY_STEP * 900}]}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_any_sign_of_progress_starts_the_count_anew(pod: Pod, change: str) -> None:
    watch = ProgressWatch(pod, 120)
    await look(watch, 10, 15)
    CHANGES[change](pod)
    await look(watch, 125, 200)
    assert told(pod) == ""
    assert pod.metrics.value("no_progress_seconds") == 0


async def test_a_file_that_grows_in_its_place_is_progress(pod: Pod) -> None:
    kernel(pod)
    watch = ProgressWatch(pod, 120)
    await look(watch, 10, 15, 20)
    for at in (131, 252):
        grow(pod, at)
        await look(watch, at)
        assert told(pod) == ""
    await look(watch, 373)
    assert "No forward progress for 121 s" in told(pod)


async def test_a_disk_that_hangs_does_not_let_a_held_lock_seem_gone(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, answers = ProgressWatch(pod, 120), threading.Event()
    with locked(pod, "flashinfer/x.lock"), monkeypatch.context() as hung:
        await look(watch, 10)
        hung.setattr(watch._asking, "_deadline_s", 0.01)
        hung.setattr(HeldLocks, "look", lambda *_: answers.wait(30) and {})
        await look(watch, 140)
        answers.set()
    assert "No forward progress for 130 s" in told(pod)
    assert "flashinfer/x.lock was held" in told(pod)


async def test_files_that_a_look_found_too_late_are_progress_all_the_same(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, answers, looked = ProgressWatch(pod, 120), threading.Event(), TreeWatch.look

    def slow(self: TreeWatch, *, thorough: bool) -> Look:
        found = looked(self, thorough=thorough)
        answers.wait(30)
        return found

    await look(watch, 10, 15)
    kernel(pod)
    with monkeypatch.context() as hung:
        hung.setattr(watch._looking, "_deadline_s", 0.01)
        hung.setattr(TreeWatch, "look", slow)
        await look(watch, 100)
        assert watch._looking.late
        answers.set()
    await look(watch, 125)
    await look(watch, 240)
    assert told(pod) == ""


@pytest.mark.parametrize("phase", [Phase.WARMING, Phase.VERIFYING])
async def test_a_wait_with_nothing_sent_is_no_stall(pod: Pod, phase: Phase) -> None:
    watch = ProgressWatch(pod, 120)
    pod.board.enter(phase)
    pod.resting = True
    await look(watch, 10, 500)
    assert told(pod) == ""
    pod.resting = False
    await look(watch, 510, 620)
    assert told(pod) == ""
    await look(watch, 640)
    assert "No forward progress" in told(pod)


async def test_a_stall_that_ends_is_taken_back(pod: Pod) -> None:
    watch = ProgressWatch(pod, 120)
    await look(watch, 10, 140)
    observe(pod, progress=101.0, running=4.0)
    await look(watch, 145)
    assert pod.board.reason == pod.board.gate.sentence
    assert pod.board.engine["no_progress"] is None
    await look(watch, 300)
    assert told(pod).count("No forward progress") == 2


@pytest.mark.parametrize(("gpu", "tells"), [(BUSY, True), ({}, False), ({"gpus": [{"utilization_ratio": 0.0}]}, False)])
async def test_an_engine_that_starts_is_only_judged_by_gpus_that_are_busy_for_nothing(
    pod: Pod, gpu: dict[str, Any], tells: bool
) -> None:
    pod.board.enter(Phase.AWAITING_ENGINE)
    pod.board.engine = {"attempt": "a"}
    pod.board.gpu = gpu
    await look(ProgressWatch(pod, 120), 10, 200)
    assert ("while the engine starts" in told(pod)) is tells
    assert ("GPU 100 % busy" in told(pod)) is tells


@pytest.mark.parametrize("phase", [Phase.READY, Phase.SUSPENDED, Phase.AWAITING_LAUNCHER, Phase.RESTORING])
async def test_in_other_phases_nothing_is_expected(pod: Pod, phase: Phase) -> None:
    pod.board.enter(phase)
    pod.board.gpu = BUSY
    await look(ProgressWatch(pod, 120), 10, 1000)
    assert told(pod) == ""
