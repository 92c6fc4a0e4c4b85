"""Watches what the engine's processes use, and what room is left on the disks of live cache and store.

How the numbers are shown is the business of `metrics`; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import psutil

from sidecar.aside import Aside
from sidecar.caches.client import ReachRequest
from sidecar.engines import processes
from sidecar.engines.processes import Usage
from sidecar.supervisor.pod import Pod

#: Pause between two readings: a scrape comes every 15 to 60 s, and a reading looks at every process there is.
INTERVAL_S = 15.0
#: The disks are looked at in each such reading only.
DISKS_EVERY = 4
#: A store in a bucket is asked in every so many of those looks: a question takes a process of its own.
BUCKET_EVERY = 5
BUCKET_DEADLINE_S = 30.0
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
        self._cpu_s = 0.0
        self._looks = 0
        self._trouble = ""

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
        if found is not None and found.cpu_seconds is not None:
            # A process that ends between two steps of a reading is missing in it, and in the next one its parent has its seconds.
            self._cpu_s = max(self._cpu_s, found.cpu_seconds)
            found = replace(found, cpu_seconds=self._cpu_s)
        self._pod.metrics.processes(found.to_json() if found else None)

    def _usage(self) -> Usage | None:
        pid = self._pod.engine_pid
        if pid != self._pid or self._first is None:
            self._pid, self._first, self._cpu_s = pid, processes.find(pid) if pid else None, 0.0
        found = processes.usage(self._first) if self._first is not None else None
        if found is None:
            self._first = None
        return found

    async def look_at_disks(self) -> None:
        """Read the room on both disks once, at the same time; one that hangs holds nobody. A bucket is only reached for."""
        pod = self._pod
        in_bucket = "://" in pod.store
        places = {"live_cache": pod.live_cache} | ({} if in_bucket else {"store": pod.store.rpartition(",")[2]})
        rooms = await asyncio.gather(*(self._room(name, path) for name, path in places.items()))
        for (name, path), room in zip(places.items(), rooms, strict=True):
            limit = pod.settings.live_cache_limit_bytes if name == "live_cache" else 0
            pod.metrics.disk(name, _within(room, limit, pod.board.cache.get("bytes")), wanted=bool(path))
        if in_bucket and self._looks % BUCKET_EVERY == 0:
            await self._reach_for_the_bucket()
        self._looks += 1

    async def _reach_for_the_bucket(self) -> None:
        pod = self._pod
        trouble = await pod.caches.reach(ReachRequest(store=pod.store), BUCKET_DEADLINE_S)
        pod.metrics.store_reached(not trouble)
        if trouble and trouble != self._trouble:
            pod.board.tell(f"The store can't be reached, nothing is published meanwhile: {trouble}", "warning")
        if self._trouble and not trouble:
            pod.board.tell("The store can be reached again.")
        self._trouble = trouble

    async def _room(self, name: str, path: str) -> Room | None:
        if not path:
            return None
        try:
            return await self._disks[name].do(lambda: room(path))
        except OSError:
            return None


def _within(room: Room | None, limit: int, used: object) -> Room | None:
    """Give the room that is left of a volume that the kubelet empties beyond its limit, whatever the disk below it has."""
    if room is None or not limit or not isinstance(used, int):
        return room
    return {"free": max(0, min(room["free"], limit - used)), "size": min(room["size"], limit)}


def room(path: str) -> Room:
    """Give size of a filesystem and what is free for ordinary users, in bytes. Raises OSError."""
    found = os.statvfs(path)
    return {"free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize}
