"""Looks for caches that nobody knows: directories in no family that grow while the engine runs, told once each.

What is a family and what is worth telling is decided in `caches.unmanaged`; the engine's container is looked at by
the launcher.
"""

from __future__ import annotations

import asyncio

from sidecar.caches import unmanaged
from sidecar.supervisor.pod import Pod


async def watch(pod: Pod) -> None:
    """Look again and again until cancelled, at the live cache, the configured roots, and what the launcher says."""
    roots = pod.settings.watched_roots
    # Whatever lies in the live cache was written by engines of this pod; other roots may have been full before.
    before = await asyncio.to_thread(unmanaged.sizes, "", roots)
    told = set[str]()
    while True:
        await asyncio.sleep(pod.settings.unmanaged_interval_s)
        now = await asyncio.to_thread(unmanaged.sizes, pod.live_cache, roots)
        attempt = str(pod.board.engine.get("attempt") or "")
        grown = unmanaged.grown(before, now, pod.control.grown(attempt) if pod.control is not None else ())
        pod.unmanaged = tuple(one.to_json() for one in grown)
        pod.metrics.unmanaged(pod.unmanaged)
        pod.board.cache = {**pod.board.cache, "unmanaged": list(pod.unmanaged)}
        for one in grown:
            if one.path not in told:
                told.add(one.path)
                pod.board.tell(unmanaged.sentence(one), "warning")
