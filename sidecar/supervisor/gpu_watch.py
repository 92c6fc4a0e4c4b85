"""Reads the engine's GPUs again and again and tells board and metrics; what NVML can't say is left out, never kept.

How NVML is asked is the business of `gpu`; whether a lost GPU takes traffic away is decided by the state machine.
"""

from __future__ import annotations

import asyncio

from sidecar.errors import GpuUnavailable
from sidecar.gpu import chosen
from sidecar.gpu.reader import GpuReader
from sidecar.gpu.reading import GpuSnapshot
from sidecar.lifecycle import Phase
from sidecar.supervisor.pod import Pod

#: After failures in a row the pause doubles up to this, in seconds: a driver that is being upgraded is left alone.
LONGEST_PAUSE_S = 120.0
#: A node without NVIDIA's driver is an ordinary thing; that is said in /status and is no event.
QUIET = frozenset({"no_library", "no_driver", "no_gpu"})
#: While output is checked, latencies count: readings wait, but for so many intervals at most.
LONGEST_WAIT = 3


class GpuWatch:
    """The readings of one pod's GPUs."""

    def __init__(self, pod: Pod, reader: GpuReader) -> None:
        self._pod = pod
        self._reader = reader
        self._up: bool | None = None
        self._told: set[str] = set()

    async def run(self) -> None:
        """Read until cancelled, every `gpu_interval_s`; more seldom while NVML is in trouble."""
        interval = self._pod.settings.gpu_interval_s
        pause = interval
        while True:
            reading = await self.read()
            pause = interval if reading is not None else min(2 * pause, max(interval, LONGEST_PAUSE_S))
            await asyncio.sleep(pause)
            for _ in range(LONGEST_WAIT):
                if self._pod.board.phase is not Phase.VERIFYING:
                    break
                await asyncio.sleep(interval)

    async def close(self) -> None:
        """End the process that talks to NVML."""
        await self._reader.close()

    async def read(self) -> GpuSnapshot | None:
        """Read once; None when NVML can't be used."""
        pod = self._pod
        wish = chosen.wish(pod.facts, pod.settings.engine_gpus)
        try:
            reading = await self._reader.read(wish)
        except GpuUnavailable as error:
            self._away(error)
            return None
        shown = {**reading.to_json(), **({"unclear": wish.why} if reading.expected is None else {})}
        pod.board.gpu, pod.sm = shown, reading.sm
        pod.gpu_memory_gib = reading.memory_size_bytes / (1 << 30)
        pod.metrics.gpu(shown)
        self._tell_losses(reading)
        self._tell_once(reading.troubles)
        if self._up is False:
            pod.board.tell("NVML answers again.")
        self._up = True
        return reading

    def _away(self, error: GpuUnavailable) -> None:
        pod = self._pod
        pod.board.gpu = {"unavailable": str(error), "kind": error.kind}
        pod.metrics.gpu(None)
        pod.metrics.count_gpu_trouble(error.kind)
        # A GPU that was lost and can't be asked for any more is no better for that.
        if error.kind == "lost":
            pod.lost_gpus = str(error)
        if self._up is not False and (self._up or error.kind not in QUIET):
            pod.board.tell(str(error), "warning")
        self._up = False
        self._told.clear()

    def _tell_losses(self, reading: GpuSnapshot) -> None:
        pod, names = self._pod, [gpu.uuid or f"GPU {gpu.index}" for gpu in reading.lost]
        sentence = ""
        if names:
            sentence = (
                f"The driver has lost {' and '.join(names)}, which the engine uses: look for Xid errors in the node's "
                "kernel log, and move the pod to another node."
            )
            pod.metrics.count_gpu_trouble("lost")
        if sentence and not pod.lost_gpus:
            pod.board.tell(sentence, "error")
        elif pod.lost_gpus and not sentence:
            pod.board.tell("All GPUs of the engine can be reached again.")
        pod.lost_gpus = sentence

    def _tell_once(self, troubles: tuple[str, ...]) -> None:
        for trouble in troubles:
            if trouble not in self._told:
                self._pod.board.tell(trouble, "warning")
        self._told = set(troubles)
