"""The daemon under measurement: its process, its scripted engine, its directories, and what the kernel says of it.

What is measured, and what it is compared with, is not known here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from tests.bench.probing import ask

#: Nothing that is waited for here takes longer than this. Seconds.
LIMIT_S = 600.0


def free_port() -> int:
    """Find a port of the loopback interface that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Subject:
    """One daemon with directories of its own under `root`; `with` ends it. It can be started again afterwards.

    `script` are knobs of the scripted engine, `settings` more WARMUP_ variables of the daemon.
    """

    def __init__(self, root: Path, script: Mapping[str, Any] | None = None, **settings: str) -> None:
        self.root, self.control, self.live = root, root / "control", root / "live"
        root.mkdir(parents=True, exist_ok=True)
        self.port, self.engine_port = free_port(), free_port()
        knobs = json.dumps(dict(script or {}))
        self.engine = (sys.executable, "-m", "tests.fakes.engine", "--port", str(self.engine_port), "--script", knobs)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")},
            "WARMUP_CONTROL_DIR": str(self.control),
            "WARMUP_LIVE_CACHE": str(self.live),
            "WARMUP_LISTEN": f"127.0.0.1:{self.port}",
            "WARMUP_ENGINE_URL": f"http://127.0.0.1:{self.engine_port}",
            "WARMUP_LOG_LEVEL": "error",
            "WARMUP_GPU_INTERVAL_S": "0",
            "WARMUP_SETTLE_S": "0",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log = root / "log.txt"

    def start(self, *, engine: bool) -> Self:
        """Start the daemon, with the scripted engine as its child or beside a port on which nothing answers."""
        command = ("--", *self.engine) if engine else ()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sidecar", "run", *command], env=self.environment, stdout=log, stderr=log
            )
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the daemon, and with it its child."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    @property
    def process(self) -> psutil.Process:
        """Give the daemon's process."""
        assert self._process is not None, "the daemon is not running"
        return psutil.Process(self._process.pid)

    def cpu_s(self) -> float:
        """Give the CPU seconds that the daemon has used, user and system, without its children's."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss(self) -> int:
        """Give the daemon's resident bytes now."""
        return int(self.process.memory_info().rss)

    def wait(self, path: str, pause_s: float = 0.01) -> float:
        """Ask a path again and again until it answers 200; give the wall-clock second at which it had."""
        return self.until(lambda: ask(self.port, path) == 200, f"{path} did not turn 200", pause_s)

    def until(self, reached: Any, complaint: str, pause_s: float = 0.1) -> float:
        """Wait until a callable gives something true; give the wall-clock second. Exits with the complaint."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if reached():
                return time.time()
            time.sleep(pause_s)
        raise SystemExit(f"{complaint} within {LIMIT_S:g} s; the daemon's log:\n{self._log.read_text()[-2000:]}")

    def status(self) -> dict[str, Any]:
        """Read the daemon's /status."""
        return _read(f"http://127.0.0.1:{self.port}/status")

    def stay(self, phase: str) -> tuple[float, float]:
        """Give begin and end of the last stay in a phase, in wall-clock seconds."""
        spans = [span for span in self.status()["timeline"] if span["phase"] == phase]
        if not spans:
            raise SystemExit(f"the daemon was never {phase}; the daemon's log:\n{self._log.read_text()[-2000:]}")
        return spans[-1]["since"], spans[-1]["since"] + spans[-1]["seconds"]

    def engine_record(self) -> dict[str, Any]:
        """Read what the scripted engine has noted about itself and its requests."""
        return _read(f"http://127.0.0.1:{self.engine_port}/__script__")

    def settle(self) -> None:
        """Wait until the pod is ready and its first publish is over, so that nothing is under way any more."""
        self.wait("/readyz", 0.1)
        self.until(lambda: self.status()["publish"]["outcome"] not in ("pending", "running"), "publishing did not end")
        time.sleep(1.0)


def _read(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
