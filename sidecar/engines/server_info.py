"""What vLLM's /server_info tells in development mode, field by field.

Merging with other sources is done in `server_facts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sidecar.engines.protocol import Hints
from sidecar.engines.values import Gathered, connectors, mapping, text, whole

SOURCE = "/server_info"
_VOCAB = re.compile(r'"vocab_size":\s*(\d+)')


def from_server_info(found: Gathered, info: Mapping[str, Any], roles: Mapping[str, str]) -> None:
    """Read /server_info?config_format=json (development mode, vLLM >= 0.11; before that it is one string)."""
    config = mapping(info.get("vllm_config"))
    if not config:
        return
    parts = {name: mapping(config.get(name)) for name in config}
    model, cache = parts.get("model_config", {}), parts.get("cache_config", {})
    scheduler, parallel = parts.get("scheduler_config", {}), parts.get("parallel_config", {})
    offers = {
        "max_model_len": whole(model.get("max_model_len")),
        "max_num_seqs": whole(scheduler.get("max_num_seqs")),
        "max_num_batched_tokens": whole(scheduler.get("max_num_batched_tokens")),
        "kv_cache_dtype": text(cache.get("cache_dtype")),
        "block_size": whole(cache.get("block_size")),
        "kv_blocks": whole(cache.get("num_gpu_blocks")),
        "tensor_parallel": whole(parallel.get("tensor_parallel_size")),
        "pipeline_parallel": whole(parallel.get("pipeline_parallel_size")),
        "dp_ranks": _ranks(parallel),
        "speculative_tokens": whole(parts.get("speculative_config", {}).get("num_speculative_tokens")),
        "cudagraph_sizes": _sizes(parts.get("compilation_config", {}).get("cudagraph_capture_sizes")),
        "attention_backend": backend(parts.get("attention_config", {}).get("backend")),
        "tasks": ("embed", "score") if model.get("runner_type") == "pooling" else None,
        "kv_connectors": connectors(config.get("kv_transfer_config")),
        "role": roles.get(str(parts.get("kv_transfer_config", {}).get("kv_role"))),
        "skipped_warmups": _skipped(parts.get("kernel_config", {}), mapping(info.get("vllm_env"))) or None,
        "batch_invariant": mapping(info.get("vllm_env")).get("VLLM_BATCH_INVARIANT") in (True, 1, "1") or None,
    }
    for name, value in offers.items():
        found.offer(name, value, SOURCE)
    if "kv_transfer_config" in config and config["kv_transfer_config"] is None:
        found.offer("role", "both", SOURCE)
    quantized = "none" if "quantization" in model and model["quantization"] is None else None
    found.offer("quantization", text(model.get("quantization")) or quantized, SOURCE)
    for name in ("hf_text_config", "hf_config"):
        found.offer("vocab_size", vocabulary(model.get(name)), SOURCE)
    found.offer("images", '"vision_config"' in str(model.get("hf_config")) or None, SOURCE)


def flag_sources(hints: Hints) -> bool:
    """Say whether the engine's command line is known."""
    return any("argv" in hint.source for hint in hints.values())


def backend(value: object) -> str | None:
    """Give the name of an attention backend, which may be written as the path of its class."""
    name = text(value)
    return name.rpartition(".")[2].removesuffix("Backend") if name is not None else None


def _ranks(parallel: Mapping[str, Any]) -> int | None:
    """Give the ranks that this port routes to: with an external balancer each port has one."""
    if parallel.get("data_parallel_external_lb"):
        return 1
    if parallel.get("data_parallel_hybrid_lb"):
        return whole(parallel.get("data_parallel_size_local"))
    return whole(parallel.get("data_parallel_size"))


def _sizes(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(sorted({size for each in value if (size := whole(each)) is not None})) or None


def _skipped(kernels: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Name what of the engine's own warm-up is off (vllm/config/kernel.py and envs.py, 0.32)."""
    found = []
    if environment.get("VLLM_DEEP_GEMM_WARMUP") == "skip":
        found.append("DeepGEMM")
    if kernels.get("enable_flashinfer_autotune") is False:
        found.append("FlashInfer autotuning")
    if kernels.get("enable_jit_warmup") is False:
        found.append("JIT kernels")
    return tuple(found)


def vocabulary(config: object) -> int | None:
    """Find the vocabulary's size in a Hugging Face configuration: an object, or text as in /server_info."""
    if isinstance(config, str):
        match = _VOCAB.search(config)
        return int(match[1]) if match else None
    return whole(mapping(config).get("vocab_size"))
