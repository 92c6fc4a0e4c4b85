"""A pod without Kubernetes for the GPU bench: a daemon, and a container that starts its engine through the launcher.

What is measured with it, and what traffic it gets, is not known here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

LAUNCHER_S = 60.0
END_S = 30.0


def environment_of(work: Path, port: int, engine_url: str) -> dict[str, str]:
    """Give the environment of both processes, with this checkout's code and folders of `work`, and no settings of the gate."""
    return os.environ | {
        "PYTHONPATH": f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}",
        "HOME": str(work / "home"), "TMPDIR": str(work / "tmp"), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "WARMUP_LIVE_CACHE": str(work / "live"), "WARMUP_STORE": str(work / "store"),
        "WARMUP_CONTROL_DIR": str(work / "control"), "WARMUP_LISTEN": f"127.0.0.1:{port}",
        "WARMUP_ENGINE_URL": engine_url, "WARMUP_LOG_FORMAT": "text", "WARMUP_DRAIN_S": "1", "WARMUP_SETTLE_S": "1",
    }  # fmt: skip


class Pod:
    """Both processes write into one log; `tend` is to be called again and again, as a kubelet looks after its containers."""

    def __init__(self, engine: Sequence[str], control: Path, environment: Mapping[str, str], log: Path) -> None:
        self._engine, self._launcher, self._environment, self._log = engine, control / "launcher.py", environment, log
        self._daemon = self._process([sys.executable, "-P", "-m", "sidecar", "run"])
        self._container: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def tend(self) -> bool:
        """Start the container when it does not run and the launcher lies there; False when the daemon has ended."""
        ended = self._container is None or self._container.poll() is not None
        if ended and self._launcher.exists():
            self._container = self._process([sys.executable, str(self._launcher), "--", *self._engine])
            self.starts += 1
        return self._daemon.poll() is None

    @property
    def daemon(self) -> int:
        """Give the daemon's process id."""
        return self._daemon.pid

    def kill_engine(self) -> float:
        """Kill the engine's own processes (SIGKILL), not the launcher; give the moment (monotonic seconds)."""
        assert self._container is not None
        victims = psutil.Process(self._container.pid).children(recursive=True)
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return time.monotonic()

    def end(self) -> None:
        """End the container, then the daemon."""
        for process in (self._container, self._daemon):
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _process(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=dict(self._environment),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
