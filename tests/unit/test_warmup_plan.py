"""What a profile becomes on an engine: sizes within its limits, and prompts that no cache has seen."""

from __future__ import annotations

import random
from dataclasses import replace

from sidecar.engines.protocol import EngineFacts
from sidecar.engines.server_facts import SMALLEST
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.planner import DrawLimits, PlannedStep, draw_burst, limits_of, make_plan
from sidecar.warmup.profiles import Assume, load_profile
from sidecar.warmup.prompts import PromptSource, usable_ids
from tests.unit.warmup_engine import FACTS, profile


def _only(step: dict[str, object], **facts: object) -> tuple[PlannedStep, tuple[str, ...]]:
    plan = make_plan(profile(step), replace(FACTS, **facts))  # type: ignore[arg-type]
    return plan.steps[0], plan.clipped


def _requests(burst: Burst) -> list[int]:
    phases = PromptSource(random.Random(1), 32000).requests(burst, 9)
    return [len(each.prompt or "") for phase in phases for each in phase]


def test_lengths_beyond_the_model_are_clipped_merged_and_told():
    step, clipped = _only({"kind": "prefill", "tokens": [16, 5000, 9000, "max_model_len"], "output_tokens": 4})
    assert [burst.key for burst in step.bursts] == ["16", "4092"]
    assert clipped == (
        "prefill: prompts of 4096, 5000, 9000 tokens are clipped to 4092: the model takes 4096 with 4 of output.",
    )


def test_batches_are_clipped_to_the_sequences_of_the_engine():
    step, clipped = _only({"kind": "decode", "batch": [1, 3, 100, 200]})
    assert [burst.concurrency for burst in step.bursts] == [1, 3, 64]
    assert "max_num_seqs" in clipped[0]


def test_batches_are_clipped_to_the_room_of_the_kv_cache():
    step, clipped = _only(
        {"kind": "prefill", "tokens": [996], "concurrency": [1, 8], "output_tokens": 4}, kv_blocks=250
    )
    assert [burst.concurrency for burst in step.bursts] == [1, 3]
    assert "the KV cache holds 4000 tokens" in clipped[0]


def test_no_burst_of_a_shipped_profile_exceeds_a_limit_of_a_small_engine():
    facts = replace(FACTS, max_model_len=300, max_num_seqs=5, kv_blocks=60, max_num_batched_tokens=128)
    for name in ("cpu", "sm90"):
        plan = make_plan(load_profile(name), facts)
        drawn = [draw_burst(plan, random.Random(seed), seed) for seed in range(200)]
        for burst in [*(burst for step in plan.steps for burst in step.bursts), *drawn]:
            assert burst.concurrency <= 5, burst
            for phase in burst.phases:
                assert all(ask.prompt_tokens + ask.output_tokens <= 300 for ask in phase), burst
                held = sum(ask.tokens - (ask.count - 1) * ask.prefix_tokens for ask in phase)
                assert held <= 960, burst


def test_small_bursts_come_before_large_ones():
    for name in ("cpu", "sm90"):
        for step in make_plan(load_profile(name), FACTS).steps:
            sizes = [burst.tokens for burst in step.bursts]
            assert sizes == sorted(sizes), step.name


def test_keys_of_bursts_are_unique_within_a_step():
    for step in make_plan(load_profile("sm90"), FACTS).steps:
        keys = [burst.key for burst in step.bursts]
        assert len(keys) == len(set(keys))


def test_where_the_profile_knows_better_than_the_smallest_default_the_sentence_names_both():
    facts = EngineFacts(engine="vllm", version=None, model="m", max_num_seqs=256, sources={"max_num_seqs": SMALLEST})
    limits, assumed = limits_of(facts, Assume(max_num_seqs=128))
    assert limits.max_num_seqs == 128
    told = (
        "The engine doesn't tell max_num_seqs; 128 is assumed, as the profile says, not vLLM's smallest default of 256."
    )
    assert told in assumed
    assert not any("default" in each for each in limits_of(facts, Assume(max_num_seqs=256))[1])


def test_limits_that_the_engine_does_not_tell_are_assumed_and_said_so():
    plan = make_plan(load_profile("cpu"), EngineFacts(engine="vllm", version=None, model="m"))
    assert plan.limits.max_num_seqs == 128
    assert len(plan.assumed) == 4
    assert all(sentence in plan.notes for sentence in plan.assumed)


def test_natural_text_comes_first_where_the_engine_calibrates_scales_from_it():
    plan = make_plan(load_profile("cpu"), replace(FACTS, calculate_kv_scales=True))
    first = plan.steps[0]
    phases = PromptSource(random.Random(1), 32000).requests(first.bursts[0], 9)
    assert (first.name, first.kind) == ("calibration", "text")
    assert isinstance(phases[0][0].prompt, str)


