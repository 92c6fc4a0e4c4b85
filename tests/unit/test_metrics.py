"""Metrics: what exists from birth, what comes and goes with its source, and what no outsider can grow."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.caches.families import FAMILIES
from sidecar.caches.messages import CleanResult
from sidecar.metrics import HEADINGS, PREFIX, TABLE, Metric, Metrics, documented
from tests.fakes.readings import FULL_USAGE, full_snapshot, full_stats, histogram

STATS = full_stats()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0.1.0", "launcher", metrics_families())


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Scrape as Prometheus does; name without prefix and labels → value."""
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def of(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def full(metrics: Metrics) -> None:
    """Fill every metric that a source can bring."""
    metrics.gate(True, False)
    metrics.observe_golden({"seconds": 3.0, "drift_percent": 1.5, "failed": []})
    metrics.fallback(1, "--kv-cache-dtype auto")
    metrics.observe_phase("starting", None, 1000.0)
    metrics.observe_phase("restoring", 0.3, 1000.3)
    metrics.observe_restore({"outcome": "hit", "seconds": 4.8, "bytes": 100, "files": 7, "rejected": {"digest": 2}})
    metrics.effectiveness({"triton": 0.75})
    metrics.observe_store_gc(CleanResult(done=True, age_s=1.0, bytes_kept=100).to_json(), 1000.0)
    metrics.observe_warmup(
        {
            "outcome": "converged",
            "seconds": 9.0,
            "rounds": 2,
            "residual_risk": 0.01,
            "steps": [{"name": "prefill", "ttft_first_s": 2.0, "ttft_best_s": 0.1, "ttft_last_s": 0.1}],
        }
    )
    metrics.engine_stats(STATS)
    metrics.live_cache({"triton": {"files": 3, "bytes": 30}})
    metrics.unmanaged([{"path": "/root/.newdsl", "bytes": 70_000}])
    metrics.gpu(full_snapshot().to_json())
    metrics.baseline(full_stats(), 1010.0)
    metrics.processes(FULL_USAGE)
    for disk in ("live_cache", "store"):
        metrics.disk(disk, {"free": 5 << 30, "size": 10 << 30})
    metrics.kv_cache(1000, 0.1)
    metrics.count_kubernetes_call("patch_condition", "ok")
    metrics.readiness_gate("True", True)
    metrics.observe_phase("verifying", 1.0, 1011.0)
    metrics.observe_phase("ready", 1.0, 1012.0)
    metrics.engine_stats(full_stats(scale=2.0))


def test_counters_of_known_labels_are_zero_at_birth(metrics: Metrics) -> None:
    assert of(metrics, "kernels_compiled_total", when="after_ready", family="triton") == 0
    assert of(metrics, "restore_files_rejected_total", reason="digest") == 0
    assert of(metrics, "time_to_ready_seconds_count", restore="hit") == 0


def test_series_of_an_absent_engine_are_left_out_and_said_to_be_missing(metrics: Metrics) -> None:
    assert of(metrics, "engine_kv_cache_usage_ratio", phase="warmup") is None
    assert of(metrics, "source_missing", source="engine_metrics") == 1


def test_an_idle_engine_shows_zero_and_not_nothing(metrics: Metrics) -> None:
    metrics.engine_stats({**STATS, "running": 0.0})
    assert of(metrics, "engine_requests_running", phase="warmup") == 0


def test_a_series_goes_when_the_engine_stops_to_show_it(metrics: Metrics) -> None:
    metrics.engine_stats(STATS)
    metrics.engine_stats({**STATS, "kv_cache_usage": None})
    assert of(metrics, "engine_kv_cache_usage_ratio", phase="warmup") is None
    assert of(metrics, "engine_requests_running", phase="warmup") == 3
    assert of(metrics, "source_missing", source="engine_kv_cache_usage") == 1
    assert of(metrics, "source_missing", source="engine_running") == 0


def test_no_series_of_an_engine_outlives_it(metrics: Metrics) -> None:
    metrics.engine_stats(STATS)
    metrics.engine_stats(None)
    mirrored = (
        "engine_kv",
        "engine_requests",
        "engine_prompt",
        "engine_generation",
        "engine_prefix",
        "engine_time",
        "engine_inter",
    )
    assert not [name for name, _ in samples(metrics) if name.startswith(mirrored)]


def test_one_phase_is_set_at_a_time(metrics: Metrics) -> None:
    metrics.observe_phase("restoring", None, 1.0)
    metrics.observe_phase("ready", 3.0, 4.0)
    set_ = [
        dict(labels)["phase"] for (name, labels), value in samples(metrics).items() if name == "phase" and value == 1
    ]
    assert set_ == ["ready"]


def test_the_time_in_a_phase_counts_for_the_phase_that_ended(metrics: Metrics) -> None:
    metrics.observe_phase("restoring", None, 1.0)
    metrics.observe_phase("awaiting_engine", 4.8, 5.8)
    assert of(metrics, "phase_duration_seconds_sum", phase="restoring") == 4.8
    assert of(metrics, "phase_duration_seconds_bucket", phase="restoring", le="5.0") == 1
    assert of(metrics, "phase_duration_seconds_bucket", phase="restoring", le="2.5") == 0
    assert of(metrics, "phase_start_timestamp_seconds") == 5.8


def test_a_duration_on_a_bound_counts_below_it(metrics: Metrics) -> None:
    metrics.observe_time_to_ready(60.0, "hit")
    assert of(metrics, "time_to_ready_seconds_bucket", restore="hit", le="60.0") == 1
    assert of(metrics, "time_to_ready_seconds_bucket", restore="hit", le="30.0") == 0


def test_a_restore_is_counted_in_all_its_parts(metrics: Metrics) -> None:
    result = {
        "outcome": "partial",
        "seconds": 2.0,
        "bytes": 100,
        "files": 7,
        "rejected": {"digest": 2, "never heard of": 1},
    }
    metrics.observe_restore(result)
    metrics.observe_restore(result)
    assert of(metrics, "restore_outcome_total", outcome="partial") == 2
    assert of(metrics, "restore_bytes_total") == 200
    assert of(metrics, "restore_files_total") == 14
    assert of(metrics, "restore_files_rejected_total", reason="digest") == 4
    assert of(metrics, "restore_files_rejected_total", reason="other") == 2
    assert of(metrics, "restore_seconds_count") == 2


def test_a_publish_is_counted_in_all_its_parts(metrics: Metrics) -> None:
    metrics.observe_publish({"outcome": "published", "seconds": 2.0, "bytes": 50, "new_files": 4})
    assert of(metrics, "publish_outcome_total", outcome="published") == 1
    assert (of(metrics, "publish_bytes_total"), of(metrics, "publish_files_total")) == (50, 4)


def test_a_cleaning_of_the_store_is_counted_and_one_that_was_not_due_tells_only_when_the_last_one_was(
    metrics: Metrics,
) -> None:
    done = CleanResult(sentence="x", done=True, age_s=2.0, generations=3, bytes=70, bytes_kept=500, bytes_over=20)
    metrics.observe_store_gc(done.to_json(), 1000.0)
    metrics.observe_store_gc(CleanResult(sentence="x", failed=True).to_json(), 1100.0)
    assert of(metrics, "store_gc_last_timestamp_seconds") == 998
    # The same one, by a clock that runs a little differently.
    metrics.observe_store_gc(CleanResult(age_s=1000.0).to_json(), 2000.0)
    assert (of(metrics, "store_gc_total", outcome="done"), of(metrics, "store_gc_total", outcome="failed")) == (1, 1)
    assert of(metrics, "store_gc_removed_generations_total") == 3
    assert of(metrics, "store_gc_removed_bytes_total") == 70
    assert (of(metrics, "store_bytes"), of(metrics, "store_over_limit_bytes")) == (500, 20)
    assert of(metrics, "store_gc_last_timestamp_seconds") == 1000


def test_what_the_store_took_is_told_by_the_pod_that_cleaned_it_last_and_by_no_other(metrics: Metrics) -> None:
    metrics.observe_store_gc(CleanResult(done=True, age_s=2.0, bytes_kept=500, bytes_over=20).to_json(), 1000.0)
    metrics.observe_store_gc(CleanResult(age_s=100.0).to_json(), 90_000.0)
    assert (of(metrics, "store_bytes"), of(metrics, "store_over_limit_bytes")) == (None, None)
    metrics.observe_store_gc(CleanResult(done=True, age_s=1.0, bytes_kept=300).to_json(), 95_000.0)
    assert of(metrics, "store_bytes") == 300


def test_a_result_without_numbers_counts_its_outcome_alone(metrics: Metrics) -> None:
    metrics.observe_restore({"outcome": "failed"})
    metrics.observe_restore({"outcome": "failed", "bytes": None, "rejected": None, "seconds": float("nan")})
    assert of(metrics, "restore_outcome_total", outcome="failed") == 2


def test_an_unknown_family_or_cause_counts_as_other(metrics: Metrics) -> None:
    metrics.count_kernels("after_ready", "newdsl", 3)
    metrics.count_restart("cosmic ray")
    assert of(metrics, "kernels_compiled_total", when="after_ready", family="other") == 3
    assert of(metrics, "engine_restarts_total", cause="other") == 1


def test_unknown_families_of_the_live_cache_are_summed_up(metrics: Metrics) -> None:
    metrics.live_cache(
        {"triton": {"files": 1, "bytes": 10}, "a": {"files": 2, "bytes": 20}, "b": {"files": 3, "bytes": 30}}
    )
    assert of(metrics, "live_cache_bytes", family="other") == 50
    assert of(metrics, "live_cache_files", family="triton") == 1


def test_steps_of_an_earlier_warm_up_are_forgotten(metrics: Metrics) -> None:
    metrics.observe_warmup({"outcome": "failed", "steps": [{"name": "old", "ttft_first_s": 1.0}]})
    metrics.observe_warmup({"outcome": "converged", "steps": [{"name": "new", "ttft_first_s": 1.0}]})
    assert of(metrics, "warmup_step_ttft_seconds", step="old", request="first") is None
    assert of(metrics, "warmup_step_ttft_seconds", step="new", request="first") == 1


def test_a_warm_up_of_a_thousand_steps_does_not_grow_the_scrape_without_bound(metrics: Metrics) -> None:
    metrics.observe_warmup(
        {
            "outcome": "converged",
            "steps": [
                {"name": f"step{n}", "ttft_first_s": 1.0, "ttft_best_s": 1.0, "ttft_last_s": 1.0} for n in range(1000)
            ],
        }
    )
    assert len([name for name, _ in samples(metrics) if name == "warmup_step_ttft_seconds"]) <= 150


def test_a_gpu_that_is_gone_leaves_no_stale_series(metrics: Metrics) -> None:
    full(metrics)
    metrics.gpu(None)
    assert {name for name, _ in samples(metrics) if name.startswith("gpu_")} == {"gpu_up", "gpu_reading_troubles_total"}
    assert of(metrics, "gpu_up") == 0


@pytest.mark.parametrize("state", ["up", "asleep", "stalled", "gpu_lost"])
def test_the_engine_counts_as_up_only_while_it_answers_whatever_state_it_is_in(metrics: Metrics, state: str) -> None:
    metrics.engine_state(state, answers=True)
    assert of(metrics, "engine_up") == 1
    metrics.engine_state(state, answers=False)
    assert (of(metrics, "engine_up"), of(metrics, "engine_state", state=state)) == (0, 1)


def test_hostile_labels_are_escaped(metrics: Metrics) -> None:
    name = 'a"b\\c\nd{}'
    metrics.observe_warmup({"outcome": "converged", "steps": [{"name": name, "ttft_first_s": 1.0}]})
    assert of(metrics, "warmup_step_ttft_seconds", step=name, request="first") == 1


def test_every_scraped_name_is_declared_and_every_declared_one_can_be_scraped(metrics: Metrics) -> None:
    full(metrics)
    scraped = {line.split()[2] for line in metrics.render().decode().splitlines() if line.startswith("# TYPE")}
    assert scraped == {PREFIX + metric.name for metric in TABLE}


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert [m.name for m in TABLE if (m.kind == "counter") != m.name.endswith("_total")] == []
    assert [m.name for m in TABLE if m.unit and f"_{m.unit}" not in m.name] == []
    assert len({m.name for m in TABLE}) == len(TABLE)


def test_the_readme_rows_cover_every_metric_once() -> None:
    rows = documented()
    assert [row[0] for row in rows] == [PREFIX + metric.name for metric in TABLE]
    assert all(len(row) == len(HEADINGS) and row[-1] for row in rows)


def test_promtool_finds_nothing_to_complain_about(metrics: Metrics) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing (Debian: package prometheus)")
    full(metrics)
    checked = subprocess.run([promtool, "check", "metrics"], input=metrics.render(), capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_a_scrape_writes_anew_only_what_has_changed(metrics: Metrics) -> None:
    full(metrics)
    metrics.render()
    metrics.count_restart("killed")
    metrics.gpu(full_snapshot().to_json())
    metrics.engine_stats(full_stats(scale=2.0))
    assert metrics._changed == {"engine_restarts_total"}


def test_what_is_written_again_is_what_would_be_written_anew(metrics: Metrics) -> None:
    metrics.render()
    for scale in (1.0, 2.0, 1e9):
        full(metrics)
        metrics.engine_stats(full_stats(scale=scale))
        metrics.observe_time_to_ready(scale, "hit")
        metrics.render()
    written, metrics._written = metrics.render(), {}
    metrics._changed |= {metric.name for metric in TABLE}
    assert written == metrics.render()


@pytest.mark.parametrize("name", ['a"b\\c\nd{} 1', "line\u2028separator\x85\x0c", "\udcff", "# HELP"])
def test_odd_labels_survive_a_change_of_their_value(metrics: Metrics, name: str) -> None:
    for value in (1.0, 2.0):
        metrics.observe_warmup({"outcome": "converged", "steps": [{"name": name, "ttft_first_s": value}]})
        shown = [line for line in metrics.render().decode().split("\n") if line.startswith(PREFIX + "warmup_step_ttft")]
        assert len(shown) == 1
        assert shown[0].endswith(f" {value}")


def test_no_metric_has_more_series_than_its_declaration_says(metrics: Metrics) -> None:
    full(metrics)
    metrics.unmanaged([{"path": f"/root/.x{number}", "bytes": number} for number in range(30)])
    metrics.gpu(full_snapshot(40).to_json())
    many = {"name": "s", "ttft_first_s": 1.0, "ttft_best_s": 1.0, "ttft_last_s": 1.0}
    metrics.observe_warmup({"outcome": "converged", "steps": [{**many, "name": f"s{n}"} for n in range(1000)]})
    every = {str(number): {"files": 1, "bytes": 1} for number in range(100)}
    metrics.live_cache({**every, **{f"family{n}": {"files": 1, "bytes": 1} for n in range(22)}})
    bounds = tuple(float(number) for number in range(1, 500))
    metrics.engine_stats({**full_stats("2"), "time_to_first_token": histogram(1000, bounds)})
    counted = Counter(next(m.name for m in TABLE if belongs(name, m)) for name, _ in samples(metrics))
    assert {m.name: counted[m.name] for m in TABLE if counted[m.name] > m.series(len(metrics_families()))} == {}


def belongs(sample: str, metric: Metric) -> bool:
    ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    return any(sample == metric.name + end for end in ends)


def metrics_families() -> list[str]:
    return ["triton", "deep_gemm", *(f"family{n}" for n in range(22))]


def test_all_series_together_are_bounded() -> None:
    assert sum(metric.series(len(FAMILIES)) for metric in TABLE) < 2500


def values(metrics: Metrics, name: str) -> list[Any]:
    return [value for (found, _), value in samples(metrics).items() if found == name]


def test_exactly_one_build_info_tells_version_and_mode(metrics: Metrics) -> None:
    assert values(metrics, "build_info") == [1]
    assert of(metrics, "build_info", version="0.1.0", mode="launcher") == 1


def test_directories_in_no_family_have_ten_series_at_most_and_go_when_they_are_told_no_more(metrics: Metrics) -> None:
    metrics.unmanaged([{"path": f"/root/.x{number}", "bytes": number} for number in range(30)])
    assert len(re.findall(r"^warmup_sidecar_unmanaged_cache_bytes\{", metrics.render().decode(), re.MULTILINE)) == 10
    assert of(metrics, "unmanaged_cache_bytes", path="/root/.x7") == 7
    metrics.unmanaged([])
    assert "unmanaged_cache_bytes{" not in metrics.render().decode()
