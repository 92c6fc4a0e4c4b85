"""Asks the NVML process for readings, with deadlines: a call that never returns costs that process, never the daemon.

What a reading means is not decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sidecar.errors import GpuUnavailable
from sidecar.gpu.reading import Gpu, GpuSnapshot, Seen, Wish, names

#: NVML's own calls were seen to block for over 45 s on faulty GPUs; well ones answer within 0.1 s.
DEADLINE_S = 5.0
#: The first reading opens every GPU, which takes seconds each where persistence mode is off.
OPENING_S = 30.0
#: How long a process that was killed may take to go; one that hangs in the driver can't be killed.
KILLED_S = 0.5
#: A reading of 16 GPUs is about 30 KiB.
LINE_LIMIT = 4 << 20

_ADVICE = {
    "no_library": "With GPUs on this node, the sidecar's container needs NVIDIA_VISIBLE_DEVICES and "
    "NVIDIA_DRIVER_CAPABILITIES=utility, or set WARMUP_SM and WARMUP_GPU_INTERVAL_S=0.",
    "no_driver": "Look whether the driver is installed and loaded on this node.",
    "mismatch": "The driver was upgraded under this container, which still has the old library: restart the pod when "
    "the upgrade has ended.",
    "no_permission": "The sidecar's user may not open /dev/nvidiactl.",
    "unknown": "After `systemctl daemon-reload` a container loses its device files on some nodes: if it stays so, "
    "restart the pod. The engine may go on with the files it has open.",
    "no_gpu": "The sidecar's container needs NVIDIA_VISIBLE_DEVICES.",
}


class GpuReader:
    """Reads the GPUs on demand. `release` has NVML closed between two readings; times in seconds.

    `command` replaces `python -m sidecar.gpu.worker` in tests.
    """

    def __init__(
        self,
        *,
        release: bool = False,
        deadline_s: float = DEADLINE_S,
        opening_s: float = OPENING_S,
        command: Sequence[str] | None = None,
    ) -> None:
        self._command = (*(command or (sys.executable, "-m", "sidecar.gpu.worker")), *(("--release",) * release))
        self._deadline_s = deadline_s
        self._opening_s = opening_s
        self._process: asyncio.subprocess.Process | None = None
        self._hanging: asyncio.subprocess.Process | None = None
        self._opened = False
        self._known: dict[str, Seen] = {}

    async def read(self, wish: Wish | None = None) -> GpuSnapshot:
        """Read the wished GPUs once, by default the only one there is.

        Raises GpuUnavailable, with its kind, when there is no NVML or GPU, or no answer within the deadline.
        """
        if self._hanging is not None and self._hanging.returncode is None:
            raise _unavailable(
                "no_answer",
                "NVML still hangs in an earlier call: GPU metrics are left out. If it stays so, look for Xid errors in "
                "the node's kernel log.",
            )
        self._hanging = None
        limit = self._deadline_s if self._opened else self._opening_s
        try:
            async with asyncio.timeout(limit):
                answer = await self._ask(wish.uuids if wish else None)
        except asyncio.CancelledError:
            # An answer that is still to come would be taken for the next one.
            self._hanging, self._process = self._process, None
            if self._hanging is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._hanging.kill()
            raise
        except TimeoutError as error:
            await self._give_up()
            raise _unavailable(
                "no_answer", f"NVML did not answer within {limit:g} s: GPU metrics are left out until it does."
            ) from error
        if "reading" not in answer:
            await self.close()
            kind, trouble = str(answer.get("kind", "other")), str(answer.get("trouble"))
            said = f"NVML can't be used ({trouble}): GPU metrics are left out until it can. {_ADVICE.get(kind, '')}"
            raise _unavailable(kind, said.strip())
        self._opened = True
        snapshot = self._named(GpuSnapshot.from_json(answer["reading"]))
        if snapshot.troubles or snapshot.lost:
            await self.close()
        return snapshot

    def _named(self, snapshot: GpuSnapshot) -> GpuSnapshot:
        """Give lost GPUs, of which the driver doesn't even tell the place, what was seen of them before."""
        self._known.update({seen.uuid: seen for seen in snapshot.seen if seen.uuid})
        gpus = tuple(
            replace(gpu, index=known.index, uuid=known.uuid, name=known.name, sm=known.sm)
            if gpu.lost and (known := self._of(gpu)) is not None
            else gpu
            for gpu in snapshot.gpus
        )
        return replace(snapshot, gpus=gpus)

    def _of(self, gpu: Gpu) -> Seen | None:
        """Find what was seen of a GPU by its UUID or the beginning of it; one without by its place."""
        if gpu.uuid is None:
            return next((seen for seen in self._known.values() if seen.index == gpu.index), None)
        return next((seen for seen in self._known.values() if names(gpu.uuid, seen.uuid or "")), None)

    async def close(self) -> None:
        """End the process. May be called twice; the next reading starts another."""
        process, self._process, self._opened = self._process, None, False
        if process is not None:
            await _end(process)
        if self._hanging is not None:
            await _end(self._hanging)

    async def _ask(self, want: Sequence[str] | None) -> dict[str, Any]:
        """Ask the process, or a new one where it has ended since the last reading."""
        if self._process is not None:
            line = await self._exchange(self._process, want)
            if line:
                return _parsed(line)
            await self.close()
        self._process = await self._start()
        return _parsed(await self._exchange(self._process, want))

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_LIMIT,
            start_new_session=True,
        )

    @staticmethod
    async def _exchange(process: asyncio.subprocess.Process, want: Sequence[str] | None) -> bytes:
        """Send a wish and give the line that answers; empty when the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(json.dumps({"want": want}).encode() + b"\n")
            await process.stdin.drain()
        return await process.stdout.readline()

    async def _give_up(self) -> None:
        """Kill the process; one that hangs in the driver goes when it can, and none is started beside it."""
        process, self._process, self._opened = self._process, None, False
        if process is not None and not await _end(process):
            self._hanging = process


async def read_once(wish: Wish | None = None) -> GpuSnapshot:
    """Read once and end the process. Raises GpuUnavailable."""
    reader = GpuReader()
    try:
        return await reader.read(wish)
    finally:
        await reader.close()


async def _end(process: asyncio.subprocess.Process) -> bool:
    """Kill a process and wait for a moment; say whether it is gone."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    try:
        async with asyncio.timeout(KILLED_S):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _parsed(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        return {"kind": "other", "trouble": "its process ended without an answer"}
    found: dict[str, Any] = json.loads(line)
    return found


def _unavailable(kind: str, sentence: str) -> GpuUnavailable:
    error = GpuUnavailable(sentence)
    error.kind = kind
    return error
