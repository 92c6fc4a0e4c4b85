"""Put together what is known of an engine, from its answers, from hints and from documented defaults.

Each fact keeps its source. No requests are sent here; the only file read is a local model's config.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.engines.protocol import EngineFacts, Hint, Hints

#: Token ids below this exist in every vocabulary but those of byte-level models, so prompts made of them are
#: accepted; they are enough for any number of unique prompts.
DEFAULT_VOCAB_SIZE = 1000
#: vLLM's defaults of max_num_batched_tokens and max_num_seqs by GPU memory in GiB, OpenAI server
#: (vllm/engine/arg_utils.py of 0.33.0). Where the memory is unknown, the smallest is assumed.
DEFAULT_LIMITS = ((160.0, 16384, 1024), (70.0, 8192, 1024), (0.0, 2048, 256))
_VOCAB = re.compile(r'"vocab_size":\s*(\d+)')
_CONFIG_LIMIT = 4 * 1024 * 1024


@dataclass(slots=True)
class Gathered:
    """Facts by field name; the first source that knows a fact wins."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def offer(self, name: str, value: Any, source: str) -> None:
        """Take a fact unless it is None or already known."""
        if value is not None and name not in self.values:
            self.values[name], self.sources[name] = value, source

    def offer_hints(self, hints: Hints, names: tuple[str, ...]) -> None:
        """Take those hints of `names` that have the type of the fact."""
        for name in names:
            hint = hints.get(name)
            wanted = str if name in ("kv_cache_dtype", "quantization", "root") else int
            if hint is not None and isinstance(hint.value, wanted) and not isinstance(hint.value, bool):
                self.offer(name, hint.value, hint.source)


def gather(
    card: Mapping[str, Any],
    adapters: tuple[str, ...],
    version: str | None,
    cache_config: Mapping[str, str],
    server_info: Mapping[str, Any] | None,
    model_config: Mapping[str, Any] | None,
    chat: bool | None,
    hints: Hints,
) -> EngineFacts:
    """Merge everything into EngineFacts; what the engine says counts over hints, hints over defaults."""
    found = Gathered()
    found.offer("version", version, "/version")
    found.offer("model", card["id"], "/v1/models")
    found.offer("root", _text(card.get("root")), "/v1/models")
    found.offer("max_model_len", _whole(card.get("max_model_len")), "/v1/models")
    found.offer("adapters", adapters or None, "/v1/models")
    found.offer("chat", chat, "/tokenize")
    _from_cache_config(found, cache_config)
    _from_server_info(found, server_info or {})
    found.offer_hints(
        hints,
        (
            "root",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_dtype",
            "quantization",
            "block_size",
            "vocab_size",
        ),
    )
    _from_model_config(found, model_config or {})
    _defaults(found, hints)
    return EngineFacts(engine="vllm", **{"version": None, **found.values}, sources=found.sources)


def _from_cache_config(found: Gathered, labels: Mapping[str, str]) -> None:
    """Read the labels of vllm:cache_config_info: all fields of CacheConfig as text (vllm/config/cache.py)."""
    source = "/metrics vllm:cache_config_info"
    found.offer("kv_cache_dtype", _text(labels.get("cache_dtype")), source)
    found.offer("block_size", _whole(labels.get("block_size")), source)
    found.offer("kv_blocks", _whole(labels.get("num_gpu_blocks")), source)
    scales = labels.get("calculate_kv_scales")
    found.offer("calculate_kv_scales", scales == "True" if scales in ("True", "False") else None, source)


def _from_server_info(found: Gathered, info: Mapping[str, Any]) -> None:
    """Read /server_info?config_format=json (development mode, vLLM >= 0.11; before that it is one string)."""
    source = "/server_info"
    config = _mapping(info.get("vllm_config"))
    model, cache = _mapping(config.get("model_config")), _mapping(config.get("cache_config"))
    scheduler = _mapping(config.get("scheduler_config"))
    found.offer("max_model_len", _whole(model.get("max_model_len")), source)
    found.offer("quantization", _text(model.get("quantization")), source)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        found.offer(name, _whole(scheduler.get(name)), source)
    found.offer("kv_cache_dtype", _text(cache.get("cache_dtype")), source)
    found.offer("block_size", _whole(cache.get("block_size")), source)
    found.offer("kv_blocks", _whole(cache.get("num_gpu_blocks")), source)
    for name in ("hf_text_config", "hf_config"):
        found.offer("vocab_size", _vocabulary(model.get(name)), source)


def _from_model_config(found: Gathered, config: Mapping[str, Any]) -> None:
    source = "config.json of the model"
    found.offer("vocab_size", _vocabulary(config.get("text_config")) or _vocabulary(config), source)
    method = _mapping(config.get("quantization_config")).get("quant_method")
    found.offer("quantization", _text(method), source)


def _defaults(found: Gathered, hints: Hints) -> None:
    memory = hints.get("gpu_memory_gib", Hint(0.0, ""))
    known = isinstance(memory.value, int | float) and memory.value > 0
    gib = float(memory.value) if known else 0.0
    _, batched, sequences = next(row for row in DEFAULT_LIMITS if gib >= row[0])
    source = f"default of vLLM for {gib:.0f} GiB of GPU memory" if known else "default, smallest of vLLM's"
    found.offer("max_num_batched_tokens", batched, source)
    found.offer("max_num_seqs", sequences, source)
    found.offer("vocab_size", DEFAULT_VOCAB_SIZE, "default, safe for any model")


def read_model_config(root: str | None) -> Mapping[str, Any] | None:
    """Read config.json of a model directory, or give None where there is none to read. Blocks on the disk."""
    if not root or not root.startswith("/"):
        return None
    try:
        with (Path(root) / "config.json").open("rb") as file:
            content = json.loads(file.read(_CONFIG_LIMIT).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, Mapping) else None


def _vocabulary(config: object) -> int | None:
    """Find the vocabulary's size in a Hugging Face configuration: an object, or text as in /server_info."""
    if isinstance(config, str):
        match = _VOCAB.search(config)
        return int(match[1]) if match else None
    if not isinstance(config, Mapping):
        return None
    return _whole(config.get("vocab_size"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("", "None") else None


def _whole(value: object) -> int | None:
    """Read a positive whole number, also from a label's text; anything else is unknown."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if number > 0 else None
