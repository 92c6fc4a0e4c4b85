"""A real `warmup-sidecar run` as a child process, and its probes and status as a test reads them.

Nothing is asserted here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sidecar.config import variable

#: Seconds between two looks. Short against everything that is waited for, long against the cost of a look.
LOOK_EVERY = 0.05


@dataclass(frozen=True)
class Directories:
    """The three directories of one pod."""

    live_cache: Path
    store: Path
    control: Path


class SidecarProcess:
    """One daemon. Started by `with`; ended with SIGTERM, after 10 s with SIGKILL, when the block ends.

    `environment` is what it gets besides its settings, by default ours; `prefix` are words before its command.
    """

    def __init__(
        self,
        directories: Directories,
        log: Path,
        settings: Mapping[str, object],
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        given = {
            "live_cache": directories.live_cache,
            "store": directories.store,
            "control_dir": directories.control,
            **settings,
        }
        self.log = log
        self.url = f"http://{given['listen']}"
        around = os.environ if environment is None else environment
        self._environment = {name: value for name, value in around.items() if not name.startswith("WARMUP_")}
        self._environment |= {variable(name): str(value) for name, value in given.items()}
        run = [sys.executable, "-m", "sidecar.cli", "run"]
        self._command = [*prefix, *run, *(["--", *command] if command else [])]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Give the child process."""
        assert self._process is not None, "the daemon is started by `with`"
        return self._process

    def __enter__(self) -> Self:
        root = Path(__file__).resolve().parents[1]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, deadline_s: float = 10) -> int:
        """End the daemon with SIGTERM and give its exit status; its whole group is gone afterwards."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def get(self, path: str, deadline_s: float = 5) -> tuple[int, str]:
        """Ask one path; give status code and body, or 0 and the reason when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=deadline_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def status(self) -> dict[str, Any]:
        """Give `/status`, or an empty mapping while nobody answers."""
        code, body = self.get("/status")
        answer = json.loads(body) if code == 200 else {}
        assert isinstance(answer, dict)
        return answer

    def wait_for(self, holds: Callable[[dict[str, Any]], bool], deadline_s: float, what: str) -> dict[str, Any]:
        """Look at `/status` until `holds` says so; past the deadline fail with status and the log's end."""
        ends = time.monotonic() + deadline_s
        while True:
            status = self.status()
            if status and holds(status):
                return status
            ended = self.process.poll()
            if ended is not None or time.monotonic() > ends:
                why = f"the daemon ended with {ended}" if ended is not None else f"not within {deadline_s:.0f} s"
                shown = json.dumps({key: status.get(key) for key in ("phase", "ready", "reason", "degraded")})
                raise AssertionError(f"{what}: {why}. Status: {shown}. Log: {self.last_lines()}")
            time.sleep(LOOK_EVERY)

    def wait_for_phase(self, phase: str, deadline_s: float) -> dict[str, Any]:
        """Wait until the daemon is in a phase and give its status."""
        return self.wait_for(lambda status: status["phase"] == phase, deadline_s, f"phase {phase}")

    def wait_until_ready(self, deadline_s: float) -> dict[str, Any]:
        """Wait until traffic may come and give the status."""
        return self.wait_for(lambda status: bool(status["ready"]), deadline_s, "ready")

    def last_lines(self, count: int = 20) -> str:
        """Give the end of the daemon's log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
