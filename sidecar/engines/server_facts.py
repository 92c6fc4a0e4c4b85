"""Put together what is known of an engine, from its answers, from hints and from documented defaults.

Each fact keeps its source. No requests are sent here; the only files read are a local model's config.json and those
of local adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar import files
from sidecar.engines import exposition
from sidecar.engines.protocol import EngineFacts, Hint, Hints
from sidecar.engines.server_info import flag_sources, from_server_info, vocabulary
from sidecar.engines.values import Gathered, connectors, mapping, text, whole
from sidecar.engines.weights import scheme_of_config, scheme_of_name
from sidecar.errors import FileUnreadable

#: Token ids below this exist in every vocabulary but those of byte-level models, so prompts made of them are
#: accepted; they are enough for any number of unique prompts.
DEFAULT_VOCAB_SIZE = 1000
#: vLLM's defaults of max_num_batched_tokens and max_num_seqs by GPU memory in GiB, OpenAI server
#: (vllm/engine/arg_utils.py of 0.33.0). Where the memory is unknown, the smallest is assumed.
DEFAULT_LIMITS = ((160.0, 16384, 1024), (70.0, 8192, 1024), (0.0, 2048, 256))
#: Source of limits that are only what no engine is below: whoever knows the GPU may know better.
SMALLEST = "default, smallest of vLLM's"
#: vllm/config/kv_transfer.py, 0.32. With NIXL both sides are `kv_both`: then plain requests work on either.
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}
CONFIG_LIMIT = 4 * 1024 * 1024
MODELOPT_FILE = "hf_quant_config.json"
#: Hints that are facts under their own name, and the type that they must have.
HINTED: Mapping[str, type] = {
    "root": str,
    "max_model_len": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "kv_cache_dtype": str,
    "quantization": str,
    "block_size": int,
    "kv_tokens": int,
    "vocab_size": int,
    "tensor_parallel": int,
    "pipeline_parallel": int,
    "speculative_tokens": int,
    "attention_backend": str,
    "cudagraph_sizes": tuple,
    "skipped_warmups": tuple,
    "step_timeout_s": int,
    "kv_release_s": int,
    "batch_invariant": bool,
}


@dataclass(frozen=True)
class Answers:
    """What the engine has answered. Mappings are empty where it answered nothing, other fields None."""

    card: Mapping[str, Any]
    metrics: exposition.Exposition
    adapters: tuple[str, ...] = ()
    adapter_ranks: Mapping[str, int] = field(default_factory=dict)
    version: Mapping[str, Any] = field(default_factory=dict)
    server_info: Mapping[str, Any] = field(default_factory=dict)
    model_config: Mapping[str, Any] = field(default_factory=dict)
    chat: bool | None = None
    images: bool | None = None
    sounds: bool | None = None
    tasks: tuple[str, ...] | None = None


def gather(answers: Answers, hints: Hints) -> EngineFacts:
    """Merge everything into EngineFacts; what the engine says counts over hints, hints over defaults."""
    found = Gathered()
    card = answers.card
    found.offer("version", text(answers.version.get("version")), "/version")
    found.offer("model", text(card.get("id")), "/v1/models")
    found.offer("root", text(card.get("root")), "/v1/models")
    found.offer("max_model_len", whole(card.get("max_model_len")), "/v1/models")
    found.offer("adapters", answers.adapters or None, "/v1/models")
    found.offer("adapter_ranks", answers.adapter_ranks or None, "adapter_config.json of each adapter")
    found.offer("chat", answers.chat, "/tokenize")
    found.offer("images", answers.images, "/tokenize")
    found.offer("sounds", answers.sounds, "/tokenize")
    found.offer("tasks", answers.tasks, "the engine's endpoints")
    _from_metrics(found, answers.metrics)
    from_server_info(found, answers.server_info, ROLES)
    return completed("vllm", found, hints, answers.model_config)


def completed(engine: str, found: Gathered, hints: Hints, config: Mapping[str, Any]) -> EngineFacts:
    """Complete what an engine says of itself: by hints, then by its model's `config`, then by defaults."""
    for name, wanted in HINTED.items():
        found.offer_hint(name, hints.get(name), wanted)
    _from_flags(found, hints)
    _from_model_config(found, config)
    _defaults(found, hints)
    # What nobody has asked for is known by its command line alone.
    for name in ("model", "root"):
        found.offer_hint("model", hints.get(name), str)
    return EngineFacts(engine=engine, **{"version": None, "model": "", **found.values}, sources=found.sources)


