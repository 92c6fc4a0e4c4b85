"""Claims about reading engines' metrics. Pages are shaped as vLLM of the named version writes them."""

from __future__ import annotations

import pytest

from sidecar.engines.exposition import CACHE_CONFIG, asleep, identity, read, statistics
from sidecar.engines.protocol import EngineStats
from tests.fakes.engine_script import Counters, Script, metrics_page

V06 = """\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
vllm:num_preemptions_total{model_name="m"} 7.0
vllm:prompt_tokens_total{model_name="m"} 100.0
vllm:generation_tokens_total{model_name="m"} 50.0
process_start_time_seconds 1.73290000012e+09
"""
V011_BOTH = (
    V06
    + """\
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 40.0
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 41.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 4.0
"""
)
SCALARS = ("kv_cache_usage", "running", "waiting", "prompt_tokens_total", "progress")


#: Lines of a page that vLLM 0.32.0 on CPU gave after 185 requests; histograms and help texts left out.
V032 = """\
process_start_time_seconds 1.79597572812e+09
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 5.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="discard_all"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 26726.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7959758097796679e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 4608.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 26774.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1495.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 183.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 880.0
"""


def test_a_page_of_vllm_032_gives_every_number():
    assert statistics(read(V032)) == EngineStats(
        identity="1795975728.12",
        kv_cache_usage=0.125,
        running=2,
        waiting=0,
        prompt_tokens_total=26774,
        generation_tokens_total=1495,
        preemptions_total=0,
        prefix_cache_hits_total=4608,
        prefix_cache_queries_total=26726,
        asleep=False,
        progress=26774 + 1495 + 880,
        missing="",
        progress_by_rank={"0": 26774 + 1495 + 880},
        load_by_rank={"0": (2, 0.125)},
    )


def test_requests_that_clients_give_up_are_no_progress():
    given_up = V032.replace('reason="abort",model_name="tiny"} 0.0', 'reason="abort",model_name="tiny"} 9.0')
    assert given_up != V032
    assert statistics(read(given_up)).progress == statistics(read(V032)).progress


def test_names_of_vllm_06_are_read():
    stats = statistics(read(V06))
    assert (stats.kv_cache_usage, stats.running, stats.waiting, stats.preemptions_total) == (0.25, 3, 1, 7)
    assert stats.identity == "1732900000.12"


def test_the_new_name_counts_where_both_are_shown():
    stats = statistics(read(V011_BOTH))
    assert stats.kv_cache_usage == 0.5
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (40, 4)


@pytest.mark.parametrize("names", ["new", "old", "both"])
def test_the_scripted_engine_shows_load_under_the_names_of_every_era(names: str):
    page = metrics_page(Script(metrics_names=names), Counters(running=2, tokens_held=32768), 1.5)
    stats = statistics(read(page))
    assert (stats.running, stats.kv_cache_usage, stats.missing) == (2, 0.5, "")


def test_an_absent_series_is_none_and_a_zero_is_zero():
    stats = statistics(read('vllm:num_requests_running{engine="0"} 0\n'))
    assert stats.running == 0
    assert stats.waiting is None
    assert stats.kv_cache_usage is None
    assert stats.asleep is None
    assert stats.progress is None


def test_a_page_without_vllm_series_has_no_numbers_and_says_what_to_do():
    stats = statistics(read("process_start_time_seconds 12.5\npython_info 1.0\n"))
    assert all(getattr(stats, name) is None for name in SCALARS)
    assert stats.identity == "12.5"
    assert "--disable-log-stats" in stats.missing


def test_data_parallel_engines_add_up_and_the_fullest_cache_counts():
    page = read(
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
    )
    assert (statistics(page).running, statistics(page).kv_cache_usage) == (7, 0.9)


def test_processes_of_one_engine_add_up_by_pid():
    page = read('vllm:prompt_tokens_total{pid="7"} 10\nvllm:prompt_tokens_total{pid="8"} 5\n')
    assert statistics(page).prompt_tokens_total == 15


def test_a_series_that_is_repeated_on_a_page_counts_once():
    page = read('vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="0"} 4\n')
    assert statistics(page).running == 4


