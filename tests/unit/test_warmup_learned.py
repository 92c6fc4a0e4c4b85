"""Traffic learned from histograms: how they are added up, how it stands in a profile, what is drawn from it."""

from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sidecar.bench.plot import drawn, of_counts
from sidecar.bench.shapes import from_profile
from sidecar.commands.learned_text import Told, profile_text
from sidecar.errors import NotSo, ProfileError
from sidecar.warmup.coverage import plan_digest
from sidecar.warmup.histograms import lengths_of
from sidecar.warmup.outline import outline
from sidecar.warmup.planner import OUTPUT_AT_MOST, draw_burst, make_plan
from sidecar.warmup.profiles import Mix, Profile, load_file
from sidecar.warmup.recorded import Distribution, RecordedMix
from tests.unit.warmup_engine import FACTS, profile

STEP = {"kind": "prefill", "tokens": [1, 16, 17]}
LEARNED = {"requests": 500, "prompt_tokens": [[1000, 0], [2000, 500]], "output_tokens": [[20, 250], [900, 250]]}
USERS = RecordedMix(
    Distribution((16, 1000, 2000), (10.0, 30.0, 460.0)), Distribution((20, 900), (250.0, 250.0)),
    Distribution((11, 12), (0.0, 40.0)), 500.0,
)  # fmt: skip


def drawn_asks(**learned: Any) -> list[tuple[int, int, int]]:
    mix = {"prompt_tokens": {"from": 1, "to": 8}, "concurrency": {"from": 3, "to": 3}, "learned": LEARNED | learned}
    plan = make_plan(profile(STEP, mix=mix), FACTS)
    bursts = [draw_burst(plan, random.Random(seed), seed) for seed in range(60)]
    return [(len(burst.phases[0]), ask.prompt_tokens, ask.output_tokens) for burst in bursts for ask in burst.phases[0]]


def written(tmp_path: Path, users: RecordedMix = USERS) -> Profile:
    (tmp_path / "mine.yaml").write_text(profile_text(users, "gpu", Told("here")), encoding="utf-8")
    return load_file(tmp_path / "mine.yaml")


def test_histograms_of_other_buckets_are_added_up_each_by_its_own_bounds() -> None:
    short = {10.0: 4.0, 100.0: 10.0, math.inf: 10.0}
    long = {10.0: 0.0, 100.0: 1.0, 1000.0: 7.0, math.inf: 7.0}
    assert lengths_of([short, long], None, "prompts").found == Distribution((10, 100, 1000), (4.0, 7.0, 6.0))


def test_what_lies_beyond_the_last_bucket_is_taken_for_the_longest_request_or_for_twice_the_bucket() -> None:
    series = [{100.0: 95.0, math.inf: 100.0}]
    assert lengths_of(series, None, "prompts").found == Distribution((100, 200), (95.0, 5.0))
    found = lengths_of(series, 4096, "prompts")
    assert (found.found.bounds, found.beyond, found.last) == ((100, 4096), 0.05, 100)


@pytest.mark.parametrize("series", [{100.0: 50.0, math.inf: 100.0}, {math.inf: 100.0}])
def test_too_much_beyond_the_last_bucket_is_no_distribution(series: dict[float, float]) -> None:
    with pytest.raises(NotSo, match=r"of the prompts are longer than the last bucket.*--max-model-len"):
        lengths_of([series], None, "prompts")


def test_much_beyond_the_last_bucket_will_do_where_the_longest_request_is_known() -> None:
    assert lengths_of([{100.0: 50.0, math.inf: 100.0}], 900, "prompts").found.counts == (50.0, 50.0)


def test_counts_that_are_no_numbers_are_left_out() -> None:
    assert lengths_of([{10.0: math.nan, 20.0: 5.0, math.inf: 5.0}], None, "prompts").found == Distribution(
        (20,), (5.0,)
    )


def test_draws_follow_what_was_learned_and_for_a_share_the_spans() -> None:
    asks = drawn_asks()
    long = [prompt for _, prompt, _ in asks if prompt > 1000]
    assert 0.5 < len(long) / len(asks) < 1
    assert max(output for *_, output in asks) <= OUTPUT_AT_MOST
    assert {count for count, *_ in asks} == {3}
    assert {count for count, *_ in drawn_asks(concurrency=[[7, 0], [8, 9]])} == {3, 8}