def facts_of_hints(hints: Hints) -> EngineFacts:
    """Give what is known of an engine that isn't asked: hints and defaults."""
    told = hints.get("engine")
    return completed(str(told.value) if told is not None else "vllm", Gathered(), hints, {})


def _from_metrics(found: Gathered, page: exposition.Exposition) -> None:
    """Read the labels of vllm:cache_config_info: all fields of CacheConfig as text (vllm/config/cache.py)."""
    labels = page.labels(exposition.CACHE_CONFIG)
    source = "/metrics " + exposition.CACHE_CONFIG
    found.offer("kv_cache_dtype", text(labels.get("cache_dtype")), source)
    found.offer("block_size", whole(labels.get("block_size")), source)
    # Each data-parallel engine has its own; the smallest is full first.
    found.offer("kv_blocks", whole(page.smallest(exposition.CACHE_CONFIG, "num_gpu_blocks")), source)
    found.offer("kv_tokens", whole(labels.get("kv_cache_size_tokens")), source)
    scales = labels.get("calculate_kv_scales")
    found.offer("calculate_kv_scales", scales == "True" if scales in ("True", "False") else None, source)
    found.offer("dp_ranks", exposition.ranks(page), "/metrics label engine")
    drafted = page.distinct(exposition.DRAFTED, "position")
    found.offer("speculative_tokens", drafted, "/metrics " + exposition.DRAFTED)
    found.offer("asleep", exposition.asleep(page), "/metrics " + exposition.SLEEP)


def _from_flags(found: Gathered, hints: Hints) -> None:
    """Read facts out of flags that are named or made otherwise, and out of flags that are absent."""
    role = hints.get("role")
    transfer = hints.get("kv_transfer")
    if role is not None:
        found.offer("role", text(role.value), role.source)
    if (moved := hints.get("kv_connectors")) is not None:
        found.offer("kv_connectors", moved.value, moved.source)
    if transfer is not None:
        found.offer("role", ROLES.get(str(mapping(transfer.value).get("kv_role"))), transfer.source)
        found.offer("kv_connectors", connectors(transfer.value), transfer.source)
    elif flag_sources(hints):
        found.offer("role", "both", "argv of the engine, without --kv-transfer-config")
    speculative = hints.get("speculative")
    if speculative is not None:
        drafted = whole(mapping(speculative.value).get("num_speculative_tokens"))
        found.offer("speculative_tokens", drafted, speculative.source)
    scales = hints.get("calculate_kv_scales")
    if scales is not None and isinstance(scales.value, bool):
        found.offer("calculate_kv_scales", scales.value, scales.source)
    ranks = hints.get("dp_ranks_here")
    if ranks is not None:
        found.offer("dp_ranks", whole(ranks.value), ranks.source)
    tasks = _tasks(hints)
    if tasks is not None:
        found.offer("tasks", tasks.value, tasks.source)


def _tasks(hints: Hints) -> Hint | None:
    """Read --task of older versions, or --runner and --convert (vllm/config/model.py, 0.6 to 0.33)."""
    task, runner, convert = (hints.get(name) for name in ("task", "runner", "convert"))
    names = {
        "generate": ("generate",),
        "embed": ("embed", "score"),
        "embedding": ("embed", "score"),
        "score": ("score",),
        "classify": ("score", "classify"),
        "transcription": ("transcription",),
    }
    if task is not None and task.value in names:
        return Hint(names[task.value], task.source)
    if convert is not None and convert.value in ("embed", "classify"):
        return Hint(names[convert.value], convert.source)
    if runner is not None and runner.value in ("generate", "pooling"):
        return Hint(("generate",) if runner.value == "generate" else ("embed", "score"), runner.source)
    return None


