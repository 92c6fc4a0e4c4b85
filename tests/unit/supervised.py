"""A pod for tests of single activities: real settings, board, metrics and directories, an engine that the test gives.

No test lives here.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from sidecar.caches.client import CacheClient, RestoreResult
from sidecar.config import Settings
from sidecar.engines.protocol import EngineStats
from sidecar.engines.watcher import Observation
from sidecar.handshake import ControlDirectory, LauncherSettings
from sidecar.lifecycle import Mode
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor.claiming import Keeper
from sidecar.supervisor.pod import Pod

ATTEMPT = "1800000000000000001-1-00000001"


class Metered:
    """An engine of which only the metrics count."""

    name = "vllm"

    def __init__(self, **stats: Any) -> None:
        self.reading = EngineStats(**stats)
        self.error: Exception | None = None

    async def stats(self) -> EngineStats:
        if self.error is not None:
            raise self.error
        return self.reading


def make_pod(root: Path, engine: Any = None, mode: Mode = Mode.LAUNCHER, **settings: Any) -> Pod:
    """Make a pod whose directories lie below `root`; its clock stands at 0 until `pod.clock` is replaced."""
    for name in ("live", "store", "control"):
        (root / name).mkdir(exist_ok=True)
    caches = CacheClient(lambda: 0.0)
    pod = Pod(
        settings=Settings(publish_quiet_s=0, **settings),
        mode=mode,
        boot="0123456789abcdef",
        host_boot="host",
        engine=engine or Metered(),
        name="pod-0",
        caches=caches,
        keeper=Keeper(caches),
        board=Board(lambda: 1000.0, lambda: 0.0, "0", mode.value),
        metrics=Metrics("0", mode.value),
        clock=lambda: 0.0,
        rng=random.Random(1),
        live_cache=str(root / "live"),
        store=str(root / "store"),
    )
    if mode is not Mode.BESIDE:
        pod.control = ControlDirectory(root / "control", pod.boot)
        pod.control.prepare(LauncherSettings("0", "http://127.0.0.1:1", str(root / "live")))
    return pod


def restored(pod: Pod, outcome: str, **fields: Any) -> None:
    """Let the pod's restore have ended like that, for an attempt."""
    pod.restored = RestoreResult(outcome=outcome, sentence="", exact_key="e" * 16, toolchain_key="t" * 16, **fields)  # type: ignore[arg-type]
    pod.restored_attempt = ATTEMPT
    pod.board.restore = {"outcome": outcome}


def observe(pod: Pod, **stats: Any) -> None:
    """Let the watcher have seen an engine with these numbers."""
    pod.observation = Observation("up", "process:1", "", EngineStats(**stats))


def told(pod: Pod) -> str:
    """Give all that was told, a line each."""
    return "\n".join(event.text for event in pod.board.events())
