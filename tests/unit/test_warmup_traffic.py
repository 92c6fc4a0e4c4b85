"""How one burst is sent, and what its errors mean."""

from __future__ import annotations

import asyncio
import random

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest, EngineStats
from sidecar.errors import EngineAsleep, EngineError
from sidecar.warmup.attempts import FRESH_S, Attempts, WarmPolicy
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.traffic import Traffic
from tests.unit.warmup_engine import StandInEngine, answered, failed, length, now

pytestmark = pytest.mark.looptime

MIXED = Burst("mixed", ((Ask(3, 8, 50),), (Ask(2, 500, 2),)), "after_first_token")


def _traffic(engine: StandInEngine, asleep: bool = False) -> Traffic:
    return Traffic(engine, PromptSource(random.Random(1), 32000), now, lambda: asleep)


async def _attempts(engine: StandInEngine, budget_s: float = 1e6, **policy: float) -> Attempts:
    attempts = Attempts(engine, _traffic(engine), WarmPolicy(**policy), now)  # type: ignore[arg-type]
    await attempts.begin(now() + budget_s)
    return attempts


async def test_all_requests_of_a_burst_are_in_flight_together():
    engine = StandInEngine()
    sent = await _traffic(engine).send(single("x", Ask(17, 8, 4)), 10)
    assert engine.busiest == 17
    assert len(sent.completions) == 17
    assert sent.tokens == 17 * 12


async def test_prefills_arrive_after_every_decode_has_shown_a_token_and_while_all_run():
    engine = StandInEngine()
    waits = iter((0.0, 0.1, 0.2))
    engine.stall = lambda request: next(waits) if length(request) == 8 else 0.0
    sent = await _traffic(engine).send(MIXED, 10)
    assert [at for at, tokens in engine.arrived if tokens == 500] == pytest.approx([0.22, 0.22])
    assert engine.busiest == 5
    assert sent.overlapped


async def test_prefills_that_came_too_late_are_told():
    engine = StandInEngine()
    engine.answer = answered
    attempts = await _attempts(engine)
    assert "the decodes ended before" in (await attempts.send(MIXED)).detail


async def test_no_prefill_is_sent_when_a_decode_failed():
    engine = StandInEngine()
    engine.answer = lambda request: failed("broken", "HTTP 500", 500) if length(request) == 8 else None
    await _traffic(engine).send(MIXED, 10)
    assert {length(request) for request in engine.requests} == {8}


async def test_requests_with_a_shared_prefix_come_once_it_is_cached():
    engine = StandInEngine(ttft_s=1, token_s=0)
    ask = Ask(1, 40, 1, prefix_tokens=32)
    await _traffic(engine).send(Burst("x", ((ask,), (ask, ask))), 10)
    assert [at for at, _ in engine.arrived] == [0, 1, 1]


async def test_nothing_is_sent_to_an_engine_that_is_asleep():
    engine = StandInEngine()
    with pytest.raises(EngineAsleep):
        await _traffic(engine, asleep=True).send(single("x", Ask(1, 8, 4)), 10)
    assert engine.requests == []


class _Overlooks(StandInEngine):
    async def complete(self, request: CompletionRequest) -> Completion:
        await asyncio.sleep(1e5)
        return answered(request)


async def test_a_client_that_overlooks_its_deadline_is_cut_off():
    sent = await _traffic(_Overlooks()).send(single("x", Ask(1, 8, 4)), 10)
    assert sent.completions[0].error_kind == "timed_out"
    assert now() <= 20


async def test_cancelling_a_burst_cancels_its_requests():
    engine = StandInEngine(ttft_s=100)
    task = asyncio.create_task(_traffic(engine).send(single("x", Ask(5, 8, 4)), 1000))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.in_flight == 0


async def test_what_is_broken_is_sent_again_after_a_growing_pause_and_then_given_up():
    engine = StandInEngine()
    engine.answer = lambda _: failed("broken", "HTTP 500 to /v1/completions: boom", 500)
    attempt = await (await _attempts(engine, retries=2, retry_pause_s=1)).send(single("x", Ask(1, 8, 4)))
    assert [at for at, _ in engine.arrived] == [0, 1, 3]
    assert (attempt.verdict, attempt.reason) == ("broken", "warmup_http_500")
    assert "boom" in attempt.detail


@pytest.mark.parametrize(("kind", "status"), [("broken", 503), ("timed_out", 429)])
async def test_an_engine_that_says_not_now_is_given_time(kind, status):
    """A full queue, 429, is told as `timed_out` by the client, and is no hang."""
    engine = StandInEngine()
    engine.answer = lambda _: failed(kind, f"HTTP {status}", status) if now() < 90 else None
    attempt = await (await _attempts(engine, unavailable_s=120)).send(single("x", Ask(1, 8, 4)))
    assert attempt.verdict == "done"
    assert now() >= 90


