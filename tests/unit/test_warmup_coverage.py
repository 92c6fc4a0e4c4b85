"""What a warm-up leaves to the next pod, and what the next pod makes of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.coverage import MATTERS_KEPT, NAMES_KEPT, Coverage, Matter, coverage_path, load, plan_digest
from sidecar.warmup.planner import make_plan
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.unit.warmup_engine import FACTS, KernelModel, StandInEngine, failed, length, now, profile

STEPS = ({"kind": "prefill", "tokens": [1, 16, 17, 500]}, {"kind": "logprobs", "values": [0, 5]})
MIX = {"prompt_tokens": {"from": 1, "to": 600}, "concurrency": {"from": 1, "to": 3}}
WHOLE = Coverage(
    plan="abc",
    profile="sm90",
    converged=True,
    draws=60,
    sizes={"token counts": (1, 2, 17)},
    matters=(
        Matter("prefill/17", single("17", Ask(1, 17, 3)), frozenset({"triton/A/k.cubin"})),
        Matter("random draw 3", Burst("draw 3", ((Ask(2, 9, 4, temperature=1.0, fields={"top_p": 0.9}),),))),
        Matter("chat/chat", None),
    ),
)


def _kernel(request: Any) -> object:
    return "logprobs" if "logprobs" in request.extra else length(request) // 100


async def _warm(
    have: set[object], coverage: Coverage | None = None, refused: str = "", **fields: Any
) -> tuple[WarmResult, StandInEngine]:
    engine, kernels = StandInEngine(), KernelModel(_kernel)
    kernels.known = have
    engine.stall = kernels.stall

    def answer(request: CompletionRequest) -> Completion | None:
        if refused not in request.extra:
            return None
        kernels.stall(request)
        return failed("unsupported", "HTTP 400", 400)

    engine.answer = answer
    given = {"converge": {"random_draws": 20}, "mix": MIX, "search": {"gap": 0.05, "replay_draws": 6}, **fields}
    plan = make_plan(profile(*STEPS, **given), FACTS)
    runner = WarmupRunner(engine, plan, kernels, WarmPolicy(), now, random.Random(1), coverage=coverage)
    return await runner.run(), engine


def test_the_document_is_read_back_as_it_was_written(tmp_path):
    path = coverage_path(tmp_path)
    WHOLE.save(path)
    assert load(path) == (WHOLE, "")
    assert json.loads(path.read_text())["format"] == 1


def test_where_there_is_none_nothing_is_told(tmp_path):
    assert load(coverage_path(tmp_path)) == (None, "")


def _matter(**burst: Any) -> dict[str, Any]:
    return {"name": "a", "kernels": [], "burst": {"key": "a", "then": "after_completion", "phases": [], **burst}}


NEGATIVE = {"count": -1, "prompt_tokens": 1, "output_tokens": 1}
PLAIN = {"count": 1, "prompt_tokens": 9, "output_tokens": 1}
ODD_ASKS = (
    {"prefix_tokens": 10},
    {"prefix_tokens": "x"},
    {"temperature": "hot"},
    {"temperature": float("nan")},
    {"fields": 5},
    {"text": 5},
    {"stream": "no"},
    {"messages": [{"role": 5}]},
)
BAD_MATTERS = (
    {"name": "a"},
    _matter(),
    _matter(then="x"),
    _matter(phases=[[]]),
    _matter(phases=[[NEGATIVE]]),
    *(_matter(phases=[[PLAIN | odd]]) for odd in ODD_ASKS),
)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in WHOLE.to_json().items() if key != name}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(WHOLE.to_json() | {"format": 99}).encode(),
        json.dumps(WHOLE.to_json() | {"draws": "many"}).encode(),
        json.dumps(WHOLE.to_json() | {"converged": 1}).encode(),
        json.dumps(WHOLE.to_json() | {"sizes": {"token counts": ["x"]}}).encode(),
        *(json.dumps(WHOLE.to_json() | {"matters": [each]}).encode() for each in BAD_MATTERS),
        *(json.dumps(_without(name)).encode() for name in WHOLE.to_json() if name != "mix"),
    ],
)
def test_a_damaged_or_foreign_document_is_no_coverage_and_is_told_of(tmp_path: Path, content: bytes):
    path = coverage_path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    coverage, told = load(path)
    assert coverage is None
    assert "can't be used, so everything is tried again" in told


def test_another_plan_has_another_digest_and_the_room_of_the_kv_cache_does_not_count():
    what = profile(*STEPS)
    same = make_plan(what, FACTS.__class__(**{**_fields(), "kv_blocks": 3000}))
    other = make_plan(what, FACTS.__class__(**{**_fields(), "max_num_batched_tokens": 2048}))
    assert plan_digest(make_plan(what, FACTS)) == plan_digest(same) != plan_digest(other)


def _fields() -> dict[str, Any]:
    return {name: getattr(FACTS, name) for name in FACTS.__dataclass_fields__}


@pytest.mark.looptime
async def test_bursts_that_compiled_are_what_matters_each_with_its_kernels():
    result, _ = await _warm(set())
    assert result.outcome == "converged", result.sentence
    assert result.coverage is not None
    matters = {each.name: each.names for each in result.coverage.matters}
    assert matters["prefill/500"] == {"triton/5"}
    assert matters["logprobs/logprobs 0"]
    assert "prefill/17" not in matters
    assert sum(len(names) for names in matters.values()) == sum(result.kernels.values())


@pytest.mark.looptime
async def test_the_next_pod_replays_what_matters_and_a_small_proof_and_no_more():
    have: set[object] = set()
    first, _ = await _warm(have)
    assert first.coverage is not None
    second, engine = await _warm(have, Coverage.from_json(json.loads(json.dumps(first.coverage.to_json()))))
    assert (second.outcome, second.rounds, second.kernels, second.lost) == ("converged", 0, {}, ())
    assert second.replayed == len(first.coverage.matters)
    draws = [request for request in engine.requests if request.max_tokens > 0]
    assert len(draws) == second.requests
    # Bursts that compiled, two features, and six draws of up to three requests.
    assert second.requests <= sum(each.burst.requests for each in first.coverage.matters if each.burst) + 2 + 18
    assert second.requests < first.requests / 3
    assert "with the 20 of earlier pods" in second.sentence
    assert second.residual_risk == pytest.approx(3 / 26)


@pytest.mark.looptime
async def test_bursts_are_replayed_small_before_large():
    have: set[object] = set()
    first, _ = await _warm(have)
    _, engine = await _warm(have, first.coverage)
    assert first.coverage is not None
    sizes = [length(each) for each in engine.requests[: len(first.coverage.matters) - 1]]
    assert sizes == sorted(sizes)


@pytest.mark.looptime
async def test_what_compiles_on_replay_is_told_as_lost_and_everything_follows():
    have: set[object] = set()
    first, _ = await _warm(have)
    have.discard(5)
    second, _ = await _warm(have, first.coverage)
    assert second.outcome == "converged"
    assert (second.lost, second.lost_kernels) == (("triton/5",), {"triton": 1})
    assert second.rounds >= 1
    assert "1 kernel that an earlier pod had compiled was lost from the cache" in second.sentence
    assert second.residual_risk == pytest.approx(3 / 20)


@pytest.mark.looptime
async def test_a_kernel_that_no_earlier_pod_met_is_not_told_as_lost_but_everything_follows():
    have: set[object] = set()
    first, _ = await _warm(have)
    assert first.coverage is not None
    known = tuple(each for each in first.coverage.matters if "triton/5" not in each.names)
    chance = Matter("drawn", single("drawn", Ask(1, 500, 1)), frozenset({"triton/other"}))
    have.discard(5)
    second, _ = await _warm(have, replace(first.coverage, matters=(*known, chance)))
    assert second.outcome == "converged"
    assert (second.lost, second.lost_kernels, second.kernels) == ((), {}, {"triton": 1})
    assert second.rounds >= 1
    assert "lost" not in second.sentence


@pytest.mark.parametrize(("kept", "may"), [(3, False), (NAMES_KEPT, True)])
def test_a_kernel_may_be_known_where_a_burst_has_more_names_than_are_kept(kept: int, may: bool):
    matter = Matter("drawn", None, frozenset(f"triton/{number}" for number in range(kept)))
    assert Coverage("p", matters=(matter,)).may_know("triton/1")
    assert Coverage("p", matters=(matter,)).may_know("triton/none") is may


@pytest.mark.looptime
async def test_a_burst_that_compiled_and_was_then_refused_does_not_fail_the_next_pod():
    have: set[object] = set()
    first, _ = await _warm(have, refused="logprobs")
    assert first.outcome == "converged", first.sentence
    assert first.unsupported
    assert first.coverage is not None
    assert {*first.unsupported} & {each.name for each in first.coverage.matters}
    second, _ = await _warm(have, first.coverage, refused="logprobs")
    assert (second.outcome, second.rounds, second.unsupported) == ("converged", 0, first.unsupported)


@pytest.mark.looptime
async def test_coverage_of_another_plan_is_replayed_but_proves_nothing():
    have: set[object] = set()
    first, _ = await _warm(have)
    second, _ = await _warm(have, first.coverage, mix={**MIX, "output_tokens": {"from": 1, "to": 3}})
    assert (second.outcome, second.rounds) == ("converged", 1)
    assert second.replayed > 0
    assert second.residual_risk == pytest.approx(3 / 20)


@pytest.mark.looptime
async def test_a_draw_that_compiles_after_a_clean_replay_brings_the_rounds_back():
    have: set[object] = set()
    first, _ = await _warm(have)
    assert first.coverage is not None
    forgetful = Coverage(**{**_parts(first.coverage), "matters": ()})
    have -= {1, 2, 3, 4}
    second, _ = await _warm(have, forgetful)
    assert second.rounds >= 1
    assert second.kernels


def _parts(coverage: Coverage) -> dict[str, Any]:
    return {name: getattr(coverage, name) for name in coverage.__dataclass_fields__}


@pytest.mark.looptime
async def test_a_search_that_was_cut_short_goes_on_in_the_next_pod():
    have: set[object] = set()
    first, _ = await _warm(have, search={"gap": 0.05, "max_requests": 8})
    assert (first.outcome, first.reason) == ("exhausted", "coverage")
    second, _ = await _warm(have, first.coverage, search={"gap": 0.05, "max_requests": 8})
    assert first.coverage is not None
    assert second.coverage is not None
    visited = [len(each.sizes["token counts"]) for each in (first.coverage, second.coverage)]
    assert visited[1] > visited[0]


@pytest.mark.looptime
async def test_what_no_longer_fits_the_engine_is_not_replayed():
    burst = single("draw 1", Ask(1, 5000, 4))
    earlier = Coverage(plan="other", matters=(Matter("random draw 1", burst), Matter("gone/1", None)))
    result, engine = await _warm({0, 1, 2, 3, 4, 5, 6, "logprobs"}, earlier)
    assert (result.outcome, result.replayed) == ("converged", 0)
    assert max(length(each) for each in engine.requests) < 5000


@pytest.mark.looptime
async def test_an_engine_that_calibrates_itself_sees_text_before_any_replay():
    engine, kernels = StandInEngine(), KernelModel(lambda _: None)
    plan = make_plan(profile(*STEPS), FACTS.__class__(**{**_fields(), "calculate_kv_scales": True}))
    earlier = Coverage(plan=plan_digest(plan), converged=True, matters=WHOLE.matters[:2])
    await WarmupRunner(engine, plan, kernels, WarmPolicy(), now, random.Random(1), coverage=earlier).run()
    assert isinstance(engine.requests[0].prompt, str)


def test_a_document_of_a_version_without_recorded_mixes_counts_its_draws_for_the_profiles() -> None:
    assert Coverage.from_json(_without("mix")).mix == "profile"


async def test_draws_from_another_mix_say_nothing_about_this_one() -> None:
    have: set[object] = set()
    first, _ = await _warm(have)
    assert first.coverage is not None
    again, _ = await _warm(have, first.coverage)
    assert "of earlier pods" in again.sentence
    other, _ = await _warm(have, replace(first.coverage, mix="recorded"))
    assert (other.outcome, other.rounds) == ("converged", 0)
    assert "of earlier pods)" not in other.sentence


def test_coverage_of_very_many_bursts_stays_small_enough_to_be_read_back():
    names = frozenset(f"triton/{'A' * 80}{number}/kernel.cubin" for number in range(NAMES_KEPT))
    matters = tuple(
        Matter(f"step/{number}", single(f"step/{number}", Ask(1, 8, 1)), names) for number in range(MATTERS_KEPT)
    )
    whole = Coverage(plan="p", profile="x", converged=True, draws=3, sizes={}, matters=matters)
    text = json.dumps(whole.to_json())
    assert len(text) < 3 << 20
    assert len(Coverage.from_json(json.loads(text)).matters) == MATTERS_KEPT
