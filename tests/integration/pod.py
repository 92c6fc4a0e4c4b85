"""A pod of real processes: one live cache, one daemon, and a real vLLM behind the launcher in a process of its own.

Nothing is asserted here. What a test claims is in the test files, what happens in which order in `stories.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.processes import tree_of
from sidecar.demo.workplace import Workplace, free_ports, serve_command
from tests.sidecar_process import Directories, SidecarProcess

#: A start of vLLM on CPU takes 35 s with its caches and 85 s without, three times that on cores that others use too.
HEALTH_S = 300.0
#: A warm-up takes 5 s, on empty caches 20 s.
READY_S = HEALTH_S + 120.0
PUBLISH_S = 90.0
END_S = 30.0

API_KEY = "integration-key"

#: What the engine may load besides its own code.
PLUGINS = Path(__file__).parent / "engine_plugin"
LATE_FEATURE_WORDS = ("--logits-processors", "late_feature:LateFeature")


class EngineProcess:
    """`launcher.py -- vllm serve …` as the engine's container would run it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        """Say whether the launcher still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the container as the kernel does: no word to anybody, no process left."""
        known = tree_of(self._process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # psutil compares start times, so a pid that was given to somebody else meanwhile is left alone.
        for process in known:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait(END_S)
        psutil.wait_procs(known, timeout=END_S)

    def end(self) -> None:
        """End it as a kubelet does: SIGTERM, and SIGKILL for what is left after a while."""
        if self.runs:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self.kill()


class Pod:
    """One pod. Daemon and engine are started and ended one by one; the same folders and ports all along."""

    def __init__(self, root: Path, engine_paths: EnginePaths, model: Path, *serve: str) -> None:
        """Make the pod's folders below `root`, and choose its ports; `serve` are more words for `vllm serve`."""
        root.mkdir()
        self.workplace = Workplace(root, *free_ports(2))
        self.workplace.make_empty()
        self.key_file = root / "api-key"
        self.key_file.write_text(API_KEY, encoding="ascii")
        self._paths, self._model, self._serve = engine_paths, model, serve
        self._daemons = 0
        self.daemon: SidecarProcess | None = None
        self.engine: EngineProcess | None = None

    @property
    def live(self) -> Path:
        """Give the live cache."""
        return self.workplace.live

    @property
    def environment(self) -> dict[str, str]:
        """Give the environment of the engine's container, its API key included."""
        return {
            **self.workplace.environment(self._paths, os.environ),
            "VLLM_API_KEY": API_KEY,
            "PYTHONPATH": os.fspath(PLUGINS),
        }

    def serve(self, *more: str) -> list[str]:
        """Give the engine's command, without the launcher."""
        return [*serve_command(self._paths, self._model, self.workplace.engine_port), *self._serve, *more]

    def start_daemon(
        self, *, command: Sequence[str] = (), prefix: Sequence[str] = (), **settings: object
    ) -> SidecarProcess:
        """Start a daemon on the pod's folders; with a `command` it starts the engine itself."""
        self._daemons += 1
        given: dict[str, object] = {
            "listen": f"127.0.0.1:{self.workplace.sidecar_port}",
            "engine_url": self.workplace.engine_url,
            "api_key_file": self.key_file,
            "sm": "cpu",
            "gpu_interval_s": 0,
            "settle_s": 0,
            "drain_s": 5,
            "log_format": "text",
            **settings,
        }
        folders = Directories(self.live, Path(str(given.pop("store", self.workplace.store))), self.workplace.control)
        log = self.workplace.log(f"daemon-{self._daemons}")
        environment = self.environment if command else None
        self.daemon = SidecarProcess(folders, log, given, command, environment, prefix)
        return self.daemon.__enter__()

    def start_engine(self, *more: str) -> EngineProcess:
        """Start the engine behind the launcher which the daemon has laid down; `more` are words for `vllm serve`."""
        assert self.daemon is not None, "without a daemon there is no launcher"
        launcher = self.workplace.control / "launcher.py"
        self.daemon.wait_for(lambda _: launcher.exists(), END_S, "the launcher lies in the control directory")
        command = [os.fspath(self._paths.python), os.fspath(launcher), "--", *self.serve(*more)]
        self.engine = EngineProcess(command, self.environment, self.workplace.log("engine"))
        return self.engine

    def replace_daemon(self, *, proven: bool, **settings: Any) -> SidecarProcess:
        """Start another daemon beside the same engine; `proven`: it may find that this engine was proven before."""
        self.end_daemon()
        if not proven:
            (self.workplace.control / "proven.json").unlink(missing_ok=True)
        return self.start_daemon(**settings)

    def end_daemon(self) -> None:
        """End the daemon with SIGTERM."""
        if self.daemon is not None:
            self.daemon.stop()
        self.daemon = None

    def end(self) -> None:
        """End engine and daemon."""
        if self.engine is not None:
            self.engine.end()
        self.engine = None
        self.end_daemon()

    def move_to_another_node(self) -> None:
        """End everything and wipe all but the store: caches, temporary files, control directory and home."""
        self.end()
        self.workplace.make_empty()


def seconds_until(daemon: SidecarProcess, began: float, deadline_s: float) -> float:
    """Give the seconds from `began` (monotonic) until the daemon is ready."""
    daemon.wait_until_ready(deadline_s)
    return time.monotonic() - began