def test_chat_is_dropped_where_there_is_no_template():
    plan = make_plan(load_profile("cpu"), replace(FACTS, chat=False))
    assert "chat" not in [step.kind for step in plan.steps]
    assert any("no chat template" in note for note in plan.dropped)


def test_mixed_steps_are_dropped_where_one_request_runs_at_a_time():
    plan = make_plan(load_profile("cpu"), replace(FACTS, max_num_seqs=1))
    assert "mixed" not in [step.kind for step in plan.steps]
    assert any("one request at a time" in note for note in plan.dropped)


def test_a_regular_expression_is_asked_for_in_the_words_of_the_version():
    def fields(version: str | None) -> set[str]:
        step, _ = _only({"kind": "structured", "regex": "[a-z]+"}, version=version)
        return set(step.bursts[0].phases[0][0].fields)

    assert "structured_outputs" in fields("0.32.0")
    assert "structured_outputs" in fields(None)
    assert "guided_regex" in fields("0.9.2")


def test_prompts_have_the_lengths_that_were_asked_for():
    burst = Burst("x", ((Ask(1, 1, 4),), (Ask(2, 40, 4, prefix_tokens=32), Ask(1, 20000, 1))))
    assert _requests(burst) == [1, 40, 40, 20000]


def test_prompts_never_repeat_their_first_tokens():
    prompts = PromptSource(random.Random(3), 4096)
    heads = {prompts.tokens(20)[:3] for _ in range(5000)}
    assert len(heads) == 5000


def test_token_ids_stay_away_from_both_ends_of_the_vocabulary():
    for vocabulary in (64, 4096, 32000, 151936):
        ids = usable_ids(vocabulary)
        seen = set(PromptSource(random.Random(1), vocabulary).tokens(30_000))
        assert min(seen) >= ids.start > 0
        assert max(seen) < ids.stop < vocabulary


def test_a_prefix_and_its_salt_are_shared_within_a_burst_and_not_between_bursts():
    prompts = PromptSource(random.Random(1), 32000)
    burst = Burst("x", ((Ask(1, 40, 4, prefix_tokens=32),), (Ask(3, 40, 4, prefix_tokens=32),)))
    first = [each for phase in prompts.requests(burst, 9) for each in phase]
    second = [each for phase in prompts.requests(burst, 9) for each in phase]
    assert len({each.prompt[:32] for each in first if each.prompt}) == 1
    assert len({each.prompt for each in first}) == 4
    assert len({each.cache_salt for each in first}) == 1
    assert {each.cache_salt for each in first}.isdisjoint({each.cache_salt for each in second})


def test_salts_of_separate_requests_differ():
    (phase,) = PromptSource(random.Random(1), 32000).requests(single("x", Ask(50, 8, 4)), 9)
    assert len({each.cache_salt for each in phase}) == 50


def test_a_prompt_longer_than_the_pool_is_still_unique():
    prompts = PromptSource(random.Random(1), 151936)
    (phase,) = prompts.requests(single("x", Ask(8, 100_000, 4)), 9)
    assert {len(each.prompt or "") for each in phase} == {100_000}
    assert len({each.prompt for each in phase}) == 8


def test_draws_differ_and_stay_within_the_mix():
    mix = {
        "prompt_tokens": {"from": 5, "to": 50},
        "output_tokens": {"from": 2, "to": 3},
        "concurrency": {"from": 2, "to": 4},
    }
    plan = make_plan(profile({"kind": "prefill", "tokens": [1]}, mix=mix), FACTS)
    rng = random.Random(5)
    drawn = [draw_burst(plan, rng, number) for number in range(300)]
    asks = [ask for burst in drawn for ask in burst.phases[0]]
    assert {burst.concurrency for burst in drawn} == {2, 3, 4}
    assert {ask.prompt_tokens for ask in asks} == set(range(5, 51))
    assert {ask.output_tokens for ask in asks} == {2, 3}
    assert {ask.temperature for ask in asks} == {0.0, 1.0}


def test_draws_stay_below_what_killed_an_engine():
    plan = make_plan(load_profile("cpu"), FACTS)
    rng = random.Random(5)
    drawn = [draw_burst(plan, rng, number, DrawLimits(tokens=100, prompt=60, concurrency=3)) for number in range(300)]
    assert max(burst.tokens for burst in drawn) < 100
    assert max(burst.longest_prompt for burst in drawn) < 60
    assert max(burst.concurrency for burst in drawn) == 2


def test_an_engine_that_fixes_its_scales_from_first_traffic_is_warned_of_and_sees_text_first():
    plan = make_plan(profile({"kind": "prefill", "tokens": [1, 16, 17]}), replace(FACTS, calculate_kv_scales=True))
    assert plan.steps[0].name == "calibration"
    assert any("fixes the scales of its KV cache" in note for note in plan.notes)
    assert not any("scales" in note for note in make_plan(plan.profile, FACTS).notes)
