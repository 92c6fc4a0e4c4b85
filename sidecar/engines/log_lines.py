"""Learn from lines of an engine's log what neither its endpoints nor its command line tell.

The launcher relays such lines; only vLLM's wordings are known here. A line of arguments may hold secrets: from it only
numbers and names of known arguments are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.engines.protocol import Hint

SOURCE = "the engine's log"


def _number(value: str) -> int | None:
    digits = value.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and int(digits) > 0 else None


def _name(value: str) -> str | None:
    return value if value not in ("None", "auto") else None


def _quantization(value: str) -> str:
    return "none" if value == "None" else value


def _numbers(value: str) -> tuple[int, ...] | None:
    found = {int(each) for each in re.findall(r"\d+", value)}
    return tuple(sorted(found)) or None


@dataclass(frozen=True, slots=True)
class Wording:
    """What a line of a kind tells: a pattern with one group for each fact, and how the group is read."""

    fact: str
    pattern: re.Pattern[str]
    read: Callable[[str], Any] = _number


#: vllm/config/scheduler.py (0.8 to 0.33): the value that counts after all defaults, whatever the flags say.
#: vllm/platforms/cuda.py, vllm/v1/core/kv_cache_utils.py (0.33).
ANYWHERE = (
    Wording("max_num_batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")),
    Wording("attention_backend", re.compile(r"Using (\w+) attention backend"), _name),
    Wording("kv_tokens", re.compile(r"[GC]PU KV cache size: ([\d,]+) tokens")),
)
#: `Initializing a V1 LLM engine (v…) with config: …` (vllm/v1/engine/core.py and config/vllm.py, 0.32).
OF_CONFIG = (
    Wording("tensor_parallel", re.compile(r"\btensor_parallel_size=(\d+)")),
    Wording("pipeline_parallel", re.compile(r"\bpipeline_parallel_size=(\d+)")),
    Wording("max_model_len", re.compile(r"\bmax_seq_len=(\d+)")),
    Wording("quantization", re.compile(r"\bquantization=([\w-]+)"), _quantization),
    Wording("kv_cache_dtype", re.compile(r"\bkv_cache_dtype=(\w+)"), lambda value: value),
    Wording("speculative_tokens", re.compile(r"\bnum_spec(?:ulative)?_tokens=(\d+)")),
    Wording("cudagraph_sizes", re.compile(r"cudagraph_capture_sizes['\"]?\s*[:=]\s*\[([\d,\s]*)\]"), _numbers),
)
#: `non-default args: {…}` (vllm/entrypoints, 0.6 to 0.33).
OF_ARGUMENTS = (
    Wording("max_num_seqs", re.compile(r"'max_num_seqs': (\d+)")),
    Wording("max_model_len", re.compile(r"'max_model_len': (\d+)")),
    Wording("block_size", re.compile(r"'block_size': (\d+)")),
    Wording("tensor_parallel", re.compile(r"'tensor_parallel_size': (\d+)")),
    Wording("pipeline_parallel", re.compile(r"'pipeline_parallel_size': (\d+)")),
    Wording("quantization", re.compile(r"'quantization': '([\w-]+)'"), _name),
    Wording("kv_cache_dtype", re.compile(r"'kv_cache_dtype': '(\w+)'"), _name),
    Wording("attention_backend", re.compile(r"'attention_backend': '(\w+)'"), _name),
)
BY_MARK: Mapping[str, tuple[Wording, ...]] = {
    "with config: ": OF_CONFIG,
    "non-default args": OF_ARGUMENTS,
}


def hints_from_line(text: str) -> dict[str, Hint]:
    """Give the facts of EngineFacts that one line tells; empty for most lines."""
    found: dict[str, Hint] = {}
    for wording in (*ANYWHERE, *(each for mark, known in BY_MARK.items() if mark in text for each in known)):
        match = wording.pattern.search(text)
        value = wording.read(match[1]) if match else None
        if value is not None:
            found[wording.fact] = Hint(value, SOURCE)
    return found


def without_scales(text: str) -> bool:
    """Say whether this line tells that an FP8 KV cache has no scales of its own (vLLM, quantization/kv_cache.py, 0.32)."""
    return "KV cache scaling factor 1.0" in text
