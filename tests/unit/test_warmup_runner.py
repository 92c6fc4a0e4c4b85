"""When a warm-up ends, with what outcome, and what its sentence says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.evidence import Witness
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import Profile, load_profile
from sidecar.warmup.results import WarmProgress, WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.unit.warmup_engine import (
    FACTS,
    KernelModel,
    StandInEngine,
    failed,
    length,
    nothing_compiles,
    now,
    profile,
)

pytestmark = pytest.mark.looptime

PREFILL = {"kind": "prefill", "tokens": [1, 16, 17]}
SAMPLING = {"kind": "sampling", "features": ["greedy", "min_p"]}


def _runner(
    engine: StandInEngine,
    what: Profile,
    witness: Witness | None = None,
    *,
    killers: Collection[str] = (),
    asleep: bool = False,
    **policy: Any,
) -> WarmupRunner:
    return WarmupRunner(
        engine,
        make_plan(what, FACTS),
        witness or KernelModel(nothing_compiles),
        WarmPolicy(**policy),
        now,
        random.Random(1),
        lambda: asleep,
        killers,
    )


async def _warm(engine: StandInEngine, what: Profile, witness: Witness | None = None, **more: Any) -> WarmResult:
    return await _runner(engine, what, witness, **more).run()


def _converge(**fields: Any) -> dict[str, Any]:
    return {"converge": {"random_draws": 0, **fields}}


async def test_one_clean_round_is_enough_when_nothing_compiles():
    engine = StandInEngine()
    result = await _warm(engine, profile(PREFILL))
    assert (result.outcome, result.rounds, result.requests) == ("converged", 1, 3)


async def test_rounds_go_on_until_one_compiles_nothing():
    engine, kernels = StandInEngine(), KernelModel(length)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL), kernels)
    assert (result.outcome, result.rounds) == ("converged", 2)
    assert result.kernels == {"triton": 3}
    assert "compiled 3 kernels (3 triton)" in result.sentence


async def test_a_third_round_stall_that_wrote_a_kernel_means_a_fourth_round():
    engine = StandInEngine()
    kernels = KernelModel(lambda _: len(engine.requests) if len(engine.requests) in (2, 5, 8) else None)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL), kernels)
    assert result.rounds == 4


async def test_flat_latency_without_a_look_at_log_lines_would_not_be_enough():
    engine = StandInEngine()
    kernels = KernelModel(lambda _: now() < 0.2, known=(False,), stall_s=0)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL, **_converge(clean_rounds=2)), kernels)
    assert result.rounds == 3


async def test_random_draws_find_what_the_steps_never_visit_and_start_anew():
    engine, kernels = StandInEngine(), KernelModel(lambda request: length(request) > 600, known=(False,))
    engine.stall = kernels.stall
    what = profile(PREFILL, converge={"random_draws": 20}, mix={"prompt_tokens": {"from": 1, "to": 1024}})
    result = await _warm(engine, what, kernels)
    assert result.outcome == "converged"
    assert result.kernels == {"triton": 1}
    assert result.draws == 20
    assert result.residual_risk == pytest.approx(0.15)
    assert "at most 15 % of the traffic mix may still compile (95 % confidence)" in result.sentence


async def test_draws_that_never_stop_compiling_exhaust_the_warm_up():
    engine, kernels = StandInEngine(), KernelModel(lambda request: request.cache_salt, stall_s=0)
    engine.stall = lambda request: kernels.stall(request) if len(engine.requests) > 3 else 0.0
    result = await _warm(engine, profile(PREFILL, converge={"random_draws": 5, "max_rounds": 3}), kernels)
    assert (result.outcome, result.reason) == ("exhausted", "random_draws")


async def test_rounds_that_never_stop_compiling_exhaust_the_warm_up():
    engine, kernels = StandInEngine(), KernelModel(lambda request: request.cache_salt)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL, **_converge(max_rounds=3)), kernels)
    assert (result.outcome, result.reason, result.rounds) == ("exhausted", "max_rounds", 3)
    assert "may follow" in result.sentence


async def test_the_budget_ends_a_warm_up_and_the_sentence_says_what_to_do():
    engine, kernels = StandInEngine(), KernelModel(lambda request: request.cache_salt)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL), kernels, budget_s=10)
    assert (result.outcome, result.reason) == ("exhausted", "budget")
    assert now() <= 11
    assert "WARMUP_WARM_BUDGET_S" in result.sentence


async def test_a_profile_may_have_a_smaller_budget():
    engine, kernels = StandInEngine(), KernelModel(lambda request: request.cache_salt)
    engine.stall = kernels.stall
    result = await _warm(engine, profile(PREFILL, budget={"seconds": 5}), kernels, budget_s=1000)
    assert result.outcome == "exhausted"
    assert now() <= 6


async def test_a_budget_of_zero_sends_nothing():
    engine = StandInEngine()
    result = await _warm(engine, profile(PREFILL), budget_s=0)
    assert (result.outcome, engine.requests) == ("disabled", [])


async def test_an_engine_without_a_safe_payload_is_unwarmed_with_the_reason_and_gets_nothing():
    engine = StandInEngine()
    facts = replace(FACTS, role="prefill", kv_connectors=("P2pNcclConnector",))
    plan = make_plan(load_profile("sm90"), facts)
    result = await WarmupRunner(engine, plan, KernelModel(nothing_compiles), WarmPolicy(), now, random.Random(1)).run()
    assert (result.outcome, result.reason, engine.requests) == ("unwarmed", "no_safe_payload", [])
    assert "role is prefill through P2pNcclConnector" in result.sentence
    assert "no safe local payload" in result.to_json()["sentence"]
    assert result.coverage is None


async def test_a_profile_of_which_nothing_fits_is_unwarmed_and_says_what_does_not_fit():
    engine = StandInEngine()
    result = await _warm(engine, profile({"kind": "adapters"}))
    assert (result.outcome, result.reason, engine.requests) == ("unwarmed", "no_steps", [])
    assert "adapters: the engine lists no adapters" in result.sentence
    assert "WARMUP_PROFILE" in result.sentence


async def test_noise_below_the_floor_is_flat():
    engine = StandInEngine(ttft_s=0.01)
    engine.stall = lambda _: 0.04 if 3 < len(engine.requests) <= 6 else 0.0
    result = await _warm(engine, profile(PREFILL, **_converge(clean_rounds=3)))
    assert (result.outcome, result.rounds, result.requests) == ("converged", 3, 9)


async def test_a_single_slow_answer_is_measured_again_and_costs_no_round():
    engine = StandInEngine()
    engine.stall = lambda _: 2.0 if len(engine.requests) == 5 else 0.0
    result = await _warm(engine, profile(PREFILL, **_converge(clean_rounds=2)))
    assert (result.outcome, result.rounds, result.requests) == ("converged", 2, 7)


async def test_a_step_that_became_slow_for_good_is_not_flat_and_is_named():
    engine = StandInEngine()
    engine.stall = lambda request: 2.0 if length(request) == 17 and len(engine.requests) > 3 else 0.0
    result = await _warm(engine, profile(PREFILL, **_converge(clean_rounds=2, max_rounds=4)))
    assert (result.outcome, result.reason) == ("exhausted", "max_rounds")
    assert "prefill/17 is not flat yet" in result.sentence


async def test_a_kernel_that_appears_while_measuring_again_makes_the_round_unclean():
    engine = StandInEngine()
    kernels = KernelModel(lambda _: len(engine.requests) == 7, known=(False,), stall_s=0)
    engine.stall = lambda request: 2.0 if len(engine.requests) == 5 else kernels.stall(request)
    result = await _warm(engine, profile(PREFILL, **_converge(clean_rounds=2)), kernels)
    assert result.rounds == 4


async def test_what_the_engine_does_not_support_is_noted_once_and_skipped_later():
    engine, kernels = StandInEngine(), KernelModel(length)
    engine.stall = kernels.stall
    engine.answer = lambda request: (
        failed("unsupported", "HTTP 400: no min_p", 400) if "min_p" in request.extra else None
    )
    result = await _warm(engine, profile(PREFILL, SAMPLING), kernels)
    assert result.outcome == "converged"
    assert result.unsupported == ("sampling/min_p",)
    assert sum("min_p" in request.extra for request in engine.requests) == 1
    assert result.steps[1].state == "done"
    assert "no min_p" in result.steps[1].detail


async def test_an_engine_that_supports_nothing_is_a_failure_and_not_warm():
    engine = StandInEngine()
    engine.answer = lambda _: failed("unsupported", "HTTP 404: the model `x` does not exist", 404)
    result = await _warm(engine, profile(PREFILL, SAMPLING))
    assert (result.outcome, result.reason) == ("failed", "unsupported")
    assert "does not exist" in result.sentence
    assert {step.state for step in result.steps} == {"unsupported"}


async def test_an_engine_that_answers_everything_with_500_fails_at_the_first_step():
    engine = StandInEngine()
    engine.answer = lambda _: failed("broken", "HTTP 500 to /v1/completions: numba cache", 500)
    result = await _warm(engine, profile(PREFILL, SAMPLING))
    assert (result.outcome, result.reason) == ("failed", "warmup_http_500")
    assert "numba cache" in result.sentence
    assert len(engine.requests) == 3
    assert result.steps[0].state == "failed"


async def test_one_broken_kind_of_request_fails_the_warm_up_after_the_rest_was_warmed():
    engine = StandInEngine()
    engine.answer = lambda request: failed("broken", "HTTP 500: boom", 500) if "min_p" in request.extra else None
    result = await _warm(engine, profile(SAMPLING, PREFILL))
    assert (result.outcome, result.reason) == ("failed", "warmup_http_500")
    assert [step.state for step in result.steps] == ["failed", "done"]


async def test_a_wrong_key_ends_the_warm_up_with_a_sentence():
    engine = StandInEngine()
    engine.answer = lambda _: failed("unauthorized", "HTTP 401", 401)
    result = await _warm(engine, profile(PREFILL))
    assert (result.outcome, result.reason, len(engine.requests)) == ("failed", "unauthorized", 1)
    assert "WARMUP_API_KEY_FILE" in result.sentence


async def test_a_hang_ends_the_warm_up():
    engine = StandInEngine(ttft_s=1e6)
    result = await _warm(engine, profile(PREFILL), request_timeout_s=100)
    assert (result.outcome, result.reason, len(engine.requests)) == ("failed", "warmup_timed_out", 1)
    assert result.steps[0].state == "failed"


def _dies_of(engine: StandInEngine, tokens: int) -> None:
    def answer(request: Any) -> Any:
        if length(request) < tokens:
            return None
        engine.state = "refused"
        return failed("reset", "connection reset", None)

    engine.answer = answer


async def test_the_burst_during_which_the_engine_died_is_named():
    engine = StandInEngine()
    _dies_of(engine, 17)
    result = await _warm(engine, profile(PREFILL, SAMPLING))
    assert result.outcome == "engine_gone"
    assert result.killers == ("prefill/17",)
    assert [step.state for step in result.steps] == ["killer", "pending"]


async def test_a_killer_and_what_is_larger_are_left_out_next_time_and_not_called_warm():
    engine = StandInEngine()
    _dies_of(engine, 17)
    what = profile({"kind": "prefill", "tokens": [1, 16, 17, 500]}, converge={"random_draws": 50})
    result = await _warm(engine, what, killers=("prefill/17",))
    assert (result.outcome, result.reason) == ("exhausted", "killers_left_out")
    assert max(length(request) for request in engine.requests) < 17
    assert "prefill/17, prefill/500" in result.sentence
    assert result.killers == ("prefill/17",)


async def test_after_a_death_by_mixed_batches_nothing_is_sent_together():
    engine = StandInEngine()
    mixed = {"kind": "mixed", "decodes": 2, "prefill_tokens": [50]}
    what = profile(PREFILL, mixed, converge={"random_draws": 50}, mix={"concurrency": {"from": 1, "to": 8}})
    await _warm(engine, what, killers=("mixed/2 + 50",))
    assert engine.busiest == 1


async def test_an_engine_that_is_asleep_gets_no_traffic():
    engine = StandInEngine()
    result = await _warm(engine, profile(PREFILL), asleep=True)
    assert (result.outcome, result.reason, engine.requests) == ("failed", "engine_asleep", [])


async def test_a_live_cache_that_cannot_be_read_proves_nothing():
    kernels = KernelModel(nothing_compiles)
    kernels.blind = "the live cache /x can't be read (Permission denied)"
    result = await _warm(StandInEngine(), profile(PREFILL), kernels)
    assert (result.outcome, result.reason, result.rounds) == ("exhausted", "blind", 2)
    assert "Permission denied" in result.sentence


async def test_an_empty_live_cache_takes_a_second_round_and_is_told():
    kernels = KernelModel(nothing_compiles)
    kernels.empty = True
    result = await _warm(StandInEngine(), profile(PREFILL, converge={"random_draws": 5}), kernels)
    assert (result.outcome, result.rounds, result.residual_risk) == ("converged", 2, None)
    assert "the live cache is empty" in result.sentence


async def test_progress_shows_what_runs_and_ends_where_the_result_is():
    engine, kernels = StandInEngine(), KernelModel(length)
    engine.stall = kernels.stall
    seen: list[WarmProgress] = []
    result = await _runner(engine, profile(PREFILL, SAMPLING), kernels).run(seen.append)
    assert seen[0].steps[0].state == "running"
    assert seen[0].steps[1].state == "pending"
    assert "prefill/1" in seen[0].activity
    assert seen[-1].requests == result.requests
    assert [each.requests for each in seen] == sorted(each.requests for each in seen)
    assert seen[-1].to_json()["outcome"] == "running"
    assert set(result.steps[0].to_json()) >= {
        "name",
        "kind",
        "state",
        "ttft_first_s",
        "ttft_last_s",
        "kernels",
        "detail",
    }


async def test_the_first_and_the_last_time_to_first_token_of_a_step_are_told():
    engine, kernels = StandInEngine(), KernelModel(length)
    engine.stall = kernels.stall
    (step,) = (await _warm(engine, profile(PREFILL), kernels)).steps
    assert step.ttft_first_s == pytest.approx(3.02)
    assert step.ttft_last_s == step.ttft_best_s == pytest.approx(0.02)
    assert (step.kernels, step.rounds, step.requests) == (3, 2, 6)


async def test_every_burst_that_stalled_is_told_and_not_the_slowest_alone():
    engine, kernels = StandInEngine(), KernelModel(length, known=(16,))
    engine.stall = kernels.stall
    (step,) = (await _warm(engine, profile(PREFILL), kernels)).steps
    assert [each.burst for each in step.stalls] == ["1", "17"]
    assert [each.slowest_s for each in step.stalls] == pytest.approx([3.02, 3.02])
    assert step.stall_s == pytest.approx(6.0)
    assert step.to_json()["stalls"] == 2
    assert step.to_json()["stall_s"] == pytest.approx(6.0)


async def test_a_stall_in_a_later_round_counts_too():
    engine = StandInEngine()
    kernels = KernelModel(lambda _: len(engine.requests) if len(engine.requests) in (2, 5) else None)
    engine.stall = kernels.stall
    (step,) = (await _warm(engine, profile(PREFILL), kernels)).steps
    assert [each.burst for each in step.stalls] == ["16"]
    assert step.stall_s == pytest.approx(6.0)


async def test_noise_is_no_stall():
    engine = StandInEngine()
    engine.stall = lambda _: 0.04 if len(engine.requests) == 2 else 0.0
    (step,) = (await _warm(engine, profile(PREFILL, **_converge(clean_rounds=2)))).steps
    assert step.stalls == ()


async def test_prompts_differ_between_rounds():
    engine = StandInEngine()
    await _warm(engine, profile({"kind": "prefill", "tokens": [40]}, **_converge(clean_rounds=5)))
    assert len({request.prompt for request in engine.requests}) == 5


async def test_a_cancelled_warm_up_leaves_no_request_behind():
    engine = StandInEngine(ttft_s=100)
    task = asyncio.create_task(_warm(engine, profile(PREFILL)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.in_flight == 0


@pytest.mark.parametrize("name", ["cpu", "sm90"])
async def test_a_shipped_profile_runs_through_and_converges(name):
    engine, kernels = (
        StandInEngine(),
        KernelModel(lambda request: "logprobs" in request.extra, known=(False,)),
    )
    engine.stall = kernels.stall
    result = await _warm(engine, load_profile(name), kernels)
    assert (result.outcome, result.rounds, result.kernels) == ("converged", 2, {"triton": 1})
    assert {step.state for step in result.steps} == {"done"}
    assert "decodes ended" not in " ".join(step.detail for step in result.steps)
    assert result.residual_risk is not None
    assert result.residual_risk <= 0.1
