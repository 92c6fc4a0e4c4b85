"""With data-parallel ranks, coverage is claimed for those only whose counters moved."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sidecar.engines.protocol import CompletionRequest, EngineStats
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.coverage import Coverage, plan_digest
from sidecar.warmup.planner import make_plan
from sidecar.warmup.ranks import RankWatch
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.unit.warmup_engine import FACTS, KernelModel, StandInEngine, now, profile

pytestmark = pytest.mark.looptime

STEPS = ({"kind": "prefill", "tokens": [1, 16]}, {"kind": "data_parallel", "tokens": [8]})


class Ranked(StandInEngine):
    """Counts requests by rank; those of `deaf` ranks, and those for any rank, all go to rank 0."""

    def __init__(self, ranks: int, deaf: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.deaf = deaf
        self.worked = {str(rank): 0.0 for rank in range(ranks)}

    async def stats(self) -> EngineStats:
        return EngineStats(identity=self.identity, progress_by_rank=dict(self.worked))

    async def complete(self, request: CompletionRequest):
        rank = 0 if request.rank is None or request.rank in self.deaf else request.rank
        self.worked[str(rank)] += 1.0
        return await super().complete(request)


async def _warm(engine: Ranked, coverage: Coverage | None = None) -> WarmResult:
    facts = replace(FACTS, dp_ranks=len(engine.worked))
    plan = make_plan(profile(*STEPS), facts)
    known = coverage and replace(coverage, plan=plan_digest(plan))
    kernels = KernelModel(lambda request: "all", known=("all",))
    return await WarmupRunner(engine, plan, kernels, WarmPolicy(), now, random.Random(1), coverage=known).run()


async def test_ranks_that_all_worked_are_converged() -> None:
    result = await _warm(Ranked(4))
    assert (result.outcome, result.idle_ranks) == ("converged", ())


async def test_a_rank_without_progress_is_named_and_coverage_is_not_claimed() -> None:
    result = await _warm(Ranked(4, deaf=(1, 3)))
    assert (result.outcome, result.reason, result.idle_ranks) == ("exhausted", "idle_ranks", ("1", "3"))
    assert "ranks 1, 3" in result.sentence
    assert result.coverage is not None
    assert not result.coverage.converged
    assert result.to_json()["idle_ranks"] == ["1", "3"]


async def test_a_replay_that_did_not_reach_a_rank_proves_nothing() -> None:
    earlier = Coverage(plan="", converged=True)
    assert (await _warm(Ranked(2), earlier)).rounds == 0
    result = await _warm(Ranked(2, deaf=(1,)), earlier)
    assert (result.outcome, result.rounds, result.idle_ranks) == ("exhausted", 1, ("1",))


async def test_counters_that_are_a_moment_late_are_waited_for() -> None:
    readings = iter([{"0": 1.0, "1": 1.0}, {"0": 5.0, "1": 1.0}, {"0": 5.0, "1": 5.0}])

    async def read() -> Mapping[str, float]:
        return next(readings)

    watch = RankWatch(read)
    await watch.begin()
    assert await watch.idle() == ()


@pytest.mark.parametrize("ranks", [{}, {"0": 1.0}])
async def test_an_engine_with_one_rank_is_not_asked_again(ranks: dict[str, float]) -> None:
    asked = []

    async def read() -> Mapping[str, float]:
        asked.append(1)
        return ranks

    watch = RankWatch(read)
    await watch.begin()
    assert await watch.idle() == ()
    assert len(asked) == 1
