"""Watches what the engine's processes use, and what room is left on the disks of live cache and store.

How the numbers are shown is the business of `metrics`; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import os

import psutil

from sidecar.engines import processes
from sidecar.engines.processes import Usage
from sidecar.supervisor.aside import Aside
from sidecar.supervisor.pod import Pod

#: Pause between two readings: a scrape comes every 15 to 60 s, and a reading looks at every process there is.
INTERVAL_S = 15.0
#: The disks are looked at in each such reading only.
DISKS_EVERY = 4
#: statvfs answers at once, or hangs with its server.
DEADLINE_S = 5.0

Room = dict[str, int]


class UsageWatch:
    """The readings of one pod's engine processes and disks."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._processes = Aside[Usage | None]("engine processes", DEADLINE_S)
        self._disks = {name: Aside[Room](f"disk of {name}", DEADLINE_S) for name in ("live_cache", "store")}
        self._first: psutil.Process | None = None
        self._pid = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.look_at_disks()
            for _ in range(DISKS_EVERY):
                await self.look_at_processes()
                await asyncio.sleep(INTERVAL_S)

    async def look_at_processes(self) -> None:
        """Read the engine's processes once; what can't be seen from here has no numbers."""
        found = await self._processes.do(self._usage)
        self._pod.metrics.processes(found.to_json() if found else None)

    def _usage(self) -> Usage | None:
        pid = self._pod.engine_pid
        if pid != self._pid or self._first is None:
            self._pid, self._first = pid, processes.find(pid) if pid else None
        found = processes.usage(self._first) if self._first is not None else None
        if found is None:
            self._first = None
        return found

    async def look_at_disks(self) -> None:
        """Read the room on both disks once, at the same time; one that hangs holds nobody."""
        pod = self._pod
        places = {"live_cache": pod.live_cache, "store": "" if "://" in pod.store else pod.store.rpartition(",")[2]}
        rooms = await asyncio.gather(*(self._room(name, path) for name, path in places.items()))
        for (name, path), room in zip(places.items(), rooms, strict=True):
            pod.metrics.disk(name, room, wanted=bool(path))

    async def _room(self, name: str, path: str) -> Room | None:
        if not path:
            return None
        try:
            return await self._disks[name].do(lambda: room(path))
        except OSError:
            return None


def room(path: str) -> Room:
    """Give size of a filesystem and what is free for ordinary users, in bytes. Raises OSError."""
    found = os.statvfs(path)
    return {"free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize}