async def test_an_engine_that_says_not_now_for_ever_is_given_up():
    engine = StandInEngine()
    engine.answer = lambda _: failed("broken", "HTTP 503", 503)
    attempt = await (await _attempts(engine, unavailable_s=120)).send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.reason) == ("broken", "warmup_http_503")
    assert 120 <= now() < 200


@pytest.mark.parametrize("kind", ["unsupported", "unauthorized"])
async def test_what_cannot_get_better_is_not_sent_again(kind):
    engine = StandInEngine()
    engine.answer = lambda _: failed(kind, "no", 404 if kind == "unsupported" else 401)
    attempt = await (await _attempts(engine)).send(single("x", Ask(1, 8, 4)))
    assert attempt.verdict == kind
    assert len(engine.requests) == 1


async def test_a_reset_by_an_engine_that_is_dead_is_a_death_of_this_burst():
    engine = StandInEngine()
    engine.answer = lambda _: failed("reset", "connection reset", None)
    engine.state = "refused"
    attempt = await (await _attempts(engine)).send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.blamed) == ("engine_gone", True)


async def test_a_refused_connection_blames_no_burst():
    engine = StandInEngine()
    engine.answer = lambda _: failed("refused", "connection refused", None)
    engine.state = "refused"
    attempt = await (await _attempts(engine)).send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.blamed) == ("engine_gone", False)


async def test_an_engine_that_was_restarted_meanwhile_is_gone_though_it_answers():
    engine = StandInEngine()
    attempts = await _attempts(engine)

    def restarts(_request: CompletionRequest) -> Completion:
        engine.identity = "2.0"
        return failed("reset", "connection reset", None)

    engine.answer = restarts
    attempt = await attempts.send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.blamed) == ("engine_gone", True)


async def test_an_engine_that_was_restarted_between_two_bursts_is_another_one_and_none_of_them_is_to_blame():
    engine = StandInEngine()
    attempts = await _attempts(engine)
    assert (await attempts.send(single("x", Ask(1, 8, 4)))).verdict == "done"
    engine.identity = "2.0"
    await asyncio.sleep(FRESH_S)
    attempt = await attempts.send(single("y", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.blamed, len(engine.requests)) == ("engine_gone", False, 1)


async def test_an_engine_that_fell_asleep_a_moment_ago_is_sent_nothing_though_the_watcher_does_not_know_yet():
    engine = StandInEngine()
    attempts = await _attempts(engine)
    assert (await attempts.send(single("x", Ask(1, 8, 4)))).verdict == "done"
    engine.stats = _asleep
    await asyncio.sleep(FRESH_S)
    attempt = await attempts.send(single("y", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.reason, len(engine.requests)) == ("asleep", "engine_asleep", 1)


async def test_an_error_of_an_engine_that_fell_asleep_is_not_asked_for_again():
    engine = StandInEngine()
    attempts = await _attempts(engine)

    def falls_asleep(_request: CompletionRequest) -> Completion:
        engine.stats = _asleep
        return failed("broken", "HTTP 500", 500)

    engine.answer = falls_asleep
    attempt = await attempts.send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, len(engine.requests)) == ("asleep", 1)


async def test_bursts_in_quick_succession_share_one_look_at_the_metrics():
    engine, looks = StandInEngine(ttft_s=0.001, token_s=0), [0]
    told = engine.stats

    async def counted() -> EngineStats:
        looks[0] += 1
        return await told()

    engine.stats = counted
    attempts = await _attempts(engine)
    for _ in range(100):
        await attempts.send(single("x", Ask(1, 8, 1)))
    assert looks[0] <= 3


async def test_metrics_that_are_not_answered_hold_up_no_burst_for_long():
    engine = StandInEngine(ttft_s=0.01, token_s=0)
    attempts = await _attempts(engine)

    async def hangs() -> EngineStats:
        await asyncio.sleep(10)
        raise EngineError("no metrics")

    engine.stats = hangs
    began = now()
    for _ in range(100):
        assert (await attempts.send(single("x", Ask(1, 8, 1)))).verdict == "done"
    assert now() - began < 3


async def test_a_queue_that_stays_full_is_told_as_such():
    engine = StandInEngine()
    engine.answer = lambda _: failed("timed_out", "HTTP 429", 429)
    attempt = await (await _attempts(engine, unavailable_s=120)).send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.reason) == ("broken", "warmup_http_429")


@pytest.mark.parametrize("burst", [single("x", Ask(7, 8, 4)), MIXED], ids=["together", "mixed"])
@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_takes_two_requests_at_once_answers_all_of_a_burst_in_turns_and_that_is_told(
    burst, status
):
    engine = StandInEngine()
    full = failed("timed_out" if status == 429 else "broken", f"HTTP {status}: queue full", status)
    engine.answer = lambda _: full if engine.in_flight > 2 else None
    attempt = await (await _attempts(engine)).send(burst)
    assert attempt.verdict == "done"
    assert (len(attempt.sent.completions), all(each.ok for each in attempt.sent.completions)) == (burst.requests, True)
    assert "not all at once" in attempt.detail
    assert now() < 3


