"""A log whose reader has stopped reading, as a container runtime's copier does on a full disk: nobody waits for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidecar.handshake.launcher_file import lay_launcher
from tests.faults.rig import PATIENCE_S, Pod, until


@dataclass
class StalledLog:
    """A pipe that is full, and whose reader reads when a test says so."""

    path: Path
    descriptor: int

    def command(self) -> list[str]:
        """Give a wrapper that makes the pipe the output of what it starts."""
        return ["sh", "-c", f'exec "$@" >"{self.path}" 2>&1', "sh"]

    def read(self) -> str:
        """Read what is in the pipe."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.descriptor, 1 << 20).decode()
        return ""


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[StalledLog]:
    path = tmp_path / "stalled"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"." * 4096)
    yield StalledLog(path, descriptor)
    os.close(descriptor)


def test_a_daemon_whose_log_nobody_reads_goes_on_and_says_later_what_is_missing(pod: Pod, stalled: StalledLog) -> None:
    daemon = pod.start_daemon(wrapper=stalled.command(), log_level="debug")
    container = pod.start_container()
    daemon.wait_until_ready(PATIENCE_S)
    container.close()
    daemon.unready_after(0)
    stalled.read()
    until(lambda: "The engine ended" in stalled.read(), "the log of what happened meanwhile")
    daemon.kill(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == 0


def test_an_engine_starts_and_ends_although_nobody_reads_its_log(pod: Pod, stalled: StalledLog) -> None:
    daemon = pod.start_daemon(drain_s=0)
    container = pod.start_container(wrapper=stalled.command())
    daemon.wait_until_ready(PATIENCE_S)
    container.kill(signal.SIGTERM)
    assert container.process.wait(PATIENCE_S) == 0


def test_an_engine_without_a_sidecar_starts_although_nobody_reads_its_log(tmp_path: Path, stalled: StalledLog) -> None:
    launcher, started = lay_launcher(tmp_path / "control"), tmp_path / "started"
    command = [*stalled.command(), sys.executable, str(launcher), "--", "touch", str(started)]
    launched = subprocess.Popen(command, env={**os.environ, "WARMUP_LAUNCHER_GRACE_S": "0.1"})
    try:
        assert launched.wait(PATIENCE_S) == 0
    finally:
        launched.kill()
        launched.wait()
    assert started.exists()


def test_a_daemon_with_its_own_engine_ends_although_nobody_reads_the_log(pod: Pod, stalled: StalledLog) -> None:
    daemon = pod.start_daemon(*pod.engine_command(), wrapper=stalled.command(), drain_s=0)
    daemon.wait_until_ready(PATIENCE_S)
    daemon.kill(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) in (0, 143)
