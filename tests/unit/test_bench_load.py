"""Load on a stand-in engine: exact concurrency, when it ends, and whom it must not keep waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.bench.load import FAILURES_IN_A_ROW, Load, LoadPlan
from sidecar.engines.protocol import Completion, CompletionRequest, EngineStats, Health

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


def failed(kind: Any, status: int | None = None) -> Completion:
    return Completion(ok=False, status=status, ttft_s=None, total_s=0.0, error=f"it is {kind}.", error_kind=kind)


class Engine:
    """Answers after a second; `answer` may give another completion by the request's number."""

    def __init__(self, answer: Callable[[int], Completion | None] = lambda _: None) -> None:
        self.requests = self.in_flight = self.busiest = 0
        self.answer = answer
        self.state: Any = "up"
        self.at_once: Callable[[], None] = lambda: None

    async def health(self) -> Health:
        return Health(self.state, None, 0.0, "Nothing listens there.")

    async def stats(self) -> EngineStats:
        return EngineStats(asleep=False)

    async def complete(self, request: CompletionRequest) -> Completion:
        self.at_once()
        self.requests += 1
        number = self.requests
        self.in_flight += 1
        self.busiest = max(self.busiest, self.in_flight)
        await asyncio.sleep(1 + number % 3 / 10)
        self.in_flight -= 1
        return self.answer(number) or Completion(ok=True, status=200, ttft_s=0.5, total_s=1.0, tokens=2, gaps_s=(0.5,))


def load(engine: Engine, plan: LoadPlan, asleep: Callable[[], bool] = lambda: False) -> Load:
    return Load(engine, plan, lambda: CompletionRequest(prompt=(1,)), now, asleep)  # type: ignore[arg-type]


async def test_exactly_as_many_requests_are_in_flight_as_were_asked_for():
    engine = Engine()
    running = load(engine, LoadPlan(7, requests=40))
    await running.run()
    assert (engine.requests, engine.busiest, running.busiest, running.samples.answered) == (40, 7, 7, 40)
    assert sum(running.samples.total) <= 7 * running.seconds


async def test_fewer_requests_than_streams_are_sent_once_each():
    engine = Engine()
    await load(engine, LoadPlan(32, requests=3)).run()
    assert engine.requests == 3


async def test_after_its_time_nothing_is_sent_and_what_is_in_flight_is_waited_for():
    running = load(Engine(), LoadPlan(4, duration_s=9.95))
    await running.run()
    assert running.samples.answered == running.sent
    assert max(running.samples.started) < 9.95 < running.seconds < 11.2


async def test_nothing_is_sent_to_an_engine_that_sleeps():
    engine = Engine()
    running = load(engine, LoadPlan(2, requests=100), lambda: engine.requests >= 10)
    await running.run()
    assert engine.requests == 10
    assert "asleep" in running.stopped


async def test_an_engine_that_dies_ends_the_load_with_what_was_answered():
    engine = Engine(lambda number: failed("reset") if number > 20 else None)
    engine.state = "refused"
    running = load(engine, LoadPlan(4, requests=1000))
    await running.run()
    assert "The engine died" in running.stopped
    assert running.samples.answered == 20
    assert running.sent < 30


async def test_one_lost_connection_does_not_end_the_load():
    running = load(Engine(lambda number: failed("reset") if number == 5 else None), LoadPlan(4, requests=40))
    await running.run()
    assert (running.stopped, running.samples.answered, running.samples.failed) == ("", 39, 1)


async def test_a_refused_key_ends_the_load_at_once():
    running = load(Engine(lambda _: failed("unauthorized", 401)), LoadPlan(2, requests=1000))
    await running.run()
    assert running.sent <= 4
    assert "API key" in running.stopped


async def test_an_engine_that_fails_every_request_is_not_asked_for_ever():
    engine = Engine(lambda _: failed("broken", 500))
    running = load(engine, LoadPlan(2, requests=1000))
    await running.run()
    assert running.sent <= FAILURES_IN_A_ROW + 4
    assert "in a row failed" in running.stopped


async def test_requests_that_take_long_to_write_are_started_one_at_a_time():
    """Each pass of the loop writes one: others are read between two of them."""
    engine, passes, written = Engine(), [0], []
    engine.at_once = lambda: written.append(passes[0])

    async def count() -> None:
        for _ in range(200):
            passes[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await load(engine, LoadPlan(20, requests=20)).run()
    await counting
    assert len(set(written)) == 20


async def test_a_cancelled_load_leaves_no_request_behind():
    engine = Engine()
    running = load(engine, LoadPlan(8, requests=1000))
    task = asyncio.create_task(running.run())
    await asyncio.sleep(4.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert running.running == 0
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.looptime(False)
async def test_a_loop_that_is_held_up_is_noticed():
    running = load(Engine(), LoadPlan(1, requests=1))
    running.lag._clock = time.monotonic
    meter = asyncio.create_task(running.lag.run())
    await asyncio.sleep(0.02)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.2:
        pass
    await asyncio.sleep(0.02)
    meter.cancel()
    assert running.lag.lags.worst > 0.1
