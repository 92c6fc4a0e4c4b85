"""Tells when an engine that is not ready yet makes no progress at all: no kernel file, no word in its log, no token.

Acted upon in one case only (`divergence`): a compile may be that slow, and a budget ends the warm-up in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.aside import FILE_S, TREE_S, Aside
from sidecar.caches import families
from sidecar.caches.held_locks import HeldLocks
from sidecar.lifecycle import Event, Phase
from sidecar.supervisor import divergence
from sidecar.supervisor.pod import Pod
from sidecar.warmup.tree_watch import Look, TreeWatch

LOOK_S = 5.0
#: So many seconds lie between two looks at every file, which cost what a scan of the live cache does.
THOROUGH_S = 60.0
#: An engine that loads weights waits for disk and network; one whose ranks wait for each other keeps its GPUs this busy.
BUSY = 0.95
#: GPU memory in use is compared in steps of so many bytes: smaller changes are no weights being loaded.
MEMORY_STEP = 64 << 20


def ignore(_event: Event) -> None:
    """Take an event and do nothing with it."""


class ProgressWatch:
    """Compares looks. `now` in monotonic seconds; `patience_s`: without any change for so long, it is told."""

    def __init__(self, pod: Pod, patience_s: float, post: Callable[[Event], None] = ignore) -> None:
        self._pod = pod
        self._patience_s = patience_s
        self._post = post
        self._tree = TreeWatch(Path(pod.live_cache or "/nonexistent"), families.stored_families())
        self._locks = HeldLocks()
        self._looking = Aside[Look]("look for new files", TREE_S)
        self._asking = Aside[dict[str, float]]("held locks", FILE_S)
        self._known_held: dict[str, float] = {}
        self._last: tuple[object, ...] = ()
        self._moved_at = 0.0
        self._thorough_at = float("-inf")
        self._told = ""

    async def look(self, now: float) -> None:
        """Look once: note any progress, and tell when there was none for too long."""
        pod = self._pod
        held = await self._held(now)
        if not _is_due(pod, bool(held)):
            self._reset()
            return
        seen = (*_signs(pod), pod.board.phase, tuple(sorted(held)))
        if seen != self._last or not self._moved_at or await self._written(now):
            self._reset(seen, now)
        elif now - self._moved_at >= self._patience_s:
            self._tell(now - self._moved_at, max(held, key=lambda path: held[path], default=""))
            # An engine whose files can't be looked at is not ended for writing none.
            stuck = None if self._looking.late else divergence.suspect(pod, now - self._moved_at)
            if stuck is not None:
                pod.board.tell(f"The engine hangs while it starts: {stuck.reason}", "error")
                self._post(stuck)

    async def _written(self, now: float) -> bool:
        """Say whether files were written since the last look; asked only while nothing else moves, for it costs memory.

        Before a stall is told, and once a minute from then on, files that grow in their place are looked for, too: all are.
        """
        thorough = now - self._moved_at >= self._patience_s and now - self._thorough_at >= THOROUGH_S
        if thorough:
            self._thorough_at = now
        with suppress(OSError):
            before, after = await self._looking.resume(partial(self._tree.look, thorough=thorough))
            return before != after
        return False

    async def _held(self, now: float) -> dict[str, float]:
        """Look for compile locks that are held; one that hangs keeps an engine from starting without a word in its log."""
        if not self._pod.live_cache or self._pod.board.phase is Phase.READY:
            return {}
        looked = await self._asking.do(partial(self._locks.look, self._pod.live_cache, now))
        # A look that does not come back says nothing of a lock that was held: that it seems gone would be progress.
        self._known_held = self._known_held if looked is None else looked
        return self._known_held

    def _reset(self, seen: tuple[object, ...] = (), now: float = 0.0) -> None:
        pod = self._pod
        if seen != self._last:
            self._tree.forget()
        self._last, self._moved_at = seen, now
        if self._told:
            if pod.board.waits_for == self._told:
                pod.board.waits_for = ""
            pod.board.engine = {**pod.board.engine, "no_progress": None}
            self._told = ""
        pod.metrics.no_progress(0.0)

    def _tell(self, seconds: float, lock: str) -> None:
        pod = self._pod
        pod.metrics.no_progress(seconds)
        sentence = _sentence(pod, seconds, lock)
        if not self._told:
            pod.board.tell(sentence, "warning")
        self._told = sentence
        pod.board.waits_for = sentence
        pod.board.engine = {**pod.board.engine, "no_progress": sentence}


async def watch(pod: Pod, post: Callable[[Event], None]) -> None:
    """Look again and again until cancelled; `post` takes what the state machine is to know."""
    watching = ProgressWatch(pod, pod.settings.stall_s, post)
    while True:
        await watching.look(pod.clock())
        await asyncio.sleep(LOOK_S)


def _is_due(pod: Pod, locked: bool) -> bool:
    """Say whether progress is to be expected: requests are under way, or an engine that starts compiles something.

    It does when it keeps its GPUs busy, or when a lock of its compilers is held.
    """
    if pod.board.phase in (Phase.WARMING, Phase.VERIFYING):
        return not (pod.asleep() or pod.resting)
    started = pod.board.phase is Phase.AWAITING_ENGINE and bool(pod.board.engine.get("attempt"))
    busiest = _busiest(pod.board.gpu)
    return started and (locked or (busiest is not None and busiest >= BUSY))


def _signs(pod: Pod) -> tuple[object, ...]:
    """Give everything whose change is progress."""
    stats = pod.observation.stats if pod.observation else None
    counted = (stats.progress, stats.kv_cache_usage, stats.running, stats.identity) if stats else ()
    lines = (pod.jit_lines, pod.fatal_lines, tuple(sorted(pod.line_hints)))
    memory = tuple(int(gpu.get("memory_used_bytes") or 0) // MEMORY_STEP for gpu in _gpus(pod.board.gpu))
    return (counted, lines, memory, pod.board.warmup.get("requests"))


def _sentence(pod: Pod, seconds: float, lock: str) -> str:
    busiest = _busiest(pod.board.gpu)
    gpus = f", GPU {busiest:.0%} busy".replace("%", " %") if busiest is not None else ""
    doing = "while the engine starts" if pod.board.phase is Phase.AWAITING_ENGINE else "with requests under way"
    held = f" All that time {lock} was held: the engine may be stuck in a compile lock." if lock else ""
    return (
        f"No forward progress for {seconds:.0f} s {doing}: no new kernel file, no word of compiling in the engine's log, "
        f"no token{gpus}. One kernel that compiles so long is rare; ranks that wait for each other look like this. If it "
        f"stays so, end the engine's container and look at what its ranks last logged.{held}"
    )


def _gpus(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    gpus = found.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list | tuple) else []


def _busiest(found: Mapping[str, Any]) -> float | None:
    used = [float(gpu["utilization_ratio"]) for gpu in _gpus(found) if gpu.get("utilization_ratio") is not None]
    return max(used, default=None)
