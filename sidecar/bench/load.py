"""Sends requests so that exactly so many are in flight, until enough were sent, time is up, or the engine is gone.

Makes no requests and judges no times.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.bench.lag import LagMeter
from sidecar.bench.samples import Samples
from sidecar.engines.protocol import Completion, CompletionRequest, Engine
from sidecar.errors import EngineError
from sidecar.warmup.collecting import no_full_collections

#: So many requests at most, also where only a time is given: their figures are kept in memory.
MOST_REQUESTS = 1_000_000
#: States of a health check in which no engine is there any more.
_GONE = ("refused", "reset", "unhealthy", "starting", "unreachable")
ASLEEP = "The engine fell asleep, and nothing is sent to a sleeping engine"
#: After so many failures in a row, and twice the concurrency, nothing more is tried.
FAILURES_IN_A_ROW = 20


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How much is sent: `requests` in all or for `duration_s` seconds, `concurrency` at a time."""

    concurrency: int
    requests: int | None = None
    duration_s: float | None = None

    @property
    def most(self) -> int:
        """Count the requests after which nothing more is sent."""
        return MOST_REQUESTS if self.requests is None else self.requests


class Load:
    """One load on one engine. `clock` gives monotonic seconds; `asleep` is asked before every request.

    `stopped` is a sentence when it ended before its time. Requests under way when the time is up are waited for.
    """

    def __init__(
        self,
        engine: Engine,
        plan: LoadPlan,
        make: Callable[[], CompletionRequest],
        clock: Callable[[], float],
        asleep: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._make = make
        self._clock = clock
        self._asleep = asleep
        self._turn = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._began = 0.0
        self._ended = 0.0
        self._failed_in_a_row = 0
        self.samples = Samples()
        self.lag = LagMeter(clock)
        self.sent = self.running = self.busiest = 0
        self.stopped = ""

    @property
    def seconds(self) -> float:
        """Give how long it took so far, from the first request's start to the last one's end."""
        return max(0.0, self._ended - self._began)

    @property
    def elapsed(self) -> float:
        """Give how long ago the load began, in seconds."""
        return self._clock() - self._began

    async def run(self) -> None:
        """Send everything; what goes wrong with the engine ends in `samples` and `stopped`. Can be cancelled."""
        self._began = self._ended = self._clock()
        meter = asyncio.create_task(self.lag.run(), name="loop lag")
        try:
            streams = min(self._plan.concurrency, self._plan.most)
            with no_full_collections(streams):
                async with asyncio.TaskGroup() as group:
                    for _ in range(streams):
                        group.create_task(self._stream())
        finally:
            meter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await meter

    async def _stream(self) -> None:
        while True:
            # Writing a request of 100,000 tokens as JSON takes milliseconds. One at a time, with a pass of the loop
            # between two of them: else hundreds that start together would keep every answer from being read.
            async with self._turn:
                if not self._may_send():
                    return
                self.sent += 1
                task = asyncio.create_task(self._one())
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    task.cancel()
                    raise
            await task

    def _may_send(self) -> bool:
        if self.stopped or self.sent >= self._plan.most:
            return False
        if self._asleep():
            self._stop(ASLEEP)
            return False
        limit = math.inf if self._plan.duration_s is None else self._plan.duration_s
        return self.elapsed < limit

    async def _one(self) -> None:
        started = self.elapsed
        self.running += 1
        self.busiest = max(self.busiest, self.running)
        try:
            answer = await self._engine.complete(self._make())
        finally:
            self.running -= 1
            self._ended = self._clock()
        if self.samples.take(started, answer):
            self._failed_in_a_row = 0
        else:
            await self._consider(answer)

    async def _consider(self, answer: Completion) -> None:
        """Find out whether a failure means that nothing more should be sent."""
        self._failed_in_a_row += 1
        if answer.error_kind == "unauthorized":
            self._stop(f"The engine refuses the API key: {answer.error}")
        elif answer.error_kind in ("refused", "reset"):
            async with self._asking:
                if not self.stopped and (health := await self._engine.health()).state in _GONE:
                    self._stop(f"The engine died: {answer.error} {health.detail}")
        most = max(FAILURES_IN_A_ROW, 2 * self._plan.concurrency)
        if self._failed_in_a_row >= most and not self.stopped:
            failed = f"{self._failed_in_a_row} requests in a row failed, the last one with: {answer.error}"
            self._stop(ASLEEP if await self._sleeps() else failed)

    async def _sleeps(self) -> bool:
        """Ask whether the engine fell asleep since somebody last looked: its errors don't say so."""
        try:
            return bool((await self._engine.stats()).asleep)
        except EngineError:
            return False

    def _stop(self, why: str) -> None:
        if not self.stopped:
            why = why.rstrip(". ")
            self.stopped = f"{why}. {self.samples.answered} requests had been answered by then."
