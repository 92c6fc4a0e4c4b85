"""The engine's, the GPUs' and the processes' numbers as series: split at ready, labelled, gone with their source."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.gpu.reading import Gpu, GpuSnapshot
from sidecar.metrics import PREFIX, Metrics
from sidecar.metrics.engine_table import BUCKETS_KEPT, ENGINE_COUNTERS
from sidecar.metrics.gpu_table import GPU_FIELDS, GPU_TROUBLES
from tests.fakes.readings import FULL_USAGE, full_gpu, full_snapshot, full_stats, histogram


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0", "launcher", ["triton"])


def scraped(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def of(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return scraped(metrics).get((name, frozenset(labels.items())))


def both(metrics: Metrics, name: str, **labels: str) -> tuple[float | None, float | None]:
    """Give what belongs to warm-up and what to traffic."""
    first, second = (of(metrics, name, phase=phase, **labels) for phase in ("warmup", "serving"))
    return first, second


def ready(metrics: Metrics) -> None:
    metrics.observe_phase("verifying", 1.0, 1.0)
    metrics.observe_phase("ready", 1.0, 2.0)


# --- the engine's numbers


@pytest.mark.parametrize(("field", "name"), ENGINE_COUNTERS.items())
def test_what_an_engine_counts_before_ready_is_none_of_the_traffic(metrics: Metrics, field: str, name: str) -> None:
    stats = {**full_stats(), field: 100.0}
    metrics.engine_stats(stats)
    metrics.baseline({**stats, field: 130.0}, 5.0)
    ready(metrics)
    metrics.engine_stats({**stats, field: 137.0})
    assert both(metrics, name) == (130.0, 7.0)


@pytest.mark.parametrize("name", ["time_to_first_token", "inter_token_latency"])
def test_histograms_are_split_bucket_by_bucket(metrics: Metrics, name: str) -> None:
    metric = f"engine_{name}_seconds"
    metrics.baseline({**full_stats(), name: {"buckets": {"0.1": 4.0, "1.0": 6.0, "inf": 8.0}, "sum": 10.0}}, 5.0)
    ready(metrics)
    metrics.engine_stats({**full_stats(), name: {"buckets": {"0.1": 5.0, "1.0": 9.0, "inf": 12.0}, "sum": 13.0}})
    assert both(metrics, metric + "_bucket", le="0.1") == (4.0, 1.0)
    assert both(metrics, metric + "_bucket", le="1.0") == (6.0, 3.0)
    assert both(metrics, metric + "_bucket", le="+Inf") == (8.0, 4.0)
    assert both(metrics, metric + "_sum") == (10.0, 3.0)
    assert both(metrics, metric + "_count") == (8.0, 4.0)


def test_load_is_labelled_with_the_phase_so_that_autoscalers_pass_warm_up_over(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats(), "running": 16.0, "kv_cache_usage": 0.7})
    assert both(metrics, "engine_requests_running") == (16.0, None)
    assert both(metrics, "engine_kv_cache_usage_ratio") == (0.7, None)
    ready(metrics)
    metrics.engine_stats({**full_stats(), "running": 2.0})
    assert both(metrics, "engine_requests_running") == (None, 2.0)


@pytest.mark.parametrize("phase", ["suspended", "draining"])
def test_what_runs_while_a_ready_pod_is_held_back_is_traffic(metrics: Metrics, phase: str) -> None:
    metrics.observe_phase(phase, 1.0, 2.0)
    metrics.engine_stats(full_stats())
    assert both(metrics, "engine_requests_running") == (None, 3.0)


def test_a_second_warm_up_goes_on_with_warm_ups_count(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 100.0})
    ready(metrics)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 150.0})
    metrics.observe_phase("warming", 1.0, 3.0)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 170.0})
    ready(metrics)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 171.0})
    assert both(metrics, "engine_prompt_tokens_total") == (120.0, 51.0)


def test_another_engine_process_starts_from_zero(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats("1"), "prompt_tokens_total": 100.0})
    metrics.engine_stats({**full_stats("2"), "prompt_tokens_total": 7.0})
    assert both(metrics, "engine_prompt_tokens_total") == (7.0, 0.0)


def test_an_engine_without_a_name_that_went_and_came_back_starts_from_zero(metrics: Metrics) -> None:
    unnamed = {**full_stats(), "identity": None}
    metrics.engine_stats({**unnamed, "prompt_tokens_total": 100.0})
    metrics.engine_stats(None)
    metrics.engine_stats({**unnamed, "prompt_tokens_total": 7.0})
    assert both(metrics, "engine_prompt_tokens_total") == (7.0, 0.0)


def test_readings_that_pause_change_nothing_of_what_was_split(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 100.0})
    ready(metrics)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 150.0})
    metrics.engine_stats(None)
    assert both(metrics, "engine_prompt_tokens_total") == (None, None)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 160.0})
    assert both(metrics, "engine_prompt_tokens_total") == (100.0, 60.0)


def test_what_an_engine_counted_under_another_daemon_belongs_to_no_phase_of_this_one(metrics: Metrics) -> None:
    seen = {**full_stats(), "prompt_tokens_total": 1000.0}
    histogram = {"buckets": {"0.1": 4.0, "inf": 8.0}, "sum": 10.0}
    metrics.adopt({**seen, "time_to_first_token": histogram})
    assert both(metrics, "engine_prompt_tokens_total") == (0.0, 0.0)
    metrics.baseline({**seen, "prompt_tokens_total": 1001.0, "time_to_first_token": histogram}, 5.0)
    ready(metrics)
    grown = {"buckets": {"0.1": 5.0, "inf": 9.0}, "sum": 10.1}
    metrics.engine_stats({**seen, "prompt_tokens_total": 1011.0, "time_to_first_token": grown})
    assert both(metrics, "engine_prompt_tokens_total") == (1.0, 10.0)
    assert both(metrics, "engine_time_to_first_token_seconds_count") == (0.0, 1.0)


def test_a_process_that_began_anew_without_a_name_is_noticed_by_counters_that_stay_low(metrics: Metrics) -> None:
    unnamed = {**full_stats(), "identity": None}
    metrics.engine_stats({**unnamed, "prompt_tokens_total": 100.0})
    for value, shown in ((5.0, 100.0), (6.0, 100.0), (7.0, 7.0), (9.0, 9.0)):
        metrics.engine_stats({**unnamed, "prompt_tokens_total": value})
        assert both(metrics, "engine_prompt_tokens_total") == (shown, 0.0)


@pytest.mark.parametrize("identity", ["1", None])
def test_an_older_reading_that_is_told_again_and_again_is_no_other_process(
    metrics: Metrics, identity: str | None
) -> None:
    older = {**full_stats(), "identity": identity, "prompt_tokens_total": 90.0}
    metrics.engine_stats(older)
    metrics.baseline({**older, "prompt_tokens_total": 100.0}, 5.0)
    ready(metrics)
    for _ in range(5):
        metrics.engine_stats(dict(older))
    assert both(metrics, "engine_prompt_tokens_total") == (100.0, 0.0)
    metrics.engine_stats({**older, "prompt_tokens_total": 140.0})
    assert both(metrics, "engine_prompt_tokens_total") == (100.0, 40.0)


@pytest.mark.parametrize(("field", "value"), [("kv_cache_usage", 55.0), ("kv_cache_usage", -0.1), ("running", -5.0)])
def test_a_load_that_no_engine_can_have_is_left_out(metrics: Metrics, field: str, value: float) -> None:
    metrics.engine_stats({**full_stats(), field: value})
    name = {"kv_cache_usage": "engine_kv_cache_usage_ratio", "running": "engine_requests_running"}[field]
    assert both(metrics, name) == (None, None)
    assert of(metrics, "source_missing", source="engine_" + field) == 1


def test_buckets_of_an_odd_page_leave_as_a_histogram(metrics: Metrics) -> None:
    odd = {"buckets": {"-inf": 1.0, "0.1": 9.0, "1.0": 6.0, "inf": 8.0, "nan": 2.0}, "sum": 3.0}
    metrics.engine_stats({**full_stats(), "time_to_first_token": odd})
    name = "engine_time_to_first_token_seconds_bucket"
    assert both(metrics, name, le="0.1") == (9.0, 0.0)
    assert both(metrics, name, le="1.0") == (9.0, 0.0)
    assert both(metrics, name, le="+Inf") == (9.0, 0.0)


def test_prompts_that_went_wrong_are_counted_once_whatever_way_they_were_sent(metrics: Metrics) -> None:
    failed = [{"name": name, "way": way} for name in ("bread", "tides") for way in ("alone", "together", "batch")]
    metrics.observe_golden({"seconds": 1.0, "failed": failed})
    assert of(metrics, "golden_failed_prompts") == 2


def test_a_reading_that_comes_late_takes_nothing_back(metrics: Metrics) -> None:
    metrics.baseline({**full_stats(), "prompt_tokens_total": 100.0}, 5.0)
    ready(metrics)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 90.0})
    assert both(metrics, "engine_prompt_tokens_total") == (100.0, 0.0)
    metrics.engine_stats({**full_stats(), "prompt_tokens_total": 103.0})
    assert both(metrics, "engine_prompt_tokens_total") == (100.0, 3.0)


def test_buckets_of_the_engines_own_choice_are_shown_as_they_are(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats(), "time_to_first_token": histogram(10, (0.123, 4.56))})
    les = [
        dict(labels)["le"] for name, labels in scraped(metrics) if name == "engine_time_to_first_token_seconds_bucket"
    ]
    assert sorted(set(les)) == ["+Inf", "0.123", "4.56"]


def test_of_too_many_buckets_those_that_stay_tell_the_truth(metrics: Metrics) -> None:
    bounds = tuple(number / 100 for number in range(1, 200))
    metrics.engine_stats({**full_stats(), "time_to_first_token": histogram(200, bounds)})
    found = {
        float(dict(labels)["le"]): value
        for (name, labels), value in scraped(metrics).items()
        if name == "engine_time_to_first_token_seconds_bucket" and ("phase", "warmup") in labels
    }
    truth = histogram(200, bounds)["buckets"]
    assert len(found) <= BUCKETS_KEPT
    assert found == {float(bound): count for bound, count in truth.items() if float(bound) in found}


def test_a_histogram_whose_buckets_change_is_counted_anew(metrics: Metrics) -> None:
    metrics.engine_stats({**full_stats(), "time_to_first_token": histogram(10, (1.0, 2.0))})
    metrics.engine_stats({**full_stats(), "time_to_first_token": histogram(4, (1.0, 3.0))})
    assert both(metrics, "engine_time_to_first_token_seconds_count") == (4.0, 0.0)


@pytest.mark.parametrize(
    "odd", [None, {}, {"buckets": {}}, {"buckets": {"1.0": 3.0}}, {"buckets": {"x": 1, "inf": float("nan")}}, 7]
)
def test_a_histogram_that_is_none_has_no_series(metrics: Metrics, odd: Any) -> None:
    metrics.engine_stats({**full_stats(), "time_to_first_token": odd})
    assert not [name for name, _ in scraped(metrics) if name.startswith("engine_time_to_first")]
    assert of(metrics, "source_missing", source="engine_time_to_first_token") == 1
    assert of(metrics, "source_missing", source="engine_inter_token_latency") == 0


def test_the_moment_of_the_split_is_told(metrics: Metrics) -> None:
    assert of(metrics, "engine_baseline_timestamp_seconds") is None
    metrics.baseline(full_stats(), 1234.5)
    assert of(metrics, "engine_baseline_timestamp_seconds") == 1234.5


# --- the GPUs


@pytest.mark.parametrize("each", GPU_FIELDS, ids=lambda each: each.field)
def test_a_field_that_a_gpu_does_not_show_takes_its_series_alone_with_it(metrics: Metrics, each: Any) -> None:
    metrics.gpu(GpuSnapshot("570", "12.8", (full_gpu(0),), (), 1).to_json())
    before = {name for name, _ in scraped(metrics)}
    gpu = dataclasses.replace(full_gpu(0), **{each.field: None})
    metrics.gpu(GpuSnapshot("570", "12.8", (gpu,), (), 1).to_json())
    assert before - {name for name, _ in scraped(metrics)} == {each.metric.name}


def test_a_lost_gpu_has_no_series_but_that_it_is_lost(metrics: Metrics) -> None:
    metrics.gpu(full_snapshot(2).to_json())
    lost = Gpu(0, "GPU-x", "NVIDIA H200", "sm90", lost=True)
    metrics.gpu(GpuSnapshot("570", "12.8", (lost, full_gpu(1)), (), 2).to_json())
    shown = {name for name, labels in scraped(metrics) if ("uuid", "GPU-x") in labels}
    assert shown == {"gpu_info", "gpu_lost"}
    assert of(metrics, "gpu_lost", gpu="0", uuid="GPU-x") == 1
    assert of(metrics, "gpu_lost", gpu="1", uuid=full_gpu(1).uuid or "") == 0


def test_a_gpu_that_is_known_lost_stays_lost_while_nvml_is_away(metrics: Metrics) -> None:
    lost = dataclasses.replace(full_gpu(0), lost=True)
    metrics.gpu({"unavailable": "NVML does not answer.", "kind": "no_answer", "gpus": [lost.to_json()]})
    assert of(metrics, "gpu_lost", gpu="0", uuid=lost.uuid or "") == 1
    assert (of(metrics, "gpu_up"), of(metrics, "source_missing", source="gpu")) == (0, 1)


def test_memory_that_is_the_machines_is_labelled_so(metrics: Metrics) -> None:
    gpu = dataclasses.replace(full_gpu(0), memory="unified", memory_used_bytes=5, memory_reserved_bytes=None)
    metrics.gpu(GpuSnapshot("570", "12.8", (gpu,), (), 1).to_json())
    labels = {"gpu": "0", "uuid": gpu.uuid or ""}
    assert of(metrics, "gpu_memory_used_bytes", memory="unified", **labels) == 5
    assert of(metrics, "gpu_memory_used_bytes", memory="device", **labels) is None


def test_the_info_of_a_gpu_names_driver_cuda_and_mig_profile(metrics: Metrics) -> None:
    gpu = Gpu(1, "MIG-1", "NVIDIA H200", "sm90", mig="1g.18gb")
    metrics.gpu(GpuSnapshot("570.133.20", "12.8", (gpu,), (), 1).to_json())
    named = {"name": "NVIDIA H200", "sm": "sm90", "mig": "1g.18gb", "driver": "570.133.20", "cuda": "12.8"}
    assert of(metrics, "gpu_info", gpu="1", uuid="MIG-1", **named) == 1


def test_fewer_readable_gpus_than_the_engine_uses_can_be_told_from_the_metrics(metrics: Metrics) -> None:
    metrics.gpu(GpuSnapshot("570", "12.8", (full_gpu(0),), (), 2).to_json())
    assert of(metrics, "gpu_expected") == 2
    assert len([1 for name, _ in scraped(metrics) if name == "gpu_info"]) == 1


@pytest.mark.parametrize("kind", [*GPU_TROUBLES, "never heard of"])
def test_a_reading_that_failed_counts_under_its_reason(metrics: Metrics, kind: str) -> None:
    metrics.count_gpu_trouble(kind)
    assert of(metrics, "gpu_reading_troubles_total", reason=kind if kind in GPU_TROUBLES else "other") == 1


# --- processes, disks and the way to ready


def test_what_the_kernel_does_not_show_of_the_engines_processes_is_left_out(metrics: Metrics) -> None:
    metrics.processes({**FULL_USAGE, "open_files": None})
    assert of(metrics, "engine_resident_memory_bytes") == 9 << 30
    assert of(metrics, "engine_open_files") is None
    metrics.processes(None)
    assert of(metrics, "engine_resident_memory_bytes") is None
    assert of(metrics, "source_missing", source="engine_processes") == 1


def test_a_store_that_hangs_has_no_room_and_is_missing_and_the_live_cache_stays(metrics: Metrics) -> None:
    for disk in ("live_cache", "store"):
        metrics.disk(disk, {"free": 5, "size": 10})
    metrics.disk("store", None)
    assert (of(metrics, "disk_free_bytes", disk="store"), of(metrics, "disk_free_bytes", disk="live_cache")) == (
        None,
        5,
    )
    assert of(metrics, "source_missing", source="store") == 1


def test_a_store_that_nobody_asked_for_is_not_missing(metrics: Metrics) -> None:
    metrics.disk("store", None, wanted=False)
    assert of(metrics, "source_missing", source="store") == 0


def test_the_way_to_ready_is_taken_apart_by_phase(metrics: Metrics) -> None:
    for phase, seconds in (("starting", None), ("restoring", 1.0), ("awaiting_engine", 4.0), ("warming", 70.0)):
        metrics.observe_phase(phase, seconds, 0.0)
    assert of(metrics, "start_phase_seconds", phase="warming") is None
    metrics.observe_phase("verifying", 20.0, 0.0)
    metrics.observe_phase("ready", 2.0, 0.0)
    assert of(metrics, "start_phase_seconds", phase="awaiting_engine") == 70.0
    assert of(metrics, "start_phase_seconds", phase="warming") == 20.0
    metrics.observe_phase("suspended", 3600.0, 0.0)
    metrics.observe_phase("warming", 30.0, 0.0)
    metrics.observe_phase("verifying", 5.0, 0.0)
    metrics.observe_phase("ready", 1.0, 0.0)
    assert of(metrics, "start_phase_seconds", phase="warming") == 5.0
    assert of(metrics, "start_phase_seconds", phase="awaiting_engine") == 0.0
    assert of(metrics, "start_phase_seconds", phase="ready") is None
