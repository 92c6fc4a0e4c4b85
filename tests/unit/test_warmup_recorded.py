"""The traffic of earlier pods: read from the engine's histograms, kept in a document, drawn from again."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from sidecar.warmup import recorded
from sidecar.warmup.coverage import plan_digest
from sidecar.warmup.outline import outline
from sidecar.warmup.planner import OUTPUT_AT_MOST, STEPS_READ, draw_burst, make_plan
from sidecar.warmup.recorded import Distribution, RecordedMix, load, mix_path, of_buckets, of_samples
from tests.unit.warmup_engine import FACTS, profile

LONG = Distribution((1000, 2000), (0.0, 100.0))
USERS = RecordedMix(LONG, Distribution((20, 3000), (50.0, 50.0)), Distribution((12,), (40.0,)), 500.0, 2)
STEP = {"kind": "prefill", "tokens": [1, 16, 17]}
MIX = {"prompt_tokens": {"from": 1, "to": 8}, "concurrency": {"from": 1, "to": 2}}


def _asks(count: int, **fields: Any) -> list[tuple[int, int, int]]:
    plan = make_plan(profile(STEP, mix=MIX, **fields), FACTS, USERS)
    bursts = [draw_burst(plan, random.Random(seed), seed) for seed in range(count)]
    return [(len(burst.phases[0]), ask.prompt_tokens, ask.output_tokens) for burst in bursts for ask in burst.phases[0]]


def test_a_histogram_less_what_was_there_at_ready_is_what_users_sent() -> None:
    at_ready = {1.0: 5.0, 10.0: 9.0, 100.0: 30.0, math.inf: 31.0}
    now = {1.0: 5.0, 10.0: 19.0, 100.0: 70.0, math.inf: 72.0}
    assert of_buckets(now, at_ready, 4096) == Distribution((1, 10, 100, 4096), (0.0, 10.0, 30.0, 1.0))


def test_bounds_that_an_engine_has_beyond_its_longest_request_are_clipped_to_it() -> None:
    assert of_buckets({5000.0: 3.0, math.inf: 4.0}, {}, 4096) == Distribution((4096,), (4.0,))


def test_counters_that_went_back_count_for_nothing() -> None:
    assert of_buckets({10.0: 1.0, math.inf: 1.0}, {10.0: 9.0, math.inf: 9.0}, 4096).total == 0


def test_a_quantile_lies_within_its_bucket() -> None:
    found = Distribution((10, 100, 1000), (10.0, 80.0, 10.0))
    assert 11 <= found.quantile(0.5) <= 100
    assert found.quantile(0.95) > 100
    assert (found.quantile(0.0), found.quantile(1.0)) == (1, 1000)


def test_what_runs_at_once_is_counted_exactly_while_it_is_little_and_coarsely_beyond() -> None:
    found = of_samples([1, 3, 3, 15, 33, 34, 300])
    counted = {bound: count for bound, count in zip(found.bounds, found.counts, strict=True) if count}
    assert counted == {1: 1.0, 3: 2.0, 15: 1.0, 36: 2.0, 320: 1.0}


def test_nothing_is_drawn_from_a_gap_below_the_shortest_or_between_two_buckets() -> None:
    found = of_buckets({10.0: 0.0, 1000.0: 0.0, 2000.0: 9.0, 4000.0: 9.0, 5000.0: 18.0, math.inf: 18.0}, {}, 9000)
    drawn = [found.quantile(step / 100) for step in range(101)]
    assert all(1000 < size <= 2000 or 4000 < size <= 5000 for size in drawn)
    assert {of_samples([300]).quantile(share) for share in (0.0, 0.5, 1.0)} == {289, 304, 320}


def test_the_document_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    USERS.save(mix_path(tmp_path))
    found, trouble = load(mix_path(tmp_path))
    assert (found, trouble) == (USERS, "")


def _document(**changes: Any) -> bytes:
    return json.dumps({**USERS.to_json(), **changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        _document(format=2),
        _document(requests="many"),
        _document(requests=float("inf")),
        _document(pods=0),
        _document(prompt_tokens=[]),
        _document(prompt_tokens=[[10, 1], [5, 1]]),
        _document(prompt_tokens=[[10, -1]]),
        _document(prompt_tokens=[[10, 0]]),
        _document(prompt_tokens=[[10, float("nan")]]),
        _document(prompt_tokens=[[1 << 40, 1]]),
        _document(prompt_tokens=[[True, 1]]),
        _document(prompt_tokens=[[index + 1, 1] for index in range(500)]),
        _document(concurrency={"12": 1}),
        _document(requests=10**400),
        _document(pods=10**400),
        _document(prompt_tokens=[[10, 10**400]]),
        _document(output_tokens=[[10, 1e308], [11, 1e308]]),
    ],
    ids=range(21),
)
def test_a_document_that_cannot_be_believed_costs_a_sentence_and_the_profile_counts(
    tmp_path: Path, content: bytes
) -> None:
    path = mix_path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    found, trouble = load(path)
    assert found is None
    assert "the profile's mix counts" in trouble


def test_too_few_requests_are_no_traffic(tmp_path: Path) -> None:
    RecordedMix(LONG, LONG, LONG, 99.0).save(mix_path(tmp_path))
    assert load(mix_path(tmp_path)) == (None, "")


def test_random_draws_follow_what_users_sent_and_now_and_then_the_profile() -> None:
    asks = _asks(300)
    # The first request of a burst has the length that was drawn; what follows may only fill the batch.
    long = sum(prompt > 1000 for _, prompt, _ in asks) / len(asks)
    assert 0.2 < long < 0.95
    assert any(prompt <= 8 for _, prompt, _ in asks)
    assert max(count for count, _, _ in asks) > 2


def test_a_burst_of_recorded_traffic_reads_a_few_steps_and_makes_few_tokens() -> None:
    plan = make_plan(profile(STEP, mix=MIX), FACTS, USERS)
    assert FACTS.max_num_batched_tokens is not None
    for seed in range(200):
        asks = draw_burst(plan, random.Random(seed), seed).phases[0]
        assert sum(ask.prompt_tokens for ask in asks[1:]) <= STEPS_READ * FACTS.max_num_batched_tokens + 16 * len(asks)
        assert max(ask.output_tokens for ask in asks) <= OUTPUT_AT_MOST


def test_a_profile_can_keep_to_its_own_mix() -> None:
    assert all(prompt <= 8 for _, prompt, _ in _asks(100, search={"enabled": False, "mix": "profile"}))


def test_what_users_send_does_not_make_coverage_worthless() -> None:
    own = make_plan(profile(STEP, mix=MIX), FACTS)
    assert plan_digest(make_plan(profile(STEP, mix=MIX), FACTS, USERS)) == plan_digest(own)
    told = profile(STEP, mix=MIX, search={"enabled": False, "mix": "profile"})
    assert plan_digest(make_plan(told, FACTS)) == plan_digest(own)


def test_a_size_takes_one_number_so_that_strata_reach_it() -> None:
    class Counted(random.Random):
        drawn = 0

        def random(self) -> float:
            self.drawn += 1
            return super().random()

    rng = Counted(1)
    plan = make_plan(profile(STEP, mix=MIX), FACTS, USERS)
    asks = draw_burst(plan, rng, 1).phases[0]
    assert rng.drawn == 1 + 3 * len(asks)


def test_older_traffic_counts_less_and_never_more_than_its_cap() -> None:
    old = RecordedMix(Distribution((10,), (1e6,)), LONG, LONG, 1e6, 7)
    new = RecordedMix(Distribution((1000,), (100.0,)), LONG, LONG, 100.0)
    found = new.after(old)
    assert (found.pods, found.requests) == (8, 50_100.0)
    assert found.prompt_tokens == Distribution((10, 1000), (50_000.0, 100.0))
    assert new.after(new).prompt_tokens.total == 150.0


def test_how_much_traffic_differs_is_the_largest_gap_of_shares() -> None:
    near = RecordedMix(Distribution((2000,), (7.0,)), USERS.output_tokens, USERS.concurrency, 7.0)
    assert near.differs_from(USERS) == 0
    far = RecordedMix(Distribution((10, 2000), (3.0, 7.0)), USERS.output_tokens, USERS.concurrency, 10.0)
    assert far.differs_from(USERS) == pytest.approx(0.3)


def test_the_plan_shows_which_mix_is_drawn_from() -> None:
    users = make_plan(profile(STEP, mix=MIX), FACTS, USERS)
    assert outline(users)["mix"]["source"] == "recorded"
    assert 1000 < outline(users)["mix"]["prompt_tokens"]["p50"] <= 2000
    assert "what users sent to 2 pods (500 requests)" in users.notes[0]
    assert outline(make_plan(profile(STEP, mix=MIX), FACTS))["mix"]["source"] == "profile"


def test_nothing_of_a_prompt_is_in_the_document() -> None:
    assert set(USERS.to_json()) == {"format", "pods", "requests", "prompt_tokens", "output_tokens", "concurrency"}
    assert recorded.FAMILY == "warmup_coverage"
