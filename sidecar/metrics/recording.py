"""What is told about a daemon and its engine, turned into series: by the supervisor and by those who watch.

Nothing is measured here and no room is asked for anything. Which metrics there are is declared in `table.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.metrics.declaration import OTHER
from sidecar.metrics.engine_series import EngineSeries
from sidecar.metrics.engine_table import ENGINE_SERIES
from sidecar.metrics.gpu_series import gpu_series
from sidecar.metrics.numbers import mapping, number
from sidecar.metrics.process_table import PROCESS_SERIES
from sidecar.metrics.series import Labels, Numbers
from sidecar.metrics.table import SOURCES, STEPS_SHOWN, TABLE, UNMANAGED_SHOWN

#: Phases in which what the engine does is somebody's traffic.
_SERVING = frozenset({"ready", "suspended", "draining", "stopped"})
#: Two times of one cleaning differ by less: the store's clock gives whole seconds and may run differently.
SAME_CLEANING_S = 60.0


class Metrics(Numbers):
    """All numbers of one daemon. Methods take plain values; names that are not known count as `other`.

    `families` are the names of the live cache's families. Durations in seconds.
    """

    def __init__(self, version: str, mode: str, families: Iterable[str] = ()) -> None:
        super().__init__(TABLE, tuple(families))
        self._engine = EngineSeries()
        self._serving = False
        self._spent: dict[str, float] = {}
        self._cleaned_at = 0.0
        self._replace("build_info", {(version, mode): 1.0})
        for source in SOURCES:
            self._source(source, False)

    # -- what the supervisor tells
    # -------------------------------------------------------------------------------

    def gate(self, ready: bool, flagged: bool) -> None:
        """Note whether traffic may come, and whether by policy only."""
        self._set("ready", float(ready))
        self._set("flagged", float(flagged))

    def notices(self, degraded: int, settings_problems: int) -> None:
        """Note how many things are degraded and how many settings could not be used."""
        self._set("degraded", degraded)
        self._set("settings_problems", settings_problems)

    def observe_phase(self, phase: str, seconds_of_previous: float | None, at: float) -> None:
        """Note a change of phase: the new one, how long the one that ended took, and when (since the
        epoch).
        """
        previous = [labels for labels, value in self._values["phase"].items() if value]
        self._take_apart(phase, previous[0][0] if previous else "", seconds_of_previous)
        self._serving = phase in _SERVING
        if previous and seconds_of_previous is not None and previous[0] in self._bins["phase_duration_seconds"]:
            self._observe("phase_duration_seconds", seconds_of_previous, *previous[0])
        self._one_of("phase", phase)
        self._set("phase_start_timestamp_seconds", at)

    def _take_apart(self, phase: str, previous: str, seconds: float | None) -> None:
        """Add up what each phase took since the start or since ready was withdrawn, and show it at ready."""
        if previous == "ready":
            self._spent = {}
        elif seconds is not None:
            self._spent[previous] = self._spent.get(previous, 0.0) + seconds
        if phase == "ready":
            on_the_way = self._domains["start_phase_seconds"]["phase"] or ()
            self._replace("start_phase_seconds", {(each,): self._spent.get(each, 0.0) for each in on_the_way})

    def observe_time_to_ready(self, seconds: float, restore: str) -> None:
        """Note how long the way to ready took, and what restore gave (`adopted` for a proven engine)."""
        self._observe("time_to_ready_seconds", seconds, restore)

    def observe_restore(self, result: Mapping[str, Any]) -> None:
        """Note how a restore ended: `outcome`, `seconds`, `bytes`, `files`, `rejected` per reason."""
        self._add("restore_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("restore_seconds", number(result.get("seconds")) or 0.0)
        self._add("restore_waited_seconds_total", number(result.get("waited_s")))
        self._add("restore_bytes_total", number(result.get("bytes")))
        self._add("restore_files_total", number(result.get("files")))
        for reason, files in mapping(result.get("rejected")).items():
            self._add("restore_files_rejected_total", number(files), str(reason))
        for source, count in mapping(result.get("sources")).items():
            self._add("restore_source_bytes_total", number(mapping(count).get("bytes")), str(source))
            self._add("restore_source_seconds_total", number(mapping(count).get("seconds")), str(source))

    def effectiveness(self, ratios: Mapping[str, float]) -> None:
        """Note per family which share of the kernels needed came from the store and was used, 0 to 1."""
        known = self._domains["kernels_compiled_total"]["family"] or ()
        self._replace(
            "restore_effectiveness_ratio",
            {(name if name in known else OTHER,): ratio for name, ratio in ratios.items()},
        )

    def observe_publish(self, result: Mapping[str, Any]) -> None:
        """Note how a publish ended: `outcome`, `seconds`, `bytes` (packed), `new_files`."""
        self._add("publish_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("publish_seconds", number(result.get("seconds")) or 0.0)
        self._add("publish_bytes_total", number(result.get("bytes")))
        self._add("publish_files_total", number(result.get("new_files")))

    def observe_store_gc(self, result: Mapping[str, Any], now: float) -> None:
        """Note how cleaning the store up ended, `CleanResult.to_json`; `now` is in seconds since the epoch.

        One that was not due tells only when somebody did it last. What this pod found goes when another one has cleaned since:
        the newest numbers are that one's.
        """
        age_s = number(result.get("age_s"))
        if age_s is not None:
            self._optional("store_gc_last_timestamp_seconds", now - age_s)
            if result.get("done"):
                self._cleaned_at = now - age_s
            elif now - age_s > self._cleaned_at + SAME_CLEANING_S:
                self._optional("store_bytes", None)
                self._optional("store_over_limit_bytes", None)
        if result.get("failed"):
            self._add("store_gc_total", 1, "failed")
        elif result.get("done"):
            self._add("store_gc_total", 1, "done")
            self._add("store_gc_removed_generations_total", number(result.get("generations")))
            self._add("store_gc_removed_bytes_total", number(result.get("bytes")))
            self._optional("store_bytes", number(result.get("bytes_kept")))
            self._optional("store_over_limit_bytes", number(result.get("bytes_over")))

    def count_kernels(self, when: str, family: str, kernels: int) -> None:
        """Count kernels that were compiled `before_ready` or `after_ready`."""
        self._add("kernels_compiled_total", kernels, when, family)

    def count_requests(self, outcome: str, requests: int = 1) -> None:
        """Count warm-up requests that ended `ok`, `unsupported` or `failed`."""
        self._add("warmup_requests_total", requests, outcome)

    def observe_warmup(self, result: Mapping[str, Any]) -> None:
        """Note how a warm-up ended: `outcome`, `seconds`, `rounds`, `steps`, and `residual_risk` (0..1)
        if known.
        """
        self._add("warmup_outcome_total", 1, str(result.get("outcome", OTHER)))
        self._observe("warmup_seconds", number(result.get("seconds")) or 0.0)
        self._add("warmup_rounds_total", number(result.get("rounds")))
        self._add("warmup_bursts_replayed_total", number(result.get("replayed")))
        self._add("warmup_requests_searched_total", number(result.get("searched")))
        for family, kernels in mapping(result.get("lost_kernels")).items():
            self._add("warmup_kernels_lost_total", number(kernels), str(family))
        self._optional("warmup_residual_risk_ratio", number(result.get("residual_risk")))
        steps: dict[Labels, float] = {}
        for step in list(result.get("steps") or ())[:STEPS_SHOWN]:
            for request in ("first", "best", "last"):
                seconds = number(step.get(f"ttft_{request}_s"))
                if seconds is not None:
                    steps[(str(step.get("name", OTHER)), request)] = seconds
        self._replace("warmup_step_ttft_seconds", steps)

    def observe_verify(self, outcome: str) -> None:
        """Note how a check of the output ended."""
        self._add("verify_total", 1, outcome)

    def observe_golden(self, result: Mapping[str, Any]) -> None:
        """Note how a golden check ended: `seconds`, `drift_percent` where it was measured, and the prompts that `failed`."""
        drift = number(result.get("drift_percent"))
        self._optional("golden_drift_ratio", None if drift is None else drift / 100)
        self._optional("golden_failed_prompts", float(len({str(mapping(each).get("name")) for each in result.get("failed") or ()})))
        self._observe("golden_seconds", number(result.get("seconds")) or 0.0)

    def fallback(self, active: int, change: str) -> None:
        """Note with which fallback the engine runs, by number and text; 0: with none."""
        self._set("fallback_active", float(active))
        self._replace("fallback_info", {(change[:200],): 1.0} if active else {})

    def count_fallback(self) -> None:
        """Count a start of the engine with a fallback."""
        self._add("fallback_starts_total", 1)

    def observe_sample(self, outcome: str) -> None:
        """Note how a sample of the output was, that was taken while serving."""
        self._add("output_samples_total", 1, outcome)

    def engine_state(self, state: str, answers: bool) -> None:
        """Note how the engine looks: one of ENGINE_STATES, and whether it answers its health check with 200."""
        self._set("engine_up", float(answers))
        self._one_of("engine_state", state)

    def engine_stats(self, stats: Mapping[str, Any] | None) -> None:
        """Take one reading of the engine's metrics; None or an absent field takes the series out of the
        scrape. What has grown belongs to the phase that holds now.
        """
        self._source("engine_metrics", stats is not None)
        found = stats or {}
        asleep = found.get("asleep")
        self._optional("engine_asleep", None if asleep is None else float(bool(asleep)))
        engine = self._engine
        engine.take(stats, "serving" if self._serving else "warmup")
        for name, series in {**engine.gauges, **engine.counters}.items():
            self._replace(name, series)
        for name, buckets in engine.histograms.items():
            self._mirror(name, buckets)
        for name, metric in ENGINE_SERIES.items():
            held: Mapping[Labels, object] = self._mirrored.get(metric) or self._values.get(metric) or {}
            self._source("engine_" + name, bool(held))

    def baseline(self, stats: Mapping[str, Any], at: float) -> None:
        """Take the reading that ends a warm-up: all that the engine counted so far is none of the traffic. `at`: epoch."""
        self.engine_stats(stats)
        self._optional("engine_baseline_timestamp_seconds", at)

    def adopt(self, stats: Mapping[str, Any]) -> None:
        """Take the first reading of an engine that served before this daemon began: nothing in it is counted for a phase."""
        self.engine_stats(stats)
        self._engine.disown()
        self.engine_stats(stats)

    def processes(self, usage: Mapping[str, Any] | None) -> None:
        """Take one reading of the engine's processes (`supervisor.usage`); None when they can't be seen from here."""
        self._source("engine_processes", usage is not None)
        for name, metric in PROCESS_SERIES.items():
            self._optional(metric, number((usage or {}).get(name)))

    def store_reached(self, reached: bool) -> None:
        """Note whether the store can be read."""
        self._source("store", reached)

    def disk(self, name: str, room: Mapping[str, Any] | None, wanted: bool = True) -> None:
        """Take `free` and `size` in bytes of one of DISKS; None when it doesn't answer, or isn't `wanted` and so missed."""
        if name == "store":
            self.store_reached(room is not None or not wanted)
        for field in ("free", "size"):
            value = number((room or {}).get(field))
            others = {labels: each for labels, each in self._values[f"disk_{field}_bytes"].items() if labels != (name,)}
            self._replace(f"disk_{field}_bytes", others if value is None else {**others, (name,): value})

    def count_suspension(self, cause: str) -> None:
        """Count a withdrawal of ready while the engine was there."""
        self._add("suspensions_total", 1, cause)

    def count_quarantine(self) -> None:
        """Count a generation that this pod condemned."""
        self._add("quarantines_total", 1)

    def kv_cache(self, tokens: int | None, shortfall: float | None) -> None:
        """Note how much the engine's KV cache holds, and by which share that is less than in an earlier boot."""
        self._optional("engine_kv_cache_tokens", number(tokens))
        self._optional("engine_kv_cache_shortfall_ratio", number(shortfall))

    def no_progress(self, seconds: float) -> None:
        """Note for how long an engine that is not ready yet has shown no progress."""
        self._set("no_progress_seconds", seconds)

    def count_restart(self, cause: str) -> None:
        """Count an engine process that ended or was replaced, by one of RESTART_CAUSES."""
        self._add("engine_restarts_total", 1, cause)

    def live_cache(self, families: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Take `bytes` and `files` per family of the live cache; None when it can't be read."""
        self._source("live_cache", families is not None)
        known = self._domains["kernels_compiled_total"]["family"] or ()
        for name in ("bytes", "files"):
            sums: dict[Labels, float] = {}
            for family, sizes in (families or {}).items():
                labels = (family if family in known else OTHER,)
                sums[labels] = sums.get(labels, 0.0) + (number(sizes.get(name)) or 0.0)
            self._replace(f"live_cache_{name}", sums)

    def unmanaged(self, grown: Iterable[Mapping[str, Any]]) -> None:
        """Take `path` and `bytes` of each directory in no family that grew (`caches.unmanaged`); ten at most."""
        self._replace(
            "unmanaged_cache_bytes",
            {(str(one.get("path")),): number(one.get("bytes")) or 0.0 for one in list(grown)[:UNMANAGED_SHOWN]},
        )

    def count_gpu_trouble(self, kind: str) -> None:
        """Count a reading of the GPUs that failed, by one of GPU_TROUBLES."""
        self._add("gpu_reading_troubles_total", 1, kind)

    def gpu(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take what `GpuSnapshot.to_json` gives; None when NVML is away, or `unavailable` in it with GPUs that are known lost.

        Fields that are None are left out.
        """
        found = mapping(snapshot)
        up = snapshot is not None and "unavailable" not in found
        self._source("gpu", up and bool(found.get("gpus")))
        self._set("gpu_up", float(up))
        for name, series in gpu_series(snapshot).items():
            self._replace(name, series)

    def count_kubernetes_call(self, call: str, outcome: str) -> None:
        """Count a call to the API server, by its name and how it ended (`kube/api.py`)."""
        self._add("kubernetes_calls_total", 1, call, outcome)

    def kubernetes_right(self, feature: str, missing: bool) -> None:
        """Note whether a feature lacks a right at the API server."""
        self._set("kubernetes_right_missing", float(missing), feature)

    def readiness_gate(self, status: str, in_step: bool) -> None:
        """Note the status that the pod condition should have, `True` or `False`, and whether it was written."""
        self._optional("readiness_gate_condition", float(status == "True"))
        self._optional("readiness_gate_in_step", float(in_step))

    def _source(self, name: str, present: bool) -> None:
        self._set("source_missing", float(not present), name)