def test_a_record_of_pods_counts_over_what_the_profile_learned() -> None:
    plan = make_plan(profile(STEP, mix={"learned": LEARNED}), FACTS, USERS)
    assert plan.users is USERS
    assert outline(plan)["mix"]["source"] == "recorded"
    plan = make_plan(profile(STEP, mix={"learned": LEARNED}, search={"mix": "profile"}), FACTS, USERS)
    assert outline(plan)["mix"] == {
        "source": "learned", "requests": 500,
        "prompt_tokens": {"p50": 1415, "p95": 1932}, "output_tokens": {"p50": 21, "p95": 618},
    }  # fmt: skip
    assert any("has learned of 500 requests" in note for note in plan.notes)


def test_coverage_of_profiles_without_learned_traffic_stays_what_it_was() -> None:
    plain = make_plan(profile(STEP), FACTS)
    assert "learned" not in str(plain.profile.mix.model_dump(exclude_none=True))
    assert plan_digest(plain) != plan_digest(make_plan(profile(STEP, mix={"learned": LEARNED}), FACTS))


def test_bench_draws_outputs_as_long_as_users_had_them() -> None:
    plan = make_plan(profile(STEP, mix={"learned": LEARNED}), FACTS)
    shapes = list(islice(from_profile(plan, 1), 300))
    assert 0.3 < sum(shape.output_tokens > OUTPUT_AT_MOST for shape in shapes) / 300 < 0.7
    assert all(1000 < shape.prompt_tokens <= 2000 for shape in shapes)
    assert shapes == list(islice(from_profile(plan, 1), 300))


def test_what_is_written_is_read_back_and_searched_up_to_the_longest(tmp_path: Path) -> None:
    mix = written(tmp_path).mix
    assert mix.learned is not None
    assert mix.learned.mix == USERS
    assert Mix.model_validate(json.loads(json.dumps(mix.model_dump(mode="json", by_alias=True)))) == mix
    assert (mix.prompt_tokens.start, mix.prompt_tokens.to) == (1, 2000)
    assert (mix.concurrency.start, mix.concurrency.to) == (1, 12)


def test_a_span_of_what_was_not_seen_is_left_to_the_extended_profile(tmp_path: Path) -> None:
    unseen = RecordedMix(USERS.prompt_tokens, USERS.output_tokens, Distribution(), 500.0)
    mix = written(tmp_path, unseen).mix
    assert mix.concurrency.to == 32
    assert mix.learned is not None
    assert mix.learned.concurrency is None


def test_the_plot_shows_each_share_with_the_longest_bar_for_the_largest() -> None:
    lines = drawn(of_counts([(16, 10.0), (1000, 30.0), (2000, 460.0), (4000, 0.0)]), 20)
    assert [line.strip().split("  ")[0] for line in lines] == [
        "1 to 16",
        "17 to 1,000",
        "1,001 to 2,000",
        "2,001 to 4,000",
    ]
    assert [line.count("█") for line in lines] == [1, 1, 20, 0]
    assert [line.split()[-1] for line in lines] == ["2.0%", "6.0%", "92.0%", "0.0%"]


def test_many_buckets_are_put_together_into_rows_of_a_plot() -> None:
    bars = of_counts([(bound, 1.0) for bound in range(1, 101)])
    assert len(bars) <= 12
    assert (bars[0].label, bars[-1].label) == ("1 to 9", "100")


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        ({"prompt_tokens": []}, "1 to 128 buckets"),
        ({"prompt_tokens": [[20, 1], [10, 1]]}, "ascend"),
        ({"output_tokens": [[20, -1]]}, "a count is a number"),
        ({"concurrency": [[8, 0]]}, "holds something"),
        ({"requests": 0}, "requests"),
        ({"prompts": []}, "unknown key `prompts`"),
    ],
)
def test_learned_traffic_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, learned: dict[str, Any], words: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"description: x\nextends: gpu\nmix:\n  learned: {LEARNED | learned}\n".replace("'", ""))
    with pytest.raises(ProfileError) as raised:
        load_file(path)
    assert words in str(raised.value)
    assert "mine.yaml:4:" in str(raised.value)
