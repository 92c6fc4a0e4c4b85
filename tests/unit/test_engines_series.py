"""One set of names across engines and versions, on pages in the format that each of them writes (`fakes/expositions`)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sidecar.engines import series
from sidecar.engines.exposition import read, statistics
from sidecar.engines.protocol import EngineStats, Histogram
from sidecar.metrics.engine_table import ENGINE_SERIES

PAGES = Path(__file__).parents[1] / "fakes" / "expositions"
#: usage, running, waiting, prompt, generated, preempted, found in the prefix cache, looked up there
NUMBERS: dict[str, tuple[float | None, ...]] = {
    "vllm-0.6": (0.25, 3, 1, 100, 50, 7, None, None),
    "vllm-0.8": (0.125, 2, 0, 40, 12, 0, 16, 40),
    "vllm-0.11": (0.75, 5, 2, 40, 10, 5, 4, 40),
    "vllm-0.33": (0.5, 6, 2, 42, 17, 0, 5, 42),
    "sglang-0.5": (0.28, 4, 1, 80, 40, 2, 20, 80),
    "trtllm-1.4": (0.375, 5, 0, 64, 32, None, None, None),
    "trtllm-1.1": (None,) * 8,
    "none": (None,) * 8,
}
#: time to first token, time between tokens
TIMES: dict[str, tuple[Histogram | None, Histogram | None]] = {
    "vllm-0.6": (
        Histogram({0.001: 0, 0.1: 3, 10: 5, math.inf: 5}, 0.9),
        Histogram({0.01: 10, 2.5: 45, math.inf: 45}, 1.5),
    ),
    "vllm-0.8": (Histogram({0.1: 0, math.inf: 1}, 0.2), Histogram({0.01: 7, math.inf: 11}, 0.11)),
    "vllm-0.11": (Histogram({0.1: 3, math.inf: 4}, 0.625), Histogram({0.01: 3, math.inf: 8}, 0.75)),
    "vllm-0.33": (Histogram({0.25: 3, math.inf: 4}, 0.75), Histogram({0.025: 5, math.inf: 6}, 0.125)),
    "sglang-0.5": (Histogram({0.1: 2, math.inf: 4}, 0.75), Histogram({0.02: 30, math.inf: 36}, 1.0)),
    "trtllm-1.4": (Histogram({0.1: 1, math.inf: 2}, 0.75), Histogram({0.025: 9, math.inf: 10}, 0.5)),
    "trtllm-1.1": (Histogram({0.1: 2, math.inf: 2}, 0.25), Histogram({0.025: 9, math.inf: 10}, 0.5)),
    "none": (None, None),
}


def stats(page: str) -> EngineStats:
    return statistics(read((PAGES / f"{page}.txt").read_text(encoding="utf-8")))


def test_every_page_has_its_expectation_and_says_its_source() -> None:
    assert {path.stem for path in PAGES.glob("*.txt")} == NUMBERS.keys() == TIMES.keys()
    assert all("Source:" in path.read_text(encoding="utf-8") for path in PAGES.glob("*.txt"))


@pytest.mark.parametrize("page", NUMBERS)
def test_each_engine_and_version_gives_the_same_numbers_under_one_name(page: str) -> None:
    found = stats(page)
    assert tuple(getattr(found, field) for field in series.NUMBERS) == NUMBERS[page]


@pytest.mark.parametrize("page", TIMES)
def test_each_engine_and_version_gives_its_times_in_its_own_buckets(page: str) -> None:
    found = stats(page)
    assert (found.time_to_first_token, found.inter_token_latency) == TIMES[page]


def test_the_processes_of_one_engine_show_one_load_and_several_engines_add_up() -> None:
    page = (
        'vllm:num_requests_running{engine="0",pid="7"} 5\nvllm:num_requests_running{engine="0",pid="8"} 5\n'
        'vllm:num_requests_running{engine="1",pid="7"} 2\n'
    )
    assert statistics(read(page)).running == 7


def test_bounds_that_not_all_engines_have_are_left_out_of_the_sum() -> None:
    name = "vllm:time_to_first_token_seconds_bucket"
    page = (
        f'{name}{{engine="0",le="0.1"}} 1\n{name}{{engine="0",le="0.5"}} 2\n{name}{{engine="0",le="+Inf"}} 3\n'
        f'{name}{{engine="1",le="0.5"}} 4\n{name}{{engine="1",le="2"}} 5\n{name}{{engine="1",le="+Inf"}} 5\n'
    )
    assert statistics(read(page)).time_to_first_token == Histogram({0.5: 6, math.inf: 8}, 0.0)


def test_one_broken_line_of_a_histogram_costs_its_bucket_alone() -> None:
    text = (PAGES / "vllm-0.6.txt").read_text(encoding="utf-8").replace('le="0.1",model_name="m"} 3.0', 'le="0.1" 3.0')
    page = read(text)
    assert page.unreadable == 1
    assert statistics(page).time_to_first_token == Histogram({0.001: 0, 10: 5, math.inf: 5}, 0.9)
    assert statistics(page).running == 3


def test_every_number_that_is_read_has_a_metric_and_no_metric_is_never_read() -> None:
    assert {*series.NUMBERS, *series.HISTOGRAMS} == ENGINE_SERIES.keys()


def test_a_reading_with_histograms_survives_its_way_to_the_metrics() -> None:
    shown = stats("vllm-0.33").to_json()
    assert shown["time_to_first_token"] == {"buckets": {"0.25": 3.0, "inf": 4.0}, "sum": 0.75}