@pytest.mark.parametrize("lacks", [("cache_salt",), ("cache_salt", "ignore_eos")])
async def test_a_server_that_keeps_to_openais_fields_is_warmed_without_the_others(lacks):
    engine = StandInEngine()
    engine.answer = lambda request: (
        failed("unsupported", "HTTP 400: extra inputs", 400) if _has(request, lacks) else None
    )
    attempts = await _attempts(engine)
    for _ in range(2):
        assert (await attempts.send(single("x", Ask(1, 8, 4)))).verdict == "done"
    assert attempts.lacks == lacks
    # They are looked for once: 1 with all fields, one for each that is left out, one more burst.
    assert len(engine.requests) == 1 + len(lacks) + 1


async def test_a_first_burst_that_is_refused_for_another_reason_costs_no_later_one_its_fields():
    engine = StandInEngine()
    engine.answer = lambda request: (
        failed("unsupported", "HTTP 400: no min_p", 400) if "min_p" in request.extra else None
    )
    attempts = await _attempts(engine)
    assert (await attempts.send(single("x", Ask(1, 8, 4, fields={"min_p": 0.1})))).verdict == "unsupported"
    assert (await attempts.send(single("y", Ask(1, 8, 4)))).verdict == "done"
    assert attempts.lacks == ()
    assert engine.requests[-1].cache_salt is not None
    assert engine.requests[-1].extra["ignore_eos"] is True


def _has(request: CompletionRequest, lacks: tuple[str, ...]) -> bool:
    return request.cache_salt is not None or ("ignore_eos" in lacks and "ignore_eos" in request.extra)


async def _asleep() -> EngineStats:
    return EngineStats(identity="1.0", asleep=True)


async def test_a_dropped_connection_of_an_engine_that_lives_is_tried_again():
    engine = StandInEngine()
    engine.answer = lambda _: failed("reset", "connection reset", None) if now() < 1 else None
    assert (await (await _attempts(engine)).send(single("x", Ask(1, 8, 4)))).verdict == "done"


async def test_an_engine_whose_core_died_is_gone_though_it_answers_with_500():
    engine = StandInEngine()
    engine.answer = lambda _: failed("broken", "HTTP 500", 500)
    engine.state = "unhealthy"
    assert (await (await _attempts(engine)).send(single("x", Ask(1, 8, 4)))).verdict == "engine_gone"


async def test_a_request_that_the_budget_cut_off_is_no_hang():
    engine = StandInEngine(ttft_s=500)
    attempt = await (await _attempts(engine, budget_s=30, request_timeout_s=100)).send(single("x", Ask(1, 8, 4)))
    assert attempt.verdict == "out_of_time"
    assert now() == pytest.approx(30)


async def test_a_request_that_is_never_answered_is_a_hang():
    engine = StandInEngine(ttft_s=5000)
    attempt = await (await _attempts(engine, request_timeout_s=100)).send(single("x", Ask(1, 8, 4)))
    assert (attempt.verdict, attempt.reason) == ("timed_out", "warmup_timed_out")


async def test_requests_of_a_large_burst_are_started_one_by_one_so_that_the_loop_is_never_held():
    engine, turns = StandInEngine(), [0]
    seen: list[int] = []
    engine.stall = lambda _: seen.append(turns[0]) or 0.0  # type: ignore[func-returns-value]

    async def turn() -> None:
        # Virtual time passes only while nothing else does.
        while len(seen) < 100:
            turns[0] += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(turn())
        group.create_task(_traffic(engine).send(single("x", Ask(100, 8, 1)), 10))
    assert len(set(seen)) == 100


def test_no_prompt_is_made_before_its_request_is_sent(monkeypatch):
    made: list[int] = []
    tokens = PromptSource.tokens
    monkeypatch.setattr(PromptSource, "tokens", lambda self, count: made.append(count) or tokens(self, count))
    (drafts,) = PromptSource(random.Random(1), 32000).drafts(single("x", Ask(512, 100_000, 4)), 10)
    assert made == []
    assert len(drafts[0]().prompt or ()) == 100_000
    assert made == [100_000]


async def test_of_hundreds_of_requests_some_are_streamed_and_their_first_token_is_what_counts():
    engine = StandInEngine(ttft_s=1, token_s=1)
    sent = await _traffic(engine).send(single("x", Ask(512, 8, 11)), 100)
    assert sum(request.stream for request in engine.requests) == 64
    assert sent.slowest_s == pytest.approx(1)


async def test_decodes_that_others_wait_for_are_all_streamed():
    engine = StandInEngine()
    await _traffic(engine).send(Burst("x", ((Ask(100, 8, 50),), (Ask(2, 50, 2),)), "after_first_token"), 10)
    assert all(request.stream for request in engine.requests)
