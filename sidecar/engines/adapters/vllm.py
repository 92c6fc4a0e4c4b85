"""vLLM's declaration: the engine that everything was measured on.

Its client is `engines/vllm.py`, its flags are in `engines/argv.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.config.routers import ENGINE_COMMANDS
from sidecar.engines.argv import FLAGS, ranks_here, vllm_hints
from sidecar.engines.config_file import flags_in
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.protocol import EngineFacts, Hint
from sidecar.engines.vllm import VllmEngine

#: With these a request without transfer parameters is worked on where it arrives and leaves nothing pinned: their
#: schedulers return at once when `kv_transfer_params` is missing (vllm/distributed/kv_transfer/kv_connector/v1/nixl
#: and mooncake, 0.32), or keep KV caches without a peer. Others read a peer's address out of every request, and end
#: the engine without one, so nothing is sent where one of those is at work.
LOCAL_WITHOUT_PARAMETERS = (
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "MooncakeConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
)


def _config(content: Mapping[str, Any]) -> dict[str, Hint]:
    found = flags_in(content, FLAGS)
    return found | ranks_here(found)


def _unwarmed(facts: EngineFacts) -> str:
    if facts.role in (None, "both"):
        return ""
    known = facts.kv_connectors and all(name in LOCAL_WITHOUT_PARAMETERS for name in facts.kv_connectors)
    through = f" through {' and '.join(facts.kv_connectors)}" if facts.kv_connectors else ""
    return "" if known else f"The engine's role is {facts.role}{through}"


ENGINE = Declaration(
    name="vllm",
    title="vLLM",
    versions="0.6 to 0.33",
    make=VllmEngine.connected,
    owners=("vllm",),
    command=ENGINE_COMMANDS["vllm"],
    endpoints=(
        Endpoint("/health", "whether it is alive, every second"),
        Endpoint("/metrics", "load, tokens, latencies and sleep, every 5 s"),
        Endpoint("/v1/models", "models and adapters", key=True),
        Endpoint("/version", "its version"),
        Endpoint("/server_info", "limits, in development mode"),
        Endpoint("/is_sleeping", "whether all of it is awake, in development mode"),
        Endpoint("/tokenize", "whether there is a chat template", key=True),
        Endpoint("/v1/completions", "warm-up", key=True),
        Endpoint("/v1/chat/completions", "warm-up", key=True),
    ),
    #: vLLM 0.6 to 0.33: documentation "Production metrics", vllm/engine/metrics.py and vllm/v1/metrics/loggers.py.
    #: `gpu_cache_usage_perc` until 0.11, `kv_cache_usage_perc` since 0.9.2, and so for prefix caching;
    #: `time_per_output_token_seconds` was the time between tokens until 0.10.1, and what
    #: `inter_token_latency_seconds` shows since.
    metrics=MetricNames(
        prefixes=("vllm:",),
        numbers={
            "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "running": ("vllm:num_requests_running",),
            "waiting": ("vllm:num_requests_waiting",),
            "prompt_tokens_total": ("vllm:prompt_tokens_total",),
            "generation_tokens_total": ("vllm:generation_tokens_total",),
            "preemptions_total": ("vllm:num_preemptions_total",),
            "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        },
        histograms={
            "time_to_first_token": ("vllm:time_to_first_token_seconds",),
            "inter_token_latency": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        },
        progress=(
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:iteration_tokens_total_count",
        ),
        prompt_lengths="vllm:request_prompt_tokens",
        output_lengths="vllm:request_generation_tokens",
        absent="start the engine without --disable-log-stats",
    ),
    listens=Listens(8000, tls="--ssl-certfile"),
    hints=vllm_hints,
    config=_config,
    families=("vllm_compile", "vllm_modelinfos", "vllm_p2p", "vllm_assets", "vllm_startup_plan"),
    claims={
        "recognised": Claim("real"),
        "loading, dead": Claim("real"),
        "key": Claim("real"),
        "facts": Claim("real"),
        "token ids": Claim("real"),
        "steps": Claim("real"),
        "sampling": Claim("real"),
        "structured": Claim("real"),
        "logprobs": Claim("real"),
        "metrics": Claim("real", "V0 engines (0.6 to 0.8) show no prefix-cache hits, only their rate"),
        "stalls": Claim("scripted"),
        "asleep": Claim("scripted"),
        "prefill role": Claim("scripted", "with NIXL, Mooncake or LMCache; else health only, flagged as unwarmed"),
        "decode role": Claim("scripted", "with NIXL, Mooncake or LMCache; else health only, flagged as unwarmed"),
        "caches": Claim("real"),
    },
    unwarmed=_unwarmed,
)
