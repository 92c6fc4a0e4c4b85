"""A disk that takes seconds for what is written beside a start: probes are answered meanwhile, and the pod gets ready."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.disk import Mount
from tests.faults.rig import PATIENCE_S, Daemon, Pod, until

#: A disk that still writes down what was restored lets a small file wait for so long.
STALL_S = 8.0
#: Above what a busy machine takes for an answer, and far below the stall.
ANSWERED_S = 4.0


@contextlib.contextmanager
def probed(daemon: Daemon) -> Iterator[list[float]]:
    """Ask the liveness probe again and again; gives the seconds of each answer so far."""
    took, over = list[float](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            assert daemon.get("/livez", PATIENCE_S)[0] == 200
            took.append(time.monotonic() - began)
            over.wait(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield took
    finally:
        over.set()
        asking.join()


@pytest.mark.parametrize("operation", ["create", "fsync", "rename"])
def test_a_live_cache_on_a_disk_that_stalls_does_not_hold_up_the_probes(pod: Pod, operation: str) -> None:
    pod.place.live_cache.mkdir()
    mount = Mount(root=pod.place.live_cache, faults=(f"{operation}:h{STALL_S}:1:0:warmup-",), log=pod.root / "disk.log")
    daemon = pod.start_daemon(wrapper=mount.command())
    with probed(daemon) as took:
        pod.start_container()
        daemon.wait_until_ready(PATIENCE_S)
        marked = pod.place.live_cache / ".warmup-live.json"
        until(marked.exists, "the marker of the live cache")
    assert mount.log is not None
    assert f"{operation} " in mount.log.read_text()
    assert max(took) < ANSWERED_S, sorted(took)[-5:]


def test_a_daemon_ends_when_it_is_told_although_the_live_cache_hangs(pod: Pod) -> None:
    pod.place.live_cache.mkdir()
    mount = Mount(root=pod.place.live_cache, faults=("readdir:h600:1:0:inductor",), log=pod.root / "disk.log")
    assert mount.log is not None
    daemon = pod.start_daemon(wrapper=mount.command(), restore_timeout_s=2)
    pod.start_container()
    pod.engine_pid()
    daemon.caught_in("warming")
    until(lambda: "inductor" in mount.log.read_text(), "a look that hangs")  # type: ignore[union-attr]
    assert daemon.get("/livez")[0] == 200
    daemon.kill(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == 0
