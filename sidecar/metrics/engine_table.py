"""The engine's own numbers under names that stay, whatever the engine and its version call them.

Which names they have at the engine is declared in `engines/series.py`; no number lives here.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.metrics.declaration import Metric

#: Everything before ready is warm-up; what comes after is somebody's traffic.
ENGINE_PHASES = ("warmup", "serving")
#: Buckets of an engine's histogram that are kept; of more, every second one is left out until it fits.
BUCKETS_KEPT = 32

#: Fields of an engine's stats → metric. Each is left out of the scrape while the engine does not show it.
ENGINE_GAUGES: Mapping[str, str] = {
    "kv_cache_usage": "engine_kv_cache_usage_ratio",
    "running": "engine_requests_running",
    "waiting": "engine_requests_waiting",
}
ENGINE_COUNTERS: Mapping[str, str] = {
    "prompt_tokens_total": "engine_prompt_tokens_total",
    "generation_tokens_total": "engine_generation_tokens_total",
    "preemptions_total": "engine_preemptions_total",
    "prefix_cache_hits_total": "engine_prefix_cache_hits_total",
    "prefix_cache_queries_total": "engine_prefix_cache_queries_total",
}
ENGINE_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token": "engine_time_to_first_token_seconds",
    "inter_token_latency": "engine_inter_token_latency_seconds",
}
ENGINE_SERIES: Mapping[str, str] = {**ENGINE_GAUGES, **ENGINE_COUNTERS, **ENGINE_HISTOGRAMS}

_PHASE: Mapping[str, tuple[str, ...]] = {"phase": ENGINE_PHASES}
_SPLIT = 'phase="warmup" is what came before ready (the baseline), phase="serving" what came since.'
_NOW = 'The phase tells warm-up\'s load from traffic: autoscalers look at phase="serving" alone.'


def _gauge(name: str, help_: str, unit: str = "") -> Metric:
    return Metric(name, "gauge", f"{help_} {_NOW}", unit, _PHASE, optional=True)


def _counter(name: str, help_: str, unit: str = "") -> Metric:
    return Metric(name, "counter", f"{help_} {_SPLIT}", unit, _PHASE, optional=True)


def _histogram(name: str, help_: str) -> Metric:
    return Metric(name, "histogram", f"{help_} {_SPLIT}", "seconds", _PHASE, optional=True, buckets=BUCKETS_KEPT)


ENGINE_TABLE: tuple[Metric, ...] = (
    Metric("engine_asleep", "gauge", "1 while the engine sleeps.", optional=True),
    _gauge(
        "engine_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1; of several engines the fullest.", "ratio"
    ),
    _gauge("engine_requests_running", "Requests the engine works on."),
    _gauge("engine_requests_waiting", "Requests that wait in the engine."),
    _counter("engine_prompt_tokens_total", "Prompt tokens as the engine counts them.", "tokens"),
    _counter("engine_generation_tokens_total", "Generated tokens as the engine counts them.", "tokens"),
    _counter("engine_preemptions_total", "Requests preempted for want of KV cache."),
    _counter("engine_prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
    _counter("engine_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    _histogram("engine_time_to_first_token_seconds", "Time to first token, in the engine's own buckets."),
    _histogram("engine_inter_token_latency_seconds", "Time between two tokens, in the engine's own buckets."),
    Metric(
        "engine_baseline_timestamp_seconds",
        "gauge",
        "When the engine's numbers were last split into warm-up and traffic, since the epoch.",
        "seconds",
        optional=True,
    ),
)
