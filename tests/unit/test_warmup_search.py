"""What is tried beyond the steps, how much of it, and when it is enough: on scales, and on engines with hidden kernels."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.bursts import Ask, Burst
from sidecar.warmup.draws import StratifiedRandom, cells
from sidecar.warmup.planner import DrawLimits, Plan, make_plan
from sidecar.warmup.search import BATCHES, TOKENS, Searcher
from sidecar.warmup.search_terms import Search
from sidecar.warmup.stretches import Scale
from tests.bench import warmup_reach as reach
from tests.fakes.kernel_batching import Batching, Running, steps_of
from tests.fakes.kernel_model import NARROW, NARROW_FROM, Bands, KernelModel, Step
from tests.unit.warmup_engine import FACTS, profile

PREFILL = {"kind": "prefill", "tokens": [1, 16, 17]}
NO_LIMITS = DrawLimits()


def _walk(scale: Scale, kernel_of) -> list[int]:
    """Visit what the scale names until it is covered; kernels compile at their first visit."""
    have, sent = set(), []
    while (size := scale.next()) is not None:
        sent.append(size)
        kernel = kernel_of(size)
        scale.visit(size, () if kernel in have else (kernel,))
        have.add(kernel)
    return sent


def _searcher(terms: Search | None = None, below: DrawLimits = NO_LIMITS, **mix) -> Searcher:
    given = {"prompt_tokens": {"from": 8, "to": 1024}, "concurrency": {"from": 1, "to": 8}, **mix}
    return Searcher(make_plan(profile(PREFILL, mix=given), FACTS), terms or Search(), below)


def _drain(searcher: Searcher, names=lambda burst: ()) -> list[tuple[str, Burst]]:
    sent = []
    while (probe := searcher.next()) is not None:
        sent.append((probe.name, probe.burst))
        searcher.sent(probe, names(probe.burst))
        assert len(sent) < 10_000
    return sent


def test_prompts_of_a_short_model_are_not_counted_beyond_what_they_can_hold():
    """Else every size beyond is tried with more prompts than are meant, and the search spends its share on that."""
    plan = make_plan(profile(PREFILL), replace(FACTS, max_model_len=64))
    searcher = Searcher(plan, Search(), NO_LIMITS)
    sent = _drain(searcher)
    assert searcher.open_points() == ()
    assert all(scale.high <= count * 62 for count, scale in searcher.together.items())
    assert sum(burst.requests for _, burst in sent) < Search().max_requests


def test_a_scale_is_covered_when_no_stretch_is_wider_than_the_gap():
    scale = Scale("x", 8, 8192, 0.01, 0.001)
    _walk(scale, lambda _: "same")
    whole = math.log(8192 / 8)
    assert all(high - low < 2 or math.log(high / low) / whole <= 0.0101 for low, high in pairwise(scale.visited))
    assert scale.open() == []


def test_a_quiet_scale_takes_as_many_visits_as_there_are_gaps_and_not_a_power_of_two():
    assert len(_walk(Scale("x", 1000, 1_000_000, 1 / 100, 1e-9), lambda _: "same")) <= 101 + 14 * 2


def test_beside_a_size_that_compiled_the_search_goes_on_until_its_neighbours():
    scale = Scale("x", 8, 8192, 0.05, 1e-9)
    scale.visit(700, ("k",))
    while (size := scale.next()) is not None:
        scale.visit(size)
    assert {699, 701} <= set(scale.visited)
    assert len(scale.visited) < 20 + 2 * math.log2(8192) + 12


def test_sizes_with_the_same_kernels_have_no_sign_between_them():
    scale = Scale("x", 100, 8192, 1, 1e-9)
    for size in (100, 8192):
        scale.visit(size, ("k",))
    assert scale.next() is None


def test_a_region_wider_than_the_gap_is_found_though_its_neighbours_are_alike():
    rng = random.Random(3)
    for _ in range(200):
        start = rng.randint(60, 7000)
        end = start * 1.02
        sent = _walk(Scale("x", 8, 8192, 0.0025, 0.0005), lambda size, low=start, high=end: low <= size < high)
        assert any(start <= size < end for size in sent)


def test_visits_grow_with_breakpoints_times_the_logarithm_of_the_range():
    for count in (2, 8, 32):
        bands = Bands.drawn(random.Random(count), 8, 1 << 20, count, 0)
        sent = _walk(Scale("x", 8, 1 << 20, 0.05, 1e-9), bands.at)
        assert len(sent) <= 20 + 4 * 2 * bands.breakpoints * math.log2(1 << 20)


def test_likely_stretches_are_tried_first():
    scale = Scale("x", 1, 1024, 0.01, 0.001)
    for size in (1, 4, 1024):
        scale.visit(size)
    assert 4 < (scale.next() or 0) < 1024


def test_what_is_not_covered_is_named_as_ranges():
    scale = Scale("x", 8, 8192, 0.01, 0.001)
    assert scale.open() == [(8, 8192)]
    for size in (8, 64, 65, 8192):
        scale.visit(size)
    assert scale.open() == [(9, 63), (66, 8191)]


def test_a_token_count_is_probed_by_one_request():
    probes = [burst for name, burst in _drain(_searcher()) if name.startswith(f"{TOKENS}:")]
    assert {burst.requests for burst in probes} == {1}
    assert {burst.longest_prompt for burst in probes} >= {8, 1024}


def test_every_batch_of_the_mix_is_met_by_requests_that_end_one_after_another():
    (stairs,) = [burst for name, burst in _drain(_searcher()) if name == BATCHES]
    asks = [(ask.prompt_tokens, ask.output_tokens) for ask in stairs.phases[0] for _ in range(ask.count)]
    for seed in range(20):
        steps = steps_of(asks, 1024, 64, random.Random(seed))
        assert {step.sequences for step in steps if step.decodes_only} >= set(range(1, 9))


def test_where_a_staircase_has_no_room_batches_are_tried_one_by_one():
    names = dict(_drain(Searcher(_small(), Search(), NO_LIMITS)))
    assert {name for name in names if name.startswith(BATCHES)} == {f"{BATCHES}: {size}" for size in (1, 2, 3)}


def test_an_engine_that_only_reads_prompts_is_asked_for_one_token_and_for_no_batches_of_decodes():
    plan = replace(make_plan(profile(PREFILL), FACTS), role="prefill")
    sent = _drain(Searcher(plan, Search(), NO_LIMITS))
    assert {ask.output_tokens for _, burst in sent for ask in burst.phases[0]} == {1}
    assert sum(name.startswith(BATCHES) for name, _ in sent) == 1


def test_an_engine_that_embeds_is_searched_with_texts_to_embed():
    plan = replace(make_plan(profile(PREFILL), FACTS), work="embed")
    sent = _drain(Searcher(plan, Search(), NO_LIMITS))
    assert {getattr(ask, "work", None) for _, burst in sent for ask in burst.phases[0]} == {"embed"}


def test_nothing_is_searched_twice():
    searcher = _searcher()
    _drain(searcher)
    assert searcher.next() is None
    assert searcher.open_points() == ()


def test_the_surroundings_of_what_compiled_are_tried_until_they_compile_nothing():
    searcher = _searcher()
    _drain(searcher)
    mixed = Burst("4 + 100", ((Ask(4, 32, 64),), (Ask(1, 100, 4),)), "after_first_token")
    searcher.learn(mixed, ("k1",))
    sent = _drain(searcher, lambda burst: (repr(burst),) if burst.longest_prompt > 130 else ())
    lengths = {burst.longest_prompt for _, burst in sent}
    assert {70, 140, 196} <= lengths
    assert all(burst.phases[0] == mixed.phases[0] for _, burst in sent)


def test_surroundings_that_there_was_no_budget_for_stay_open():
    searcher = _searcher()
    _drain(searcher)
    searcher.learn(Burst("x", ((Ask(1, 8, 8),), (Ask(1, 100, 2),)), "after_first_token"), ("k",))
    probe = searcher.next()
    assert probe is not None
    searcher.put_back(probe)
    assert "the surroundings of what compiled" in searcher.open_points()[0]
    assert searcher.next() == probe


def test_surroundings_that_compile_for_ever_end_after_some_rounds():
    searcher = _searcher(Search(rounds=2))
    _drain(searcher)
    searcher.learn(Burst("x", ((Ask(1, 8, 8),), (Ask(1, 100, 2),)), "after_first_token"), ("k",))
    assert len(_drain(searcher, lambda burst: (repr(burst),))) < 60


def test_nothing_is_tried_of_what_an_engine_died():
    sent = _drain(_searcher(below=DrawLimits(tokens=2000, prompt=500, concurrency=5)))
    assert max(burst.longest_prompt for _, burst in sent) < 500
    assert max(burst.concurrency for _, burst in sent) < 5
    assert max(burst.tokens for _, burst in sent) < 2000


def _small() -> Plan:
    facts = EngineFacts(
        engine="vllm",
        version="1",
        model="m",
        max_model_len=24,
        max_num_batched_tokens=512,
        max_num_seqs=3,
        vocab_size=500,
        block_size=16,
        kv_blocks=20,
    )
    return make_plan(profile(PREFILL), facts)


def test_no_probe_exceeds_what_the_engine_takes():
    for _, burst in _drain(Searcher(_small(), Search(), NO_LIMITS)):
        assert all(ask.prompt_tokens + ask.output_tokens <= 24 for ask in burst.phases[0]), burst
        assert burst.concurrency <= 3
        assert burst.tokens <= 320


def test_what_earlier_pods_visited_is_not_visited_again():
    first, second = _searcher(), _searcher()
    _drain(first)
    second.visited(first.sizes())
    assert second.next() is None


def test_one_draw_falls_into_each_cell_of_the_mix():
    assert [cells(count) for count in (1, 7, 60, 300)] == [(1, 1), (1, 7), (6, 10), (15, 20)]
    stratified = StratifiedRandom(random.Random(1))
    for row in range(6):
        stratified.aim((row, 6), (0, 10))
        assert row / 6 <= stratified.random() < (row + 1) / 6
        stratified.random()
        assert 0 <= stratified.random() < 0.1


def test_stratified_draws_miss_a_part_of_the_mix_no_more_often_than_independent_ones():
    draws, trials, share = 60, 3000, 0.05
    rng, missed = random.Random(5), 0
    stratified = StratifiedRandom(rng)
    for _ in range(trials):
        hit = False
        for row in range(6):
            for column in range(10):
                stratified.aim((row, 6), (column, 10))
                x, _, y = stratified.random(), stratified.random(), stratified.random()
                hit |= 0.3 < x < 0.3 + share / 0.5 and y < 0.5
        missed += not hit
    assert missed / trials <= (1 - share) ** draws + 0.01


def test_the_kernel_model_has_regions_too_narrow_for_a_grid_and_nothing_narrower():
    for seed in range(20):
        bands = reach.model(seed).tokens
        edges = [*bands.starts, reach.MAX_TOKENS + 1]
        widths = [(high - low) / low for low, high in pairwise(edges) if low >= 64 and high <= reach.MAX_TOKENS]
        narrow = [
            (high - low) / low
            for (low, high), kernel in zip(pairwise(edges), bands.kernels, strict=True)
            if kernel >= NARROW_FROM and low >= 64
        ]
        assert min(widths) >= NARROW[0] * 0.5
        assert all(width <= NARROW[1] + 0.02 for width in narrow)


def test_the_share_of_the_mix_is_computed_from_the_kernels_that_are_there():
    bands = Bands((1, 100), (0, 1))
    model = KernelModel(1, bands, Bands((1,), (0,)), Bands((1,), (0,)), Bands((1,), (0,)))
    traffic = [frozenset({Step(tokens, 1, False)}) for tokens in (10, 50, 99, 100, 200)]
    assert model.covered(traffic) == 0
    model.run(Step(5, 1, False))
    assert model.covered(traffic) == pytest.approx(0.6)


def test_the_scripted_batching_fills_steps_in_chunks_beside_running_requests():
    batching = Batching(100, 4)
    batching.add(Running(30, 3))
    first = batching.step()
    batching.settle()
    batching.add(Running(150, 2))
    second = batching.step()
    assert [each[0] for each in (first, second) if each] == [Step(30, 1, False), Step(100, 2, False)]


@pytest.mark.parametrize("seed", [3, 11])
def test_of_a_random_engine_nearly_all_of_the_mix_is_covered_and_no_more_is_claimed(seed):
    found = reach.reach(seed)
    assert found.result.outcome == "converged", found.result.sentence
    assert found.covered >= 0.98
    assert found.stalls <= 5
    assert not found.claimed_wrongly


def test_powers_of_two_leave_more_of_the_mix_than_the_search():
    assert reach.by_powers(3).covered < 0.9


def test_a_search_that_spent_its_share_is_not_called_converged_and_says_what_is_open():
    result = reach.warm(reach.model(3), 3, search={"max_requests": 100})
    assert (result.outcome, result.reason) == ("exhausted", "coverage")
    assert "token counts" in result.sentence
    assert result.open
    assert result.searched <= 100


@pytest.mark.slow
def test_of_forty_random_engines_the_worst_is_covered_and_claims_are_right():
    found = [reach.reach(seed) for seed in range(500, 540)]
    assert min(each.covered for each in found) >= 0.98
    assert sum(each.covered for each in found) / len(found) >= 0.995
    assert sum(each.claimed_wrongly for each in found) <= 2


def test_a_probe_of_a_size_beyond_the_model_is_split_over_requests():
    searcher = _searcher(below=DrawLimits(prompt=400))
    probes = [burst for name, burst in _drain(searcher) if name.startswith(f"{TOKENS}:")]
    widest = max(sum(ask.count * ask.prompt_tokens for ask in burst.phases[0]) for burst in probes)
    assert widest == 1024