def reads_text_alone(config: Mapping[str, Any]) -> bool:
    """Say whether a model's config.json leaves no doubt that it takes text and nothing else; False when it tells nothing.

    Models that see or hear have a key about it, whatever its name: `vision_config`, `audio_config`, `img_processor`,
    `visual`, `mm_tokens`, `speech_config`, `embd_layer` (of Phi).
    """
    names = config.get("architectures")
    causal = isinstance(names, list) and bool(names) and all(str(name).endswith("ForCausalLM") for name in names)
    senses = ("vision", "visual", "vit", "image", "img", "video", "audio", "speech", "mm_", "multimodal", "embd_layer")
    return causal and not any(word in str(key).lower() for key in config for word in senses)


def _from_model_config(found: Gathered, config: Mapping[str, Any]) -> None:
    source = "config.json of the model"
    found.offer("vocab_size", vocabulary(config.get("text_config")) or vocabulary(config), source)
    quantization = mapping(config.get("quantization_config"))
    by = f"{quantization['from']} of the model" if "from" in quantization else source
    found.offer("quantization", text(quantization.get("quant_method")), by)
    if config:
        found.offer("images", any(name in config for name in ("vision_config", "vision_tower")) or None, source)
        if "quantization" not in found.values:
            found.offer("quantization", "none", source)
    name = found.values.get("quantization")
    if name is not None:
        exact = scheme_of_config(quantization)
        found.offer("weights", exact, by)
        found.offer("weights", scheme_of_name(name), found.sources["quantization"])


def _defaults(found: Gathered, hints: Hints) -> None:
    memory = hints.get("gpu_memory_gib", Hint(0.0, ""))
    known = isinstance(memory.value, int | float) and memory.value > 0
    gib = float(memory.value) if known else 0.0
    _, batched, sequences = next(row for row in DEFAULT_LIMITS if gib >= row[0])
    source = f"default of vLLM for {gib:.0f} GiB of GPU memory" if known else SMALLEST
    found.offer("max_num_batched_tokens", batched, source)
    found.offer("max_num_seqs", sequences, source)
    found.offer("vocab_size", DEFAULT_VOCAB_SIZE, "default, safe for any model")
    found.offer("tasks", ("generate",), "default, since the engine doesn't tell")


def read_local(
    root: str | None, adapters: Iterable[Mapping[str, Any]]
) -> tuple[Mapping[str, Any] | None, dict[str, int]]:
    """Read what lies on a disk that we share with the engine: the model's config, adapters' ranks. Blocks."""
    ranks = {}
    for card in adapters:
        rank = whole((_json(card.get("root"), "adapter_config.json") or {}).get("r"))
        if rank is not None:
            ranks[str(card["id"])] = rank
    return with_modelopt(_json(root, "config.json"), _json(root, MODELOPT_FILE)), ranks


def with_modelopt(config: Mapping[str, Any] | None, exported: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add what ModelOpt writes beside a checkpoint to a model's configuration that is silent about quantisation.

    Source: NVIDIA Model Optimizer, unified Hugging Face checkpoints: `quantization` holds `quant_algo` (NVFP4, FP8,
    MIXED_PRECISION …), `kv_cache_quant_algo` and `group_size`.
    """
    told = mapping(mapping(exported).get("quantization"))
    if not told or mapping(config).get("quantization_config"):
        return config
    named = "modelopt_fp4" if "NVFP4" in str(told.get("quant_algo")).upper() else "modelopt"
    return {**mapping(config), "quantization_config": {"quant_method": named, **told, "from": MODELOPT_FILE}}


def _json(folder: object, name: str) -> Mapping[str, Any] | None:
    """Read a JSON object of a directory, or give None where there is none to read."""
    if not isinstance(folder, str) or not folder.startswith("/"):
        return None
    try:
        return files.read_json(Path(folder) / name, CONFIG_LIMIT)
    except (OSError, ValueError, FileUnreadable):
        return None
