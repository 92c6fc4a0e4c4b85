"""What engines call the numbers that we show under one name: by engine and version, each with its source.

No text is read here; that is `exposition.py`. Under which names the numbers leave us is declared in
`metrics/engine_table.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How several series of one name become one number. sum: engines and processes add up. load: so do engines, but the
#: processes of one engine (label `pid`) show the same load. max: the fullest counts, since it preempts first.
Merge = Literal["sum", "load", "max"]

#: Series of ranks that do the same work as rank 0; they would count everything again. SGLang 0.5,
#: srt/metrics/collector.py, with metrics for all schedulers.
SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank")


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of EngineStats: the names it had, newest first for each engine, and how several series are merged."""

    field: str
    merge: Merge
    vllm: tuple[str, ...]
    sglang: tuple[str, ...] = ()
    trtllm: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Give all names, in the order in which they count; no page has those of two engines."""
        return (*self.vllm, *self.sglang, *self.trtllm)


#: vLLM 0.6 to 0.33: documentation "Production metrics", vllm/engine/metrics.py and vllm/v1/metrics/loggers.py.
#: `gpu_cache_usage_perc` until 0.11, `kv_cache_usage_perc` since 0.9.2, and so for prefix caching.
#: SGLang 0.4 to 0.5: documentation "Production Metrics", srt/metrics/collector.py; what it looks up in its prefix
#: cache are the prompt tokens. TensorRT-LLM: tensorrt_llm/metrics/collector.py, on /prometheus/metrics.
READINGS = (
    Reading(
        "kv_cache_usage",
        "max",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("sglang:token_usage",),
        ("trtllm_kv_cache_utilization",),
    ),
    Reading(
        "running",
        "load",
        ("vllm:num_requests_running",),
        ("sglang:num_running_reqs",),
        ("trtllm_num_requests_running",),
    ),
    Reading(
        "waiting",
        "load",
        ("vllm:num_requests_waiting",),
        ("sglang:num_queue_reqs",),
        ("trtllm_num_requests_waiting",),
    ),
    Reading(
        "prompt_tokens_total",
        "sum",
        ("vllm:prompt_tokens_total",),
        ("sglang:prompt_tokens_total",),
        ("trtllm_prompt_tokens_total",),
    ),
    Reading(
        "generation_tokens_total",
        "sum",
        ("vllm:generation_tokens_total",),
        ("sglang:generation_tokens_total",),
        ("trtllm_generation_tokens_total",),
    ),
    Reading("preemptions_total", "sum", ("vllm:num_preemptions_total",), ("sglang:num_retracted_requests_total",)),
    Reading(
        "prefix_cache_hits_total",
        "sum",
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        ("sglang:cached_tokens_total",),
    ),
    Reading(
        "prefix_cache_queries_total",
        "sum",
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        ("sglang:prompt_tokens_total",),
    ),
)


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """One histogram of EngineStats in seconds: the names it had, without `_bucket`, newest first for each engine."""

    field: str
    names: tuple[str, ...]


#: The same sources. vLLM: `time_per_output_token_seconds` was the time between tokens until 0.10.1, and what
#: `inter_token_latency_seconds` shows since. TensorRT-LLM 1.1 has its names without the prefix.
HISTOGRAMS = (
    HistogramReading(
        "time_to_first_token",
        (
            "vllm:time_to_first_token_seconds",
            "sglang:time_to_first_token_seconds",
            "trtllm_time_to_first_token_seconds",
            "time_to_first_token_seconds",
        ),
    ),
    HistogramReading(
        "inter_token_latency",
        (
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
            "sglang:inter_token_latency_seconds",
            "sglang:time_per_output_token_seconds",
            "trtllm_time_per_output_token_seconds",
            "time_per_output_token_seconds",
        ),
    ),
)

#: Sleep states of vLLM 0.11.2 and newer: one series per state and engine, 1 for the state that holds.
SLEEP = "vllm:engine_sleep_state"
