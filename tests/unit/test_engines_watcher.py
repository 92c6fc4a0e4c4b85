"""Claims about the watcher, on virtual time: seconds pass without being waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest, EngineFacts, EngineStats, Health, Hints
from sidecar.engines.watcher import EngineWatcher, Observation
from sidecar.errors import EngineError, NotAnEngine

pytestmark = pytest.mark.looptime

IDLE = EngineStats(identity="100.0", running=0, waiting=0, progress=10, kv_cache_usage=0.0, asleep=False)
BUSY = replace(IDLE, running=1, kv_cache_usage=0.5)


@dataclass
class Played:
    """An engine whose answers a test sets, each with the seconds it takes."""

    state: str = "up"
    new_connection: bool = False
    health_takes: float = 0.0
    stats_now: EngineStats | EngineError = IDLE
    stats_take: float = 0.0
    name: str = "played"
    scrapes: list[float] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)

    async def health(self) -> Health:
        self.checks.append(now())
        await asyncio.sleep(self.health_takes)
        fresh, self.new_connection = self.new_connection, False
        return Health(self.state, None, self.health_takes, f"played {self.state}.", fresh)  # type: ignore[arg-type]

    async def stats(self) -> EngineStats:
        self.scrapes.append(now())
        answer = self.stats_now
        await asyncio.sleep(self.stats_take)
        if isinstance(answer, EngineError):
            raise answer
        return answer

    async def facts(self) -> EngineFacts:
        raise NotImplementedError

    async def complete(self, request: CompletionRequest) -> Completion:
        raise NotImplementedError

    def use_hints(self, hints: Hints) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Watch:
    """A running watcher and what it reported, with times in seconds from its start."""

    def __init__(self, engine: Played, **settings: Any) -> None:
        self.reports: list[tuple[float, Observation]] = []
        self.start = now()
        watcher = EngineWatcher(engine, clock=now, sleep=asyncio.sleep, **settings)
        self._task = asyncio.create_task(watcher.run(self._report))

    def _report(self, observation: Observation) -> None:
        self.reports.append((round(now() - self.start, 3), observation))

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self._task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @property
    def last(self) -> Observation:
        return self.reports[-1][1]

    def states(self) -> list[str]:
        found: list[str] = []
        for _, observation in self.reports:
            if not found or found[-1] != observation.state:
                found.append(observation.state)
        return found

    def longest_gap(self) -> float:
        return max(after - before for (before, _), (after, _) in pairwise(self.reports))

    def first(self, condition: Callable[[Observation], bool]) -> float:
        return next(at for at, observation in self.reports if condition(observation))


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_every_look_is_reported_even_when_nothing_changes():
    async with Watch(Played()) as watch:
        await asyncio.sleep(10.5)
    assert len(watch.reports) == 11
    assert watch.states() == ["up"]


async def test_health_is_asked_every_second_and_metrics_every_five():
    engine = Played()
    async with Watch(engine):
        await asyncio.sleep(20.5)
    assert len(engine.checks) == 21
    assert len(engine.scrapes) == 5


async def test_the_first_report_of_an_engine_has_its_identity_and_metrics():
    async with Watch(Played()) as watch:
        await asyncio.sleep(0.1)
    assert watch.reports[0][1] == Observation("up", "process:100.0", "played up.", IDLE, answers=True)


@pytest.mark.parametrize("answer", ["refused", "reset"])
async def test_an_engine_that_stops_answering_is_gone_within_two_seconds(answer: str):
    engine = Played()
    async with Watch(engine) as watch:
        await asyncio.sleep(10.5)
        engine.state = answer
        await asyncio.sleep(2)
    assert watch.first(lambda each: each.state == "gone") <= 12.5
    assert (watch.last.identity, watch.last.stats) == ("", None)


async def test_an_engine_that_comes_up_is_noticed_within_a_quarter_second():
    engine = Played(state="refused")
    async with Watch(engine) as watch:
        await asyncio.sleep(5.05)
        engine.state = "up"
        await asyncio.sleep(1)
    assert watch.states() == ["gone", "up"]
    assert watch.first(lambda each: each.state == "up") <= 5.3


async def test_a_restart_between_two_looks_is_seen_by_its_new_connection():
    engine = Played()
    async with Watch(engine) as watch:
        await asyncio.sleep(6.5)
        engine.new_connection, engine.stats_now = True, replace(IDLE, identity="200.0")
        await asyncio.sleep(1)
    assert watch.states() == ["up"]
    assert watch.first(lambda each: each.identity == "process:200.0") <= 7.5


async def test_a_reading_of_the_old_process_is_not_taken_for_the_new_one():
    engine = Played()
    async with Watch(engine) as watch:
        await asyncio.sleep(4.5)
        engine.stats_take = 30
        await asyncio.sleep(2)
        assert len(engine.scrapes) == 2
        engine.new_connection = True
        engine.stats_now, engine.stats_take = replace(IDLE, identity="200.0"), 0.1
        await asyncio.sleep(2)
    assert watch.last.identity == "process:200.0"


async def test_a_slow_answer_is_load_and_never_delays_a_report_by_more_than_a_second():
    engine = Played()
    async with Watch(engine) as watch:
        await asyncio.sleep(3.5)
        engine.health_takes = 7.0
        await asyncio.sleep(12)
        engine.health_takes = 0.0
        await asyncio.sleep(12)
    assert watch.longest_gap() <= 2.001
    assert set(watch.states()) == {"up", "busy"}
    assert {each.identity for _, each in watch.reports} == {"process:100.0"}


async def test_slow_metrics_do_not_delay_reports_either():
    engine = Played(stats_take=3.0)
    async with Watch(engine) as watch:
        await asyncio.sleep(10)
    assert watch.longest_gap() <= 2.001
    assert watch.reports[0][1].identity == ""
    assert watch.last.identity == "process:100.0"


async def test_a_request_that_makes_no_progress_stalls_the_engine_after_the_set_time():
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=120) as watch:
        await asyncio.sleep(130)
    assert watch.states() == ["up", "stalled"]
    assert 120 <= watch.first(lambda each: each.state == "stalled") <= 126
    assert "made progress" in watch.last.detail


async def test_a_rank_that_stands_still_stalls_the_engine_although_the_others_work():
    def ranks(progress: float, running: float = 1, used: float = 0.5) -> EngineStats:
        """Give rank 0 that works and rank 1 that does not."""
        by_rank = {"0": progress, "1": 7.0}
        loads = {"0": (2.0, 0.1), "1": (running, used)}
        return replace(BUSY, running=3, progress=progress + 7, progress_by_rank=by_rank, load_by_rank=loads)

    async def watched(**of_one: Any) -> Observation:
        engine = Played(stats_now=ranks(0.0, **of_one))
        async with Watch(engine, stall_s=60) as watch:
            for at in range(14):
                await asyncio.sleep(5)
                more = {"used": 0.01 * at} if "used" in of_one else of_one
                engine.stats_now = ranks(at + 1.0, **more)
            return watch.last

    stalled = await watched()
    assert stalled.state == "stalled"
    assert "data-parallel rank 1 (1)" in stalled.detail
    # A rank that is idle, and one that reads a long prompt, which no counter shows.
    assert (await watched(running=0.0)).state == (await watched(used=0.0)).state == "up"


SECOND_RANK: dict[str, Callable[[int], tuple[dict[str, float], dict[str, tuple[float, float]]]]] = {
    "its counters start anew": lambda at: ({"1": 7.0 if at < 8 else 0.0}, {"1": (1.0, 0.5)}),
    "its requests end and others come": lambda at: ({"1": 7.0}, {"1": (float(at % 8 > 0), 0.5)}),
    "its counters are not told": lambda at: ({}, {"1": (1.0, 0.5)}),
    "its requests are not told": lambda at: ({"1": 7.0}, {}),
    "it is gone for a reading": lambda at: ({"1": 7.0}, {"1": (1.0, 0.5)} if at != 8 else {}),
}


@pytest.mark.parametrize("second", SECOND_RANK)
async def test_a_rank_that_can_not_be_said_to_stand_still_stalls_nothing(second: str):
    def ranks(at: int) -> EngineStats:
        progress, load = SECOND_RANK[second](at)
        return replace(
            BUSY,
            running=3,
            progress=float(at),
            progress_by_rank={"0": float(at), **progress},
            load_by_rank={"0": (2.0, 0.1), **load},
        )

    engine = Played(stats_now=ranks(0))
    async with Watch(engine, stall_s=60) as watch:
        for at in range(1, 18):
            await asyncio.sleep(5)
            engine.stats_now = ranks(at)
        assert watch.last.state == "up"


async def test_an_idle_engine_never_stalls():
    async with Watch(Played(stats_now=replace(IDLE, waiting=3)), stall_s=10) as watch:
        await asyncio.sleep(300)
    assert watch.states() == ["up"]


@pytest.mark.parametrize("tokens", [True, False])
async def test_progress_of_any_kind_is_no_stall(tokens: bool):
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=10) as watch:
        for step in range(30):
            moved = replace(BUSY, progress=step) if tokens else replace(BUSY, kv_cache_usage=step / 100)
            engine.stats_now = moved
            await asyncio.sleep(7)
    assert watch.states() == ["up"]


async def test_a_long_idle_time_does_not_count_as_a_stall_of_the_next_request():
    engine = Played()
    async with Watch(engine, stall_s=20) as watch:
        await asyncio.sleep(300)
        engine.stats_now = BUSY
        await asyncio.sleep(15)
    assert watch.states() == ["up"]


async def test_idle_time_without_metrics_does_not_count_either():
    engine = Played(stats_now=replace(BUSY, running=0))
    async with Watch(engine, stall_s=20) as watch:
        await asyncio.sleep(6)
        engine.stats_now = EngineError("metrics time out")
        await asyncio.sleep(100)
        engine.stats_now = BUSY
        await asyncio.sleep(15)
    assert watch.states() == ["up"]


async def test_a_stalled_engine_whose_requests_are_given_up_is_idle():
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=10) as watch:
        await asyncio.sleep(17)
        engine.stats_now = replace(BUSY, running=0)
        await asyncio.sleep(5)
    assert watch.states() == ["up", "stalled", "up"]


async def test_a_stalled_engine_that_moves_again_is_up():
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=10) as watch:
        await asyncio.sleep(20)
        engine.stats_now = replace(BUSY, progress=11)
        await asyncio.sleep(6)
    assert watch.states() == ["up", "stalled", "up"]


async def test_an_engine_that_shows_no_progress_counters_is_not_said_to_stall():
    async with Watch(Played(stats_now=replace(BUSY, progress=None)), stall_s=10) as watch:
        await asyncio.sleep(60)
    assert watch.states() == ["up"]


async def test_metrics_that_fail_are_no_new_evidence_of_a_stall():
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=20) as watch:
        await asyncio.sleep(12)
        engine.stats_now = EngineError("metrics time out")
        await asyncio.sleep(100)
    assert watch.states() == ["up"]


async def test_metrics_that_fail_for_long_are_not_told_as_how_the_engine_is_now():
    engine = Played(stats_now=BUSY)
    async with Watch(engine) as watch:
        await asyncio.sleep(6)
        engine.stats_now = EngineError("answers HTTP 500 to /metrics.")
        await asyncio.sleep(9)
        assert watch.last.stats == BUSY
        await asyncio.sleep(10)
        assert (watch.last.state, watch.last.stats, watch.last.identity) == ("up", None, "process:100.0")
        assert "could not be read for" in watch.last.detail
        assert "HTTP 500" in watch.last.detail
        engine.stats_now = IDLE
        await asyncio.sleep(7)
        assert watch.last.stats == IDLE
        assert "could not" not in watch.last.detail


async def test_an_engine_that_hangs_shows_no_load_from_before_and_does_not_answer():
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=30) as watch:
        await asyncio.sleep(6)
        assert watch.last.answers
        engine.health_takes = engine.stats_take = 10_000
        await asyncio.sleep(25)
        assert (watch.last.state, watch.last.stats, watch.last.answers) == ("busy", None, False)
        await asyncio.sleep(15)
        assert (watch.last.state, watch.last.stats, watch.last.answers) == ("stalled", None, False)


async def test_an_engine_that_answers_nothing_at_all_for_the_stall_time_is_stalled():
    engine = Played()
    async with Watch(engine, stall_s=30) as watch:
        await asyncio.sleep(2.5)
        engine.health_takes = 10_000
        await asyncio.sleep(40)
    assert watch.states() == ["up", "busy", "stalled"]
    assert watch.first(lambda each: each.state == "stalled") == pytest.approx(34, abs=1.1)


@pytest.mark.parametrize("takes", [12.0, 10_000.0])
async def test_an_engine_whose_requests_make_progress_is_never_stalled_however_long_its_health_check_takes(takes: float):
    engine = Played(stats_now=BUSY)
    async with Watch(engine, stall_s=30) as watch:
        await asyncio.sleep(6)
        engine.health_takes = takes
        for tokens in range(400):
            engine.stats_now = replace(BUSY, progress=100 + tokens)
            await asyncio.sleep(1)
        assert "stalled" not in watch.states()
        assert watch.last.stats is not None
        # Then it hangs: the counters stand still.
        await asyncio.sleep(60)
        assert "stalled" in watch.states()


async def test_an_idle_engine_whose_health_check_hangs_is_stalled_although_its_metrics_answer():
    engine = Played()
    async with Watch(engine, stall_s=30) as watch:
        await asyncio.sleep(6)
        engine.health_takes = 10_000
        await asyncio.sleep(40)
        assert (watch.last.state, watch.last.stats) == ("stalled", IDLE)


async def test_health_checks_that_time_out_one_after_the_other_are_one_silence():
    engine = Played(state="timed_out", health_takes=10)
    async with Watch(engine, stall_s=35) as watch:
        await asyncio.sleep(40)
    assert watch.states() == ["busy", "stalled"]


async def test_sleep_is_reported_and_ends():
    engine = Played(stats_now=replace(IDLE, asleep=True))
    async with Watch(engine) as watch:
        await asyncio.sleep(3)
        engine.stats_now = IDLE
        await asyncio.sleep(6)
    assert watch.states() == ["asleep", "up"]


async def test_a_core_that_died_is_gone_and_one_that_was_never_up_is_starting():
    engine = Played(state="unhealthy")
    async with Watch(engine) as watch:
        await asyncio.sleep(2)
        engine.state = "up"
        await asyncio.sleep(2)
        engine.state = "unhealthy"
        await asyncio.sleep(2)
    assert watch.states() == ["starting", "up", "gone"]


async def test_a_stranger_on_the_port_is_asked_at_leisure_and_forgotten_when_an_engine_comes():
    engine = Played(stats_now=NotAnEngine("This is a web server."))
    async with Watch(engine) as watch:
        await asyncio.sleep(20.5)
        assert len(engine.scrapes) == 5
        assert watch.last.detail == "This is a web server."
        engine.stats_now = IDLE
        await asyncio.sleep(6)
    assert watch.states() == ["not_an_engine", "up"]


async def test_a_port_that_is_no_engine_by_its_health_is_not_scraped():
    engine = Played(state="not_an_engine")
    async with Watch(engine) as watch:
        await asyncio.sleep(5)
    assert watch.states() == ["not_an_engine"]
    assert engine.scrapes == []


async def test_an_engine_without_start_time_has_another_identity_after_it_was_gone():
    engine = Played(stats_now=replace(IDLE, identity=None))
    async with Watch(engine, boot="ab12") as watch:
        await asyncio.sleep(20)
        first = watch.last.identity
        engine.state = "refused"
        await asyncio.sleep(2)
        engine.state = "up"
        await asyncio.sleep(2)
    assert first == "unnamed:ab12:1"
    assert watch.last.identity == "unnamed:ab12:2"


async def test_a_reading_without_start_time_does_not_change_the_identity():
    engine = Played()
    async with Watch(engine) as watch:
        await asyncio.sleep(3)
        engine.stats_now = replace(IDLE, identity=None)
        await asyncio.sleep(10)
    assert {each.identity for _, each in watch.reports} == {"process:100.0"}


async def test_missing_metrics_are_in_the_sentence_of_an_engine_that_is_up():
    engine = Played(stats_now=EngineStats(missing="No metrics here."))
    async with Watch(engine) as watch:
        await asyncio.sleep(1.5)
    assert (watch.last.state, watch.last.detail) == ("up", "No metrics here.")


async def test_a_defect_of_the_client_is_not_hidden():
    class Broken(Played):
        async def health(self) -> Health:
            raise ZeroDivisionError

    watcher = EngineWatcher(Broken(), clock=now, sleep=asyncio.sleep)
    with pytest.raises(ZeroDivisionError):
        await watcher.run(lambda _: None)
