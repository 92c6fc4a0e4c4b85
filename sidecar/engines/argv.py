"""Learn from an engine's command line and environment what its endpoints don't tell.

vLLM's flags are here (vllm/engine/arg_utils.py and its command line documentation, 0.6 to 0.33); those of other engines
are in their files in `adapters/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal

from sidecar.engines.own_command import own_command
from sidecar.engines.protocol import Hint

#: -O0 to -O3, with nothing between.
_LEVEL = re.compile(r"-O([0-3])")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
#: vLLM's human_readable_int: lower case counts in thousands, upper case in powers of 1024.
_FACTORS = {"": 1} | {
    letter: base**power
    for power, pair in enumerate(("kK", "mM", "gG", "tT"), 1)
    for letter, base in zip(pair, (1000, 1024), strict=True)
}


def number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    return int(float(match[1]) * _FACTORS[match[2]]) if match else None


def port(text: str) -> int | str | None:
    """Read a port; what is no number, such as a variable that a shell puts in, stays a word: it is given and unknown."""
    return int(text) if text.isascii() and text.isdigit() else _text(text)


def _text(text: str) -> str | None:
    return text if text not in ("", "None", "none") else None


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, Mapping) else None


def _adapter(text: str) -> str | None:
    """Read one word of --lora-modules: `name=path`, or a JSON object with a name."""
    if text.startswith("{"):
        name = (_object(text) or {}).get("name")
        return name if isinstance(name, str) else None
    return text.partition("=")[0] or None


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: under which name it becomes a hint, how its words are read, and how many it takes.

    `first` and `many` take the following words up to the next flag; `switch` takes none and has a `--no-`
    form; `secret` takes one that is never kept.
    """

    hint: str
    read: Callable[[str], Any] = _text
    takes: Literal["one", "first", "many", "switch", "secret"] = "one"


#: All flags that become hints. Names that are fields of EngineFacts complete it; the others are for planners.
FLAGS: Mapping[str, Flag] = {
    "--model": Flag("root"),
    "--served-model-name": Flag("model", takes="first"),
    "--host": Flag("host"),
    "--port": Flag("port", port),
    "--uds": Flag("uds"),
    "--max-model-len": Flag("max_model_len", number),
    "--max-num-seqs": Flag("max_num_seqs", number),
    "--max-num-batched-tokens": Flag("max_num_batched_tokens", number),
    "--block-size": Flag("block_size", number),
    "--kv-cache-dtype": Flag("kv_cache_dtype"),
    "--quantization": Flag("quantization"),
    "-q": Flag("quantization"),
    "--calculate-kv-scales": Flag("calculate_kv_scales", takes="switch"),
    "--api-key": Flag("api_key", takes="secret"),
    "--ssl-keyfile": Flag("tls", lambda text: bool(text) or None),
    "--ssl-certfile": Flag("tls", lambda text: bool(text) or None),
    "--enable-lora": Flag("enable_lora", takes="switch"),
    "--max-loras": Flag("max_loras", number),
    "--max-lora-rank": Flag("max_lora_rank", number),
    "--lora-modules": Flag("adapters", _adapter, "many"),
    "--tensor-parallel-size": Flag("tensor_parallel", number),
    "-tp": Flag("tensor_parallel", number),
    "--pipeline-parallel-size": Flag("pipeline_parallel", number),
    "-pp": Flag("pipeline_parallel", number),
    "--data-parallel-size": Flag("data_parallel_size", number),
    "-dp": Flag("data_parallel_size", number),
    "--data-parallel-size-local": Flag("data_parallel_size_local", number),
    "-dpl": Flag("data_parallel_size_local", number),
    "--data-parallel-rank": Flag("data_parallel_rank"),
    "-dpn": Flag("data_parallel_rank"),
    "--data-parallel-external-lb": Flag("data_parallel_external_lb", takes="switch"),
    "--data-parallel-hybrid-lb": Flag("data_parallel_hybrid_lb", takes="switch"),
    "--attention-backend": Flag("attention_backend"),
    "--cudagraph-capture-sizes": Flag("cudagraph_sizes", number, "many"),
    "--enable-flashinfer-autotune": Flag("flashinfer_autotune", takes="switch"),
    "--disable-flashinfer-autotune": Flag("no_flashinfer_autotune", takes="switch"),
    "--kernel-config": Flag("kernels", _object),
    "--optimization-level": Flag("optimization_level"),
    "-O": Flag("optimization_level"),
    "--disaggregation-mode": Flag("role", lambda text: text if text in ("prefill", "decode") else None),
    "--convert": Flag("convert"),
    "--spec-tokens": Flag("speculative_tokens", number),
    "--enforce-eager": Flag("enforce_eager", takes="switch"),
    "--enable-sleep-mode": Flag("enable_sleep_mode", takes="switch"),
    "--enable-chunked-prefill": Flag("enable_chunked_prefill", takes="switch"),
    "--enable-prefix-caching": Flag("enable_prefix_caching", takes="switch"),
    "--disable-log-stats": Flag("disable_log_stats", takes="switch"),
    "--headless": Flag("headless", takes="switch"),
    "--task": Flag("task"),
    "--runner": Flag("runner"),
    "--kv-transfer-config": Flag("kv_transfer", _object),
    "--speculative-config": Flag("speculative", _object),
    "-sc": Flag("speculative", _object),
    "--config": Flag("config_file"),
    "--distributed-timeout-seconds": Flag("distributed_timeout_s", number),
}
#: How long a step of several workers may take (vllm/v1/executor/multiproc_executor.py, vllm/envs.py, 0.10 to 0.33), and
#: after how long NCCL's watchdog ends processes of which one waits for another (torch/csrc/distributed, 2.x). Seconds.
STEP_VARIABLE, STEP_TIMEOUT_S = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 300
NCCL_TIMEOUT_S = 600
#: How long KV blocks are kept that a peer was to fetch (vllm/envs.py and kv_connector/v1, 0.10 to 0.33: 480 s).
RELEASE_VARIABLES = ("VLLM_NIXL_ABORT_REQUEST_TIMEOUT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT")

