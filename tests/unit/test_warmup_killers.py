"""Engines that die of what was sent beyond the steps: remembered by its extent, not sent again, its neighbours are."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.coverage import Coverage, Matter
from sidecar.warmup.deadly import Deadly, Extent
from sidecar.warmup.planner import Plan, make_plan
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.unit.warmup_engine import FACTS, KernelModel, StandInEngine, failed, length, nothing_compiles, now, profile

pytestmark = pytest.mark.looptime

SEARCH: dict[str, Any] = {"enabled": True, "gap": 0.2, "bound": 0.1}
LONE = {"prompt_tokens": {"from": 8, "to": 1024}, "concurrency": {"from": 1, "to": 1}}
#: Between 512 and 513 tokens of this engine lies a kernel, so the search goes to both.
EDGE = 512


def _plan(longest: int, **fields: Any) -> Plan:
    steps = {"kind": "prefill", "tokens": [1, 16, 17, longest]}
    return make_plan(profile(steps, search=SEARCH, mix=LONE, **fields), FACTS)


def _mortal(deadly: Collection[int]) -> StandInEngine:
    """Give an engine that dies of prompts of these lengths."""
    engine = StandInEngine()

    def answer(request: CompletionRequest) -> Completion | None:
        if length(request) not in deadly:
            return None
        engine.state = "refused"
        return failed("reset", "connection reset", None)

    engine.answer = answer
    return engine


async def _warm(
    engine: StandInEngine, plan: Plan, killers: Collection[str] = (), coverage: Coverage | None = None,
    key: Any = nothing_compiles,
) -> WarmResult:  # fmt: skip
    kernels = KernelModel(key, stall_s=0.1)
    engine.stall = kernels.stall
    rng = random.Random(1)
    runner = WarmupRunner(engine, plan, kernels, WarmPolicy(), now, rng, lambda: False, killers, coverage)
    return await runner.run()


async def _searched(plan: Plan) -> AsyncIterator[int]:
    """Give the lengths that a search visits beyond the steps, in its order."""
    engine = StandInEngine()
    await _warm(engine, plan)
    known = {length(request) for request in engine.requests[:4]}
    for request in engine.requests:
        if length(request) not in known:
            yield length(request)


async def test_a_search_probe_of_which_the_engine_died_is_named_with_its_extent():
    plan = _plan(1024)
    size = [each async for each in _searched(plan)][3]
    result = await _warm(_mortal([size]), plan)
    assert result.outcome == "engine_gone"
    assert result.killers == (f"search/1 at once, up to {size} of {size + 2} tokens",)
    assert f"during search, token counts: {size}" in result.sentence
    assert "not sent to this engine again" in result.sentence


async def test_a_deadly_probe_is_not_sent_again_and_the_sentence_names_it():
    plan = _plan(1024)
    lengths = [each async for each in _searched(plan)]
    died = await _warm(_mortal([lengths[3]]), plan)
    again = _mortal([lengths[3]])
    result = await _warm(again, plan, died.killers)
    assert (result.outcome, result.reason) == ("exhausted", "killers_left_out")
    assert died.killers[0] in result.sentence
    assert result.killers == died.killers
    assert lengths[3] not in {length(request) for request in again.requests}


async def test_neighbours_of_a_deadly_probe_are_sent_when_something_larger_was_answered():
    plan = _plan(1024)
    lengths = [each async for each in _searched(plan)]
    died = await _warm(_mortal([lengths[3]]), plan)
    again = _mortal([lengths[3]])
    await _warm(again, plan, died.killers)
    assert {*lengths} - {length(request) for request in again.requests} == {lengths[3]}


async def test_nothing_beyond_what_was_answered_is_sent_after_a_death_of_the_largest_burst_so_far():
    plan = _plan(100)
    lengths = [each async for each in _searched(plan)]
    died = await _warm(_mortal([1024]), plan)
    again = _mortal([])
    result = await _warm(again, plan, died.killers)
    sent = {length(request) for request in again.requests}
    assert max(sent) == 100
    assert {each for each in lengths if each < 100} <= sent
    assert result.reason == "killers_left_out"


async def test_sizes_that_were_left_out_are_not_told_to_the_next_pod_as_covered():
    plan = _plan(100)
    died = await _warm(_mortal([1024]), plan)
    result = await _warm(_mortal([]), plan, died.killers)
    assert result.coverage is not None
    assert max(result.coverage.sizes["token counts"]) == 100


async def test_random_draws_leave_out_what_is_as_large_as_a_deadly_one():
    plan = _plan(100, converge={"random_draws": 40, "max_rounds": 3})
    again = StandInEngine()
    result = await _warm(again, plan, ("draws/1 at once, up to 300 of 310 tokens",))
    assert max(length(request) for request in again.requests) <= 100
    assert result.draws < 40


async def test_a_deadly_burst_is_not_replayed_and_the_next_pod_is_not_told_to_do_so():
    plan = _plan(1024)
    burst = single("600 tokens", Ask(1, 600, 2))
    earlier = Coverage(plan="other", matters=(Matter("search, token counts: 600", burst, frozenset({"triton/a"})),))
    died = await _warm(_mortal([600]), plan, coverage=earlier)
    assert died.killers == ("replay/1 at once, up to 600 of 602 tokens",)
    assert died.coverage is not None
    assert died.coverage.matters == ()
    again = StandInEngine()
    await _warm(again, plan, died.killers, earlier)
    assert 600 not in {length(request) for request in again.requests}


async def test_a_replay_stops_at_the_size_that_killed_until_something_as_large_was_answered():
    plan = _plan(100)
    sizes = (300, 600, 700, 800)
    matters = tuple(
        Matter(
            f"search, token counts: {size}", single(f"{size} tokens", Ask(1, size, 2)), frozenset({f"triton/{size}"})
        )
        for size in sizes
    )
    earlier = Coverage(plan="other", matters=matters)
    died = await _warm(_mortal(range(600, 1025)), plan, coverage=earlier)
    again = _mortal(range(600, 1025))
    result = await _warm(again, plan, died.killers, earlier)
    assert (result.outcome, result.reason) == ("exhausted", "killers_left_out")
    assert result.replayed == 1
    assert max(length(request) for request in again.requests) == 300


async def test_what_a_deadly_burst_compiled_is_no_reason_to_replay_it():
    plan = _plan(1024)
    size = [each async for each in _searched(plan)][3]
    engine = _mortal([])
    kernels = KernelModel(lambda request: length(request) == size, known=(False,), stall_s=0.1)

    def answer(request: CompletionRequest) -> Completion | None:
        if length(request) != size:
            return None
        kernels.stall(request)
        engine.state = "refused"
        return failed("reset", "connection reset", None)

    engine.answer = answer
    result = await WarmupRunner(engine, plan, kernels, WarmPolicy(), now, random.Random(1)).run()
    assert (result.outcome, result.kernels) == ("engine_gone", {"triton": 1})
    assert result.coverage is not None
    assert result.coverage.matters == ()


def test_an_extent_is_read_back_from_its_name_and_from_no_name_of_a_step():
    burst = Burst("x", ((Ask(3, 8, 40),), (Ask(2, 100, 2),)), "after_first_token")
    extent = Extent.of(burst)
    assert extent == Extent(5, 100, 3 * 48 + 2 * 102)
    assert Extent.named(extent.name_of("draws")) == extent
    assert Extent.named("prefill/17") is None
    assert Extent.named("concurrent prefill/3 x 128") is None


def test_killers_of_steps_leave_nothing_out_of_the_search():
    assert not Deadly(["prefill/17"]).leaves_out(single("x", Ask(1, 17, 2)))
