"""The numbers that we show of every engine under one name, and how several series become one number.

What each engine calls them is declared in its file in `adapters/`; under which names they leave us in
`metrics/engine_table.py`. No text is read here; that is `exposition.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: How several series of one name become one number. sum: engines and processes add up. load: so do engines, but the
#: processes of one engine (label `pid`) show the same load. max: the fullest counts, since it preempts first.
Merge = Literal["sum", "load", "max"]

#: Series of ranks that do the same work as rank 0; they would count everything again. SGLang 0.5,
#: srt/metrics/collector.py, with metrics for all schedulers.
SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank")

#: Numbers of EngineStats and how they are merged.
NUMBERS: Mapping[str, Merge] = {
    "kv_cache_usage": "max",
    "running": "load",
    "waiting": "load",
    "prompt_tokens_total": "sum",
    "generation_tokens_total": "sum",
    "preemptions_total": "sum",
    "prefix_cache_hits_total": "sum",
    "prefix_cache_queries_total": "sum",
}
#: Histograms of EngineStats, in seconds.
HISTOGRAMS = ("time_to_first_token", "inter_token_latency")

#: Sleep states of vLLM 0.11.2 and newer: one series per state and engine, 1 for the state that holds.
SLEEP = "vllm:engine_sleep_state"

#: Series of servers that stand in front of engines, by the beginning of their names: Dynamo (docs, "Metrics"), SGLang's
#: router and model gateway (sgl-router documentation, "Metrics"), LiteLLM (proxy documentation, "Prometheus metrics").
FRONTS: Mapping[str, str] = {
    "dynamo_frontend_": "Dynamo's frontend",
    "sgl_router_": "SGLang's router",
    "smg_": "SGLang's model gateway",
    "litellm_": "LiteLLM",
}
#: vLLM's production-stack router repeats vLLM's names for the engines behind it, and adds some of its own
#: (production-stack, src/vllm_router/services/metrics_service).
ROUTER_MARK = "vllm:current_qps"


@dataclass(frozen=True, slots=True)
class Names:
    """What all engines together call things: numbers and histograms by field, and everything that is read of a page."""

    numbers: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]
    wanted: frozenset[str]
    prefixes: Mapping[str, tuple[str, ...]]
    progress: Mapping[str, tuple[str, ...]]
    lengths: Mapping[str, tuple[str, ...]]
    absent: Mapping[str, str]


@functools.cache
def names() -> Names:
    """Gather the names of all engines; no page has those of two, so their order makes no difference."""
    # Adapters import what reads pages, which imports this.
    from sidecar.engines.adapters import engines

    told = {name: engine.metrics for name, engine in engines().items()}
    return Names(
        {each: tuple(name for one in told.values() for name in one.numbers.get(each, ())) for each in NUMBERS},
        {each: tuple(name for one in told.values() for name in one.histograms.get(each, ())) for each in HISTOGRAMS},
        frozenset(name for one in told.values() for name in one.wanted),
        {name: one.prefixes for name, one in told.items()},
        {name: one.progress for name, one in told.items()},
        {
            each: tuple(name for one in told.values() if (name := getattr(one, each)))
            for each in ("prompt_lengths", "output_lengths")
        },
        {name: one.absent for name, one in told.items()},
    )