#: Kernels whose results don't depend on what else is in the batch (vllm/envs.py, 0.11 to 0.33).
INVARIANT_VARIABLE = "VLLM_BATCH_INVARIANT"


def hints_from_argv(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read a command line into hints, with the flags of the engine that it starts; its name is the hint `engine`.

    A command inside `sh -c "…"` is looked into. A command that starts no known engine is read as vLLM's. The hint `open_ended`
    says that it may have more flags than are seen here.
    """
    # Adapters read their flags with what is here.
    from sidecar.engines.adapters import of_command, of_name

    own = own_command(argv, _starts_engine)
    found = of_command(own.words)
    hints = (found or of_name(None)).hints(own.words, environment)
    if own.mixed:
        # It can't be told whose address is whose.
        hints = {name: hint for name, hint in hints.items() if name not in ("host", "tls", "uds")}
    if own.mixed or _names_port(own.beside) or (hints.get("port") is None and _names_port(own.words)):
        # Its value is not known here, or a script starts another server, which may stand in front of the engine.
        hints["port"] = Hint("unknown", "argv --port")
    if own.open_ended:
        hints["open_ended"] = Hint(True, "argv of the engine")
    return hints if found is None else {**hints, "engine": Hint(found.name, "argv of the engine")}


def _names_port(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--port" for word in words)


def _starts_engine(words: Sequence[str]) -> bool:
    from sidecar.engines.adapters import of_command

    found = of_command(words)
    return found is not None and not found.front


def vllm_hints(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read the flags of `vllm serve …` or of its module form into hints, each with the flag as its source."""
    words = list(words)
    found: dict[str, Hint] = {}
    position = positional(words, "serve")
    if position:
        found["root"] = Hint(position, "argv of the engine")
    found |= read_flags(words, FLAGS)
    if environment.get("VLLM_API_KEY"):
        found.setdefault("api_key", Hint(True, "environment VLLM_API_KEY"))
    if environment.get("VLLM_ATTENTION_BACKEND"):
        backend = environment["VLLM_ATTENTION_BACKEND"]
        found.setdefault("attention_backend", Hint(backend, "environment VLLM_ATTENTION_BACKEND"))
    if environment.get(INVARIANT_VARIABLE):
        promised = environment[INVARIANT_VARIABLE].strip().lower() in ("1", "true")
        found.setdefault("batch_invariant", Hint(promised, f"environment {INVARIANT_VARIABLE}"))
    return found | ranks_here(found) | _skipped_warmups(found, environment) | _patience(found, environment)


def read_flags(words: list[str], flags: Mapping[str, Flag]) -> dict[str, Hint]:
    """Read flags into hints; later ones win over earlier ones, and what can't be read is left out.

    So is `auto` for a length. An API key gives the hint `api_key` with the value True and nothing else of it.
    """
    found: dict[str, Hint] = {}
    at = 0
    while at < len(words):
        name, given, value = words[at].partition("=")
        at += 1
        if level := _LEVEL.fullmatch(name):
            name, given, value = "-O", "=", level[1]
        name = _spelling(name)
        if "." in name:
            at += _take_dotted(found, flags, name, value if given else "".join(words[at : at + 1]), bool(given))
            continue
        flag = flags.get(name) or flags.get("--" + name.removeprefix("--no-"))
        if flag is None or (name not in flags and flag.takes != "switch"):
            continue
        following = [value] if given else _following(words, at, flag)
        at += 0 if given else len(following)
        result = _value(flag, following, name not in flags)
        if result is not None:
            found[flag.hint] = Hint(result, f"argv {name}")
    return found


def _patience(found: Mapping[str, Hint], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Give how long the engine bears with a step, and with KV blocks that nobody fetches; in seconds.

    The longest that is known counts for steps: whoever waits less than that gives up before the engine does.
    """
    told: dict[str, Hint] = {}
    parallel = [found[name] for name in ("tensor_parallel", "pipeline_parallel", "data_parallel_size") if name in found]
    steps = []
    if (own := number(environment.get(STEP_VARIABLE, ""))) is not None:
        steps.append(Hint(own, f"environment {STEP_VARIABLE}"))
    if any(isinstance(hint.value, int) and hint.value > 1 for hint in parallel):
        watchdog = found.get("distributed_timeout_s")
        steps.append(watchdog or Hint(NCCL_TIMEOUT_S, "default of NCCL's watchdog"))
        steps.append(Hint(STEP_TIMEOUT_S, f"default of {STEP_VARIABLE}"))
    if steps:
        told["step_timeout_s"] = max(steps, key=lambda hint: int(hint.value))
    released = [
        Hint(value, f"environment {name}")
        for name in RELEASE_VARIABLES
        if (value := number(environment.get(name, ""))) is not None
    ]
    return {**told, "kv_release_s": released[0]} if released else told


def ranks_here(found: Mapping[str, Hint]) -> dict[str, Hint]:
    """Give the data-parallel ranks this port routes to: one where an external balancer gives each a port of its own."""
    size, rank = found.get("data_parallel_size"), found.get("data_parallel_rank")
    external, hybrid = found.get("data_parallel_external_lb"), found.get("data_parallel_hybrid_lb")
    local = found.get("data_parallel_size_local")
    if rank is not None or (external is not None and external.value):
        return {"dp_ranks_here": Hint(1, (rank or external or Hint(1, "")).source)}
    if hybrid is not None and hybrid.value and local is not None:
        return {"dp_ranks_here": local}
    return {"dp_ranks_here": size} if size is not None else {}


def _skipped_warmups(found: Mapping[str, Hint], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Name what of the engine's own warm-up is switched off, which moves its cost to the first requests.

    vLLM: VLLM_DEEP_GEMM_WARMUP=skip (envs.py); autotuning is off at -O0 too, and JIT warm-up with --enforce-eager
    and at -O0 (config/vllm.py, 0.32 and 0.33).
    """
    kernels = found["kernels"].value if "kernels" in found else {}
    level, eager = found.get("optimization_level"), found.get("enforce_eager")
    slowest = level if level is not None and str(level.value) in ("0", "O0") else None
    wanted, unwanted = found.get("flashinfer_autotune"), found.get("no_flashinfer_autotune")
    untuned = (
        wanted if wanted is not None and not wanted.value else unwanted if unwanted and unwanted.value else slowest
    )
    untuned = found["kernels"] if kernels.get("enable_flashinfer_autotune") is False else untuned
    unwarmed = eager if eager is not None and eager.value else slowest
    unwarmed = found["kernels"] if kernels.get("enable_jit_warmup") is False else unwarmed
    off: dict[str, str] = {}
    if environment.get("VLLM_DEEP_GEMM_WARMUP") == "skip":
        off["DeepGEMM"] = "environment VLLM_DEEP_GEMM_WARMUP=skip"
    if untuned is not None:
        off["FlashInfer autotuning"] = untuned.source
    if unwarmed is not None:
        off["JIT kernels"] = unwarmed.source
    sources = ", ".join(dict.fromkeys(off.values()))
    return {"skipped_warmups": Hint(tuple(off), sources)} if off else {}


def _take_dotted(found: dict[str, Hint], flags: Mapping[str, Flag], name: str, value: str, given: bool) -> int:
    """Take one field of a flag that is a JSON object, such as --kv-transfer-config.kv_role kv_both.

    Gives how many of the following words belong to it.
    """
    base, _, key = name.partition(".")
    flag = flags.get(base)
    if flag is None or flag.read is not _object:
        return 0
    before = found[flag.hint].value if flag.hint in found else {}
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    found[flag.hint] = Hint({**before, key.replace("-", "_"): read}, f"argv {name}")
    return 0 if given else 1


def _value(flag: Flag, words: list[str], negated: bool) -> Any:
    if flag.takes == "switch":
        wanted = not words or words[0].lower() in ("true", "1", "yes")
        return wanted != negated
    if flag.takes == "secret":
        return True if any(words) else None
    values = [value for word in words if (value := flag.read(word)) is not None]
    if flag.takes == "many":
        return tuple(values) or None
    return values[0] if values else None


def _following(words: list[str], at: int, flag: Flag) -> list[str]:
    if flag.takes == "switch":
        return []
    end = at
    while end < len(words) and not words[end].startswith("-"):
        end += 1
        if flag.takes in ("one", "secret"):
            break
    return words[at:end]


def _spelling(name: str) -> str:
    """Give long flags with dashes: vLLM's parser takes underscores too (vllm/utils/argparse_utils.py)."""
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def positional(words: list[str], after: str) -> str | None:
    """Give the word that follows the one named `after`, or a path that ends with it, unless that is a flag."""
    for before, word in pairwise(words):
        if PurePosixPath(before).name == after and not word.startswith("-"):
            return word
    return None