def test_not_a_number_is_no_number():
    assert statistics(read("vllm:kv_cache_usage_perc NaN\n")).kv_cache_usage is None


def test_one_engine_asleep_among_several_is_asleep():
    def page(second: str) -> str:
        return "".join(
            f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="{state}"}} {float(state == held)}\n'
            for engine, held in ((0, "awake"), (1, second))
            for state in ("awake", "weights_offloaded", "discard_all")
        )

    assert asleep(read(page("discard_all"))) is True
    assert asleep(read(page("awake"))) is False
    # So it looks while scheduling is paused, and after the KV cache was released alone.
    assert asleep(read(page("no state"))) is True


def test_a_broken_line_costs_that_line_only():
    page = read('vllm:num_requests_running{engine="0" 3\nvllm:num_requests_waiting 2\n\x00\xff garbage\n')
    assert (statistics(page).running, statistics(page).waiting, page.unreadable) == (None, 2, 1)


def test_labels_with_escapes_and_braces_are_read():
    page = read('vllm:cache_config_info{block_size="16",x="a\\"}b",cache_dtype="fp8"} 1.0\n')
    assert page.labels(CACHE_CONFIG)["cache_dtype"] == "fp8"
    assert page.labels(CACHE_CONFIG)["x"] == 'a"}b'


def test_progress_grows_with_each_kind_of_work():
    before = statistics(read(V06)).progress
    for grown in ("prompt_tokens_total", "generation_tokens_total"):
        line = f'vllm:{grown}{{model_name="m"}}'
        after = statistics(read(V06.replace(line + " ", line + " 9"))).progress
        assert before is not None
        assert after is not None
        assert after > before


def test_several_start_times_are_one_identity():
    first = read('process_start_time_seconds{pid="1"} 2.0\nprocess_start_time_seconds{pid="2"} 1.0\n')
    assert identity(first) == "1.0+2.0"
    assert identity(read("")) is None


@pytest.mark.parametrize(
    ("line", "engine"),
    [("sglang:num_running_reqs 1", "sglang"), ("trtllm_kv_cache_utilization 0.5", "trtllm"), ("up 1", None)],
)
def test_engines_are_told_apart_by_their_metric_names(line: str, engine: str | None):
    assert read(line + "\n").flavour == engine


def test_a_page_of_hundreds_of_buckets_is_not_parsed_bucket_by_bucket():
    page = "".join(f'vllm:e2e_request_latency_seconds_bucket{{le="{n}"}} 1\n' for n in range(2000))
    found = read(page + "vllm:num_requests_running 1\n")
    assert found.lines == 2001
    assert set(found.samples) == {"vllm:num_requests_running"}


LENGTHS = """\
vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="tiny"} 2.0
vllm:request_prompt_tokens_bucket{engine="0",le="20.0",model_name="tiny"} 12.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="tiny"} 185.0
vllm:request_prompt_tokens_bucket{engine="1",le="1.0",model_name="tiny"} 1.0
vllm:request_prompt_tokens_bucket{engine="1",le="20.0",model_name="tiny"} 1.0
vllm:request_prompt_tokens_bucket{engine="1",le="+Inf",model_name="tiny"} 3.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="tiny"} 185.0
vllm:cache_config_info{engine="0",num_gpu_blocks="10000"} 1.0
vllm:cache_config_info{engine="1",num_gpu_blocks="3900"} 1.0
vllm:cache_config_info{engine="2",num_gpu_blocks="None"} 1.0
"""


def test_lengths_of_requests_are_read_by_their_own_bounds_and_summed_over_engines():
    stats = statistics(read(LENGTHS))
    assert stats.prompt_lengths == {1.0: 3.0, 20.0: 13.0, float("inf"): 188.0}
    assert stats.output_lengths == {float("inf"): 185.0}
    assert statistics(read(V032)).prompt_lengths == {}


def test_the_smallest_kv_cache_of_several_engines_counts():
    page = read(LENGTHS)
    assert page.smallest(CACHE_CONFIG, "num_gpu_blocks") == "3900"
    assert page.smallest(CACHE_CONFIG, "nothing") is None
