"""Two runs beside each other: what is more than noise, and what can't be compared."""

from __future__ import annotations

import random
import statistics

import pytest

from sidecar.bench.comparison import compare, differing, differing_circumstances, summary
from sidecar.bench.noise import LEAST_VALUES, ratio_interval
from sidecar.bench.report import Client, Columns, Figures, Rates, Report

WAVE = 16


def run_of(seed: int, *, slower: float = 1.0, waves: int = 25, **settings: object) -> Report:
    """Make a run in which the requests of a wave share its stall, as those of a batch do."""
    rng, ttft, started = random.Random(seed), [], []
    for wave in range(waves):
        stall = rng.lognormvariate(0, 0.4)
        ttft += [0.1 * slower * stall * rng.uniform(0.9, 1.1) for _ in range(WAVE)]
        started += [float(wave)] * WAVE
    count = len(ttft)
    return Report(
        about={"url": "u", "engine": "vllm 1", "model": "m", "at": "now"},
        settings={"concurrency": WAVE, "seed": seed, "requests": count, "prompt_tokens": "64:1024", **settings},
        ended="complete", sentence="", seconds=float(waves), sent=count, answered=count, errors={},
        figures=Figures(ttft_s=None, tpot_s=None, itl_s=None, total_s=None),
        rates=Rates(requests_per_s=WAVE, prompt_tokens_per_s=1, output_tokens_per_s=WAVE * 8),
        mean_concurrency=WAVE, busiest=WAVE, notes=[],
        client=Client(loop_lag_p99_s=0, loop_lag_worst_s=0, peak_memory_bytes=1),
        samples=Columns(
            started_s=started, ttft_s=ttft, tpot_s=[None] * count, total_s=[0.9] * count,
            prompt_tokens=[8] * count, tokens=[8] * count,
        ),
    )  # fmt: skip


def verdict(first: Report, second: Report, name: str) -> str:
    return next(row.verdict for row in compare(first, second) if row.name == name)


def false_alarms(block: int, pairs: int) -> int:
    """Count the pairs of runs of the same engine whose medians would be called different."""
    found = 0
    for seed in range(pairs):
        first, second = (run_of(2 * seed + each, waves=15).samples.ttft_s for each in (0, 1))
        interval = ratio_interval(first, second, statistics.median, block, random.Random(1))
        found += interval is not None and interval.excludes_one
    return found


def test_runs_of_the_same_engine_hardly_ever_differ_beyond_noise():
    assert false_alarms(WAVE, 20) <= 2


def test_requests_drawn_one_by_one_would_call_noise_a_difference():
    """Why whole waves are drawn."""
    assert false_alarms(1, 8) >= 3


@pytest.mark.parametrize(("slower", "expected"), [(1.6, "slower"), (1 / 1.6, "faster")])
def test_a_real_difference_is_found_and_has_the_right_sign(slower, expected):
    rows = compare(run_of(1), run_of(2, slower=slower))
    assert next(row.verdict for row in rows if row.name == "TTFT p50") == expected
    assert f"{expected.capitalize()} beyond noise: TTFT p50" in summary(rows)


def test_the_same_two_files_always_give_the_same_answer():
    assert compare(run_of(1), run_of(2)) == compare(run_of(1), run_of(2))


def test_a_few_requests_tell_nothing():
    few = run_of(1, waves=1)
    assert len(few.samples.ttft_s) < LEAST_VALUES
    assert verdict(few, run_of(2), "TTFT p99") == "unknown"


def test_a_tail_of_few_waves_tells_nothing_while_its_median_does():
    first, second = run_of(1, waves=12), run_of(2, waves=12, slower=3.0)
    assert [verdict(first, second, name) for name in ("TTFT p50", "TTFT p99")] == ["slower", "unknown"]


def test_times_that_no_request_has_are_left_out():
    assert not [row for row in compare(run_of(1), run_of(2)) if row.name.startswith("TPOT")]


def test_a_lower_throughput_is_slower():
    first, second = run_of(1), run_of(1)
    half = second.samples.model_copy(update={"tokens": [4] * len(second.samples.tokens)})
    second = second.model_copy(
        update={"samples": half, "rates": second.rates.model_copy(update={"output_tokens_per_s": WAVE * 4})}
    )
    assert verdict(first, second, "output") == "slower"


@pytest.mark.parametrize("name", ["concurrency", "prompt_tokens"])
def test_another_load_is_a_difference_of_settings(name):
    first, second = run_of(1).settings, run_of(1, **{name: "other"}).settings
    assert name.replace("_", " ") in " ".join(differing(first, second))


def test_another_amount_of_the_same_load_can_be_compared():
    assert differing(run_of(1).settings, run_of(2, waves=3).settings) == []


def test_what_only_one_of_two_runs_was_given_is_told_in_words() -> None:
    first = run_of(1, requests=100, duration_s=None)
    second = run_of(1, requests=None, duration_s=2.5)
    assert differing_circumstances(first, second) == ["100 requests and 2.5 seconds"]
    assert differing({"profile": "sm90"}, {"prompt_tokens": "8:16"}) == [
        "profile sm90 and not given",
        "prompt tokens not given and 8:16",
    ]
