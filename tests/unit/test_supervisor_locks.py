"""An engine that sits in a compile lock while it starts is told with the lock's name; one that compiles on is not."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from sidecar.lifecycle import Phase
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.progress import ProgressWatch
from tests.fakes.live_cache import put
from tests.unit.supervised import make_pod, told


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    found = make_pod(tmp_path)
    found.board.enter(Phase.AWAITING_ENGINE)
    found.board.engine = {**found.board.engine, "attempt": "1-1-aa"}
    return found


@pytest.fixture
def lock(pod: Pod) -> Path:
    return put(Path(pod.live_cache, "flashinfer/cached_ops/tmp/x.lock"), b"")


@pytest.fixture
def holder(lock: Path) -> Iterator[IO[bytes]]:
    with lock.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


async def test_an_engine_that_starts_and_sits_in_a_compile_lock_is_told_with_the_locks_name(
    pod: Pod, lock: Path, holder: IO[bytes]
) -> None:
    watch = ProgressWatch(pod, 120)
    for at in (10, 70, 131):
        await watch.look(at)
    assert "No forward progress for 121 s while the engine starts" in told(pod)
    assert f"{lock} was held: the engine may be stuck in a compile lock" in told(pod)
    assert pod.metrics.value("no_progress_seconds") == 121
    fcntl.flock(holder, fcntl.LOCK_UN)
    await watch.look(140)
    assert pod.metrics.value("no_progress_seconds") == 0


async def test_an_engine_that_starts_with_no_lock_held_is_not_told(pod: Pod) -> None:
    watch = ProgressWatch(pod, 120)
    for at in (10, 131, 500):
        await watch.look(at)
    assert told(pod) == ""
