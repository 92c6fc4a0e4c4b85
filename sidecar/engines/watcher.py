"""Look at an engine every second and report what state it is in: a level on every look, never an edge.

What a state means for readiness is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.engines.protocol import Engine, EngineStats, Health, HealthState, Plain
from sidecar.errors import EngineError, NotAnEngine

EngineState = Literal["up", "gone", "unreachable", "busy", "starting", "asleep", "stalled", "not_an_engine"]
#: What a health check says when no engine process is there, or none that was there before can be relied on.
_ABSENT: Mapping[HealthState, EngineState] = {
    "refused": "gone",
    "reset": "gone",
    "unhealthy": "gone",
    "unreachable": "unreachable",
    "starting": "starting",
    "not_an_engine": "not_an_engine",
}
#: So many readings of the metrics may fail before the last one is no longer how the engine is.
_READINGS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Observation(Plain):
    """What one look at the engine gave.

    `identity` names the engine's process; empty while it isn't known, which is no change of identity.
    `detail` is a sentence. `stats` are the newest metrics of this process, None before the first, and when they are too
    old to be told as how it is now. `answers`: the health check was answered with 200 in this look.
    """

    state: EngineState
    identity: str
    detail: str
    stats: EngineStats | None = None
    answers: bool = False


class EngineWatcher:
    """Report on an engine every `poll_s` seconds; a slow answer delays a report by as much again at most.

    `clock` gives monotonic seconds and `sleep` waits for as many. Health is asked every `poll_s`, metrics
    every `metrics_s` and at once after a new connection or a change of state. While nothing is there, looks
    are `waiting_poll_s` apart, so that an engine that comes up isn't left waiting. `boot` keeps identities of
    engines that don't show their start time from being mistaken for those that another daemon saw.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        stall_s: float = 120.0,
        poll_s: float = 1.0,
        metrics_s: float = 5.0,
        waiting_poll_s: float = 0.25,
        boot: str = "",
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._sleep = sleep
        self._stall_s = stall_s
        self._poll_s = poll_s
        self._metrics_s = metrics_s
        self._waiting_poll_s = waiting_poll_s
        self._boot = boot
        self._health: asyncio.Task[Health] | None = None
        self._scrape: asyncio.Task[EngineStats] | None = None
        self._seen = 0
        self._absent = True
        self._last: EngineState = "gone"
        self._silent_since: float | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop everything that was true of one engine process only."""
        self._identity = ""
        self._stats: EngineStats | None = None
        self._stranger = ""
        self._scraped_at: float | None = None
        self._read_at = self._moved_at = 0.0
        self._rank_moved_at: dict[str, float] = {}
        self._grown_at: float | None = None
        self._unread = ""

    async def run(self, report: Callable[[Observation], None]) -> None:
        """Look and report until cancelled."""
        try:
            while True:
                started = self._clock()
                observation = await self._look(started)
                report(observation)
                interval = self._waiting_poll_s if self._absent else self._poll_s
                await self._sleep(max(0.0, interval - (self._clock() - started)))
        finally:
            await _end(self._health)
            await _end(self._scrape)

    async def _look(self, started: float) -> Observation:
        deadline = started + self._poll_s
        health = await self._ask_health(started, deadline)
        if health is not None and health.state == "up":
            await self._read_metrics(health, deadline)
        elif not self._absent and (health is None or health.state == "timed_out"):
            # Its other answers tell an engine that is busy from one that hangs.
            await self._scrape_when_due(deadline)
        if health is not None and health.state in _ABSENT:
            await self._drop_scrape()
            self._forget()
            self._absent = True
        state, detail = self._judge(health)
        self._last = state
        answers = health is not None and health.state == "up"
        return Observation(state, self._identity, detail, None if self._is_stale() else self._stats, answers)

    def _is_stale(self) -> bool:
        return self._clock() - self._read_at > _READINGS_KEPT * self._metrics_s

    async def _ask_health(self, started: float, deadline: float) -> Health | None:
        """Give the answer to the health check under way, or None when it takes beyond the deadline."""
        if self._health is None:
            self._health = asyncio.create_task(self._engine.health(), name="engine health")
        if not await self._finished(self._health, deadline):
            self._silent_since = started if self._silent_since is None else self._silent_since
            return None
        health = self._health.result()
        self._health = None
        if health.state != "timed_out":
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = started
        return health

    async def _read_metrics(self, health: Health, deadline: float) -> None:
        if self._absent:
            self._absent, self._seen = False, self._seen + 1
        if health.new_connection:
            # A reading that was asked from the process before this connection says nothing about this one.
            await self._drop_scrape()
        if health.new_connection or self._last == "busy":
            self._scraped_at = None
        await self._scrape_when_due(deadline)

    async def _scrape_when_due(self, deadline: float) -> None:
        due = self._scraped_at is None or self._clock() - self._scraped_at >= self._metrics_s
        if self._scrape is None and due:
            self._scrape = asyncio.create_task(self._engine.stats(), name="engine metrics")
        if self._scrape is None or not await self._finished(self._scrape, deadline):
            return
        scrape, self._scrape = self._scrape, None
        try:
            stats = scrape.result()
        except NotAnEngine as error:
            self._stranger, self._scraped_at = str(error), self._clock()
        except EngineError as error:
            # Load, or the end of the engine: the next look tells. For a while the older reading stands.
            self._unread = str(error)
            return
        else:
            self._take(stats)

    def _take(self, stats: EngineStats) -> None:
        now = self._clock()
        unnamed = self._identity or f"unnamed:{self._boot}:{self._seen}"
        identity = f"process:{stats.identity}" if stats.identity else unnamed
        if identity != self._identity:
            self._forget()
        before = self._stats
        stuck = (
            before is not None
            and bool(before.running)
            and bool(stats.running)
            and stats.progress is not None
            and (stats.progress, stats.kv_cache_usage) == (before.progress, before.kv_cache_usage)
        )
        if not stuck:
            self._moved_at = now
        if before is not None and stats.progress != before.progress:
            self._grown_at = now
        self._rank_moved_at = {
            rank: self._rank_moved_at.get(rank, now) if _stands(rank, before, stats) else now
            for rank in stats.load_by_rank
        }
        self._identity, self._stats, self._stranger = identity, stats, ""
        self._scraped_at = self._read_at = now

    def _judge(self, health: Health | None) -> tuple[EngineState, str]:
        if health is None or health.state == "timed_out":
            return self._judge_silence()
        if health.state == "up":
            return self._judge_stats(health)
        if health.state == "unhealthy" and not self._seen:
            return "starting", health.detail
        return _ABSENT[health.state], health.detail

    def _judge_silence(self) -> tuple[EngineState, str]:
        silent = self._clock() - (self._silent_since if self._silent_since is not None else self._clock())
        if silent >= self._stall_s and not self._moves():
            what = "nothing" if self._is_stale() else "no health check"
            return "stalled", f"The engine accepts connections and has answered {what} for {silent:.0f} s."
        return "busy", f"The engine has not answered /health for {silent:.0f} s; that is load, not death."

    def _moves(self) -> bool:
        """Say whether its metrics have shown progress of requests not long ago. An idle engine has no excuse."""
        grown = self._grown_at is not None and self._read_at - self._grown_at < self._stall_s
        return grown and not self._is_stale()

    def _judge_stats(self, health: Health) -> tuple[EngineState, str]:
        if self._stranger:
            return "not_an_engine", self._stranger
        stats = self._stats
        if stats is None:
            return "up", health.detail
        if stats.asleep:
            return "asleep", "The engine sleeps; nothing may be sent to it until it is woken up."
        # Measured between readings: without a new one there is no new evidence.
        frozen = self._read_at - self._moved_at
        if frozen >= self._stall_s:
            return "stalled", (
                f"Requests are running ({stats.running:.0f}) and none has made progress for {frozen:.0f} s, "
                "although the engine answers /health."
            )
        for rank, moved_at in self._rank_moved_at.items():
            if (stood := self._read_at - moved_at) >= self._stall_s:
                return "stalled", (
                    f"Requests are running on data-parallel rank {rank} ({stats.load_by_rank[rank][0]:.0f}) and none of them has "
                    f"made progress for {stood:.0f} s, although the engine answers /health."
                )
        if self._is_stale():
            return "up", (
                f"{health.detail} Its metrics could not be read for {self._clock() - self._read_at:.0f} s, so that neither "
                f"load nor a stall can be seen: {self._unread or 'no answer yet.'}"
            )
        return "up", stats.missing or health.detail

    async def _drop_scrape(self) -> None:
        scrape, self._scrape = self._scrape, None
        await _end(scrape)

    async def _finished(self, task: asyncio.Task[Any], deadline: float) -> bool:
        """Wait for a task until the deadline, without ending it."""
        if task.done():
            return True
        timer = asyncio.ensure_future(self._sleep(max(0.0, deadline - self._clock())))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return task.done()


def _stands(rank: str, before: EngineStats | None, now: EngineStats) -> bool:
    """Say whether requests ran on a rank in both readings and nothing of it has moved between them."""
    if before is None or rank not in before.load_by_rank or rank not in now.progress_by_rank:
        return False
    (ran, used), (runs, uses) = before.load_by_rank[rank], now.load_by_rank[rank]
    return bool(ran and runs) and (used, before.progress_by_rank.get(rank)) == (uses, now.progress_by_rank[rank])


async def _end(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
