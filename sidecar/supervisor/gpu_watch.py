"""Reads the engine's GPUs again and again and tells board and metrics; what NVML can't say is left out, never kept, but
that a GPU is lost.

How NVML is asked is the business of `gpu`; whether a lost GPU takes traffic away is decided by the state machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sidecar.errors import GpuUnavailable
from sidecar.gpu import chosen
from sidecar.gpu.reader import GpuReader
from sidecar.gpu.reading import Gpu, GpuSnapshot, Wish
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
        self._wanted: tuple[str, ...] | None = None
        self._known: dict[str, Gpu] = {}
        self._lost: dict[str, Gpu] = {}

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
            self._away(error, wish)
            return None
        if wish.uuids is not None and wish.uuids != self._wanted:
            self._wanted, self._lost = wish.uuids, {}
        self._note(reading)
        pod.sm = reading.sm
        pod.gpu_memory_gib = reading.memory_size_bytes / (1 << 30)
        reading = replace(reading, gpus=(*reading.gpus, *self._unread(reading.gpus)))
        shown = {**reading.to_json(), **({"unclear": wish.why} if reading.expected is None else {})}
        pod.board.gpu = shown
        pod.metrics.gpu(shown)
        self._tell_losses(_sentence(list(self._lost)))
        self._tell_once(reading.troubles)
        if self._up is False:
            pod.board.tell("NVML answers again.")
        self._up = True
        return reading

    def _note(self, reading: GpuSnapshot) -> None:
        """Remember which GPUs are lost: one stays so until a reading shows it well, or all that the engine uses."""
        if reading.expected is not None and not reading.lost and not reading.troubles:
            self._lost.clear()
        for gpu in reading.gpus:
            name = _name(gpu)
            self._known[name] = bare = Gpu(gpu.index, gpu.uuid, gpu.name, gpu.sm, gpu.mig, lost=True)
            if gpu.lost:
                self._lost[name] = bare
            else:
                self._lost.pop(name, None)

    def _unread(self, gpus: Sequence[Gpu] = ()) -> list[Gpu]:
        """Give those that were last seen lost and are not in a reading."""
        return [gpu for name, gpu in self._lost.items() if name not in map(_name, gpus)]

    def _away(self, error: GpuUnavailable, wish: Wish) -> None:
        pod = self._pod
        # A GPU that was lost and can't be asked for any more is no better for that.
        if error.kind == "lost":
            self._tell_losses(self._lost_unnamed(error, wish.uuids or tuple(self._known)))
        else:
            pod.metrics.count_gpu_trouble(error.kind)
            self._tell_away(error)
        shown: dict[str, Any] = {"unavailable": str(error), "kind": error.kind}
        if lost := self._unread():
            shown["gpus"] = [gpu.to_json() for gpu in lost]
        pod.board.gpu = shown
        pod.metrics.gpu(shown if lost else None)
        self._told.clear()

    def _tell_away(self, error: GpuUnavailable) -> None:
        if self._up is not False and (self._up or error.kind not in QUIET):
            self._pod.board.tell(str(error), "warning")
        self._up = False

    def _lost_unnamed(self, error: GpuUnavailable, wanted: Sequence[str]) -> str:
        """Name the lost GPUs where NVML itself answers that one is lost, and so doesn't say which."""
        if not self._lost and len(wanted) == 1:
            self._lost[wanted[0]] = self._known.get(wanted[0]) or Gpu(None, wanted[0], lost=True)
        if self._lost or not wanted:
            return _sentence(list(self._lost)) or str(error)
        return f"{error} It doesn't say which GPU is lost; the engine uses {' and '.join(wanted)}."

    def _tell_losses(self, sentence: str) -> None:
        pod = self._pod
        if sentence:
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


def _name(gpu: Gpu) -> str:
    return gpu.uuid or f"GPU {gpu.index}"


def _sentence(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f"The driver has lost {' and '.join(names)}, which the engine uses: look for Xid errors in the node's kernel log, "
        "and move the pod to another node."
    )
