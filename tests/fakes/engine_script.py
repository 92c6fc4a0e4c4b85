"""What a scripted engine is told to do, and the state it keeps: kernels, counters, requests seen.

No HTTP lives here; `engine.py` serves it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = (
    "the",
    "river",
    "ran",
    "under",
    "old",
    "stone",
    "bridges",
    "while",
    "people",
    "market",
    "talked",
    "about",
    "rain",
    "and",
    "early",
    "bread",
    "nobody",
    "knew",
    "why",
    "a",
    "blue",
    "kite",
    "hung",
    "over",
    "town",
    "three",
    "days",
    "until",
    "it",
    "fell",
    "near",
    "our",
    "school",
    "garden",
    "wall",
    "before",
)
HEALTH = ("ok", "503", "hang", "slow")
GENERATION = (
    "ok",
    "500",
    "503",
    "hang",
    "error_in_stream",
    "truncated",
    "cut",
    "non_utf8",
    "huge_line",
    "not_json",
    "repeat",
    "nan",
    "empty",
)


@dataclass
class Script:
    """All knobs; each can be changed while the engine runs, through `POST /__script__` or the attribute."""

    model: str = "fake-model"
    root: str = "/models/fake"
    version: str = "0.32.0"
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    vocab_size: int = 32000
    block_size: int = 16
    kv_blocks: int = 4096
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    calculate_kv_scales: bool = False
    adapters: list[str] = field(default_factory=list)
    chat_template: bool = True
    extensions: bool = True
    """Fields beyond OpenAI's are taken; else a request with one is refused."""
    pictures: bool = False
    """The model takes pictures in chat messages."""
    sounds: bool = False
    """The model takes recordings in chat messages."""
    tasks: list[str] = field(default_factory=lambda: ["generate"])
    """Whose endpoints are there: generate, embed, score, transcription."""
    dev_mode: bool = False
    server_info_seconds: float = 0.0
    """How long /server_info takes; vLLM's first one runs programs that describe the machine."""
    api_key: str | None = None
    load_seconds: float = 0.0
    """Seconds from the start until the port accepts connections; before that it refuses them, as vLLM."""
    compile_seconds: float = 0.0
    """Stall of every running request when a kernel is compiled that is neither loaded nor on disk."""
    bucket_tokens: int = 512
    """Width of the prompt-length buckets that have a kernel each, in tokens."""
    token_seconds: float = 0.0
    prefill_seconds_per_1k: float = 0.0
    health: str = "ok"
    slow_seconds: float = 5.0
    generation: str = "ok"
    models_status: int = 200
    at_most: int | None = None
    """More requests at once are refused, as by a router or an engine with a limit on its queue (SGLang: 503)."""
    full_status: int = 429
    asleep: bool = False
    asleep_from_text: int | None = None
    """Fall asleep as the n-th request for text arrives, counted from 1."""
    partly_awake: bool = False
    """The weights were woken up and the KV cache was not: /is_sleeping tells, the metrics say awake."""
    freeze: bool = False
    """Requests hang, one is shown as running, counters stand still, /health says 200."""
    metrics_status: int = 200
    no_metrics: bool = False
    metrics_names: str = "new"
    """`new` (0.12 and later), `old` (up to 0.9), `both`, `none` (--disable-log-stats)."""
    engines: int = 1
    """Number of data-parallel engines among which the counters are divided."""
    idle_engines: list[int] = field(default_factory=list)
    """Data-parallel engines that no request reaches: their counters stand still."""
    pin_seconds: float = 0.0
    """For how long the KV cache of an ended request stays in use, as where a peer is to fetch it."""
    show_process_start: bool = True
    die_on_tokens: int | None = None
    """Die when a prompt has more tokens than this."""
    die_at_tokens: int | None = None
    """Die when a prompt has just so many tokens."""
    die_on_request: int | None = None
    """Die when the n-th request for text arrives, counted from 1."""
    die_on_mixed: bool = False
    """Die when a prompt arrives while another request decodes."""
    log_jit: bool = True
    speaks: bool = False
    """Requests that aren't streamed are answered by `speaking.Language`, with token ids and log-probabilities."""
    fault: str = ""
    """What is wrong with that language: one of `speaking.FAULTS`."""
    batch_invariant: bool = False
    """The same answer to the same prompt in any batch is promised, in development mode's /server_info."""

    def update(self, changes: dict[str, Any]) -> None:
        """Set knobs by name. Raises KeyError for a name that isn't one."""
        known = {each.name for each in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise KeyError(name)
            setattr(self, name, value)


@dataclass
class Counters:
    """What /metrics shows and what tests look at."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    success: int = 0
    running: int = 0
    waiting: int = 0
    decoding: int = 0
    tokens_held: int = 0
    aborted: int = 0
    texts: int = 0
    while_asleep: int = 0
    refused: int = 0
    lengths: list[tuple[int, int]] = field(default_factory=list)


class Kernels:
    """Kernels by feature, on disk in the layout of Triton (or Inductor for log-probabilities)."""

    def __init__(self, script: Script, triton: Path | None, inductor: Path | None) -> None:
        self._script = script
        self._triton = triton
        self._inductor = inductor
        self._loaded: set[str] = set()
        self._lock = asyncio.Lock()
        self.compiled: list[str] = []

    async def need(self, feature: str) -> None:
        """Load the kernel of a feature, compiling it when it isn't on disk; everybody waits meanwhile."""
        if feature in self._loaded:
            return
        async with self._lock:
            if feature in self._loaded:
                return
            if not self._on_disk(feature):
                if self._script.log_jit:
                    print(
                        f"WARNING Triton kernel JIT compilation during inference: {feature}. "
                        "This causes a latency spike.",
                        file=sys.stderr,
                        flush=True,
                    )
                await asyncio.sleep(self._script.compile_seconds)
                self._write(feature)
                self.compiled.append(feature)
            self._loaded.add(feature)

    async def not_compiling(self) -> None:
        """Wait until no compilation stalls the batch."""
        if self._lock.locked():
            async with self._lock:
                pass

    def _place(self, feature: str) -> tuple[Path | None, str]:
        digest = hashlib.sha256(feature.encode()).hexdigest()
        if feature.startswith("logprobs") and self._inductor is not None:
            return self._inductor / digest[:2], f"c{digest[:40]}.so"
        return (self._triton / digest[:52].upper() if self._triton is not None else None), "kernel.cubin"

    def _on_disk(self, feature: str) -> bool:
        """Say whether the kernel can be reused; as in Triton, a group file with a foreign path is a miss."""
        directory, name = self._place(feature)
        if directory is None or not (directory / name).is_file():
            return False
        (directory / name).read_bytes()  # a real engine loads it, which the file's access time shows
        if name.endswith(".so"):
            return True
        try:
            group = json.loads((directory / "__grp__kernel.json").read_text())
        except (OSError, ValueError):
            return False
        return all(Path(path).is_file() for path in group["child_paths"].values())

    def _write(self, feature: str) -> None:
        directory, name = self._place(feature)
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        blob = hashlib.sha256(feature.encode()).digest() * 64
        _put(directory / name, blob)
        if name.endswith(".cubin"):
            _put(directory / "kernel.json", json.dumps({"name": feature, "num_warps": 4}).encode())
            child_paths = {each: str(directory / each) for each in ("kernel.cubin", "kernel.json")}
            _put(directory / "__grp__kernel.json", json.dumps({"child_paths": child_paths}).encode())


def _put(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"tmp.{path.name}")
    temporary.write_bytes(content)
    temporary.replace(path)


def features_of(body: dict[str, Any], prompt_tokens: int, script: Script, chat: bool) -> list[str]:
    """Give the features of a request that have a kernel each, first the one of its prompt's length."""
    found = [f"prefill|{math.ceil(max(prompt_tokens, 1) / script.bucket_tokens)}"]
    wanted = body.get("top_logprobs" if chat else "logprobs")
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        found.append(f"logprobs|{1 << wanted.bit_length()}")
    if body.get("structured_outputs") or (body.get("response_format") or {}).get("type", "text") != "text":
        found.append("structured")
    samplers = ("top_k", "top_p", "min_p", "seed")
    found += [f"sampling|{name}" for name in samplers if body.get(name) is not None]
    if any(body.get(name) for name in ("presence_penalty", "frequency_penalty", "logit_bias")):
        found.append("sampling|penalties")
    if body.get("model") in script.adapters:
        found.append(f"adapter|{body['model']}")
    return found


def prompt_tokens(body: dict[str, Any]) -> int:
    """Count the tokens of a prompt; of text and messages roughly."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    return max(1, len(prompt if isinstance(prompt, str) else _text_of(body.get("messages", []))) // 4)


def _text_of(messages: Any) -> str:
    """Give the text of messages; the characters of a picture's URL are no tokens."""
    contents = (message.get("content", "") for message in messages)
    parts = (
        content if isinstance(content, str) else json.dumps([part.get("text", "") for part in content])
        for content in contents
    )
    return " ".join(parts)


def words_for(body: dict[str, Any], script: Script) -> list[str]:
    """Give the words of an answer: the same for the same greedy or seeded request, else drawn anew."""
    count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
    if script.generation == "empty":
        return []
    if script.generation == "repeat":
        return [" the"] * count
    if script.generation == "nan":
        return ["!"] * count
    fixed = not body.get("temperature", 1.0) or body.get("seed") is not None
    seed = json.dumps([body.get("prompt"), body.get("messages"), body.get("seed")]) if fixed else None
    rng = random.Random(seed)
    return [" " + rng.choice(WORDS) for _ in range(count)]


def metrics_page(script: Script, counters: Counters, started: float) -> str:
    """Write a page in Prometheus' text format as vLLM does, with the names of the scripted version."""
    lines = [
        "# HELP python_info Python platform information",
        "# TYPE python_info gauge",
        'python_info{implementation="CPython",major="3",minor="12"} 1.0',
    ]
    if script.show_process_start:
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started!r}"]
    if script.metrics_names == "none":
        return "\n".join(lines) + "\n"
    running = max(counters.running, 1) if script.freeze else counters.running
    usage = min(1.0, counters.tokens_held / (script.block_size * script.kv_blocks))
    gauges: dict[str, float] = {"num_requests_running": running, "num_requests_waiting": counters.waiting}
    totals: dict[str, float] = {
        "prompt_tokens_total": counters.prompt_tokens,
        "generation_tokens_total": counters.generation_tokens,
        "num_preemptions_total": 0,
        "iteration_tokens_total_count": counters.steps,
    }
    for era, prefix in (("old", "gpu_"), ("new", "")):
        if script.metrics_names in (era, "both"):
            gauges["gpu_cache_usage_perc" if era == "old" else "kv_cache_usage_perc"] = usage
            totals |= {
                f"{prefix}prefix_cache_queries_total": counters.prompt_tokens,
                f"{prefix}prefix_cache_hits_total": 0,
            }
    if script.metrics_names != "old":
        gauges |= {
            "engine_sleep_state{sleep_state=awake}": float(not script.asleep),
            "engine_sleep_state{sleep_state=weights_offloaded}": float(script.asleep),
            "engine_sleep_state{sleep_state=discard_all}": 0,
        }
    for name, value in (gauges | totals).items():
        lines += _series(name, value, script, share=name in totals or name.startswith("num_requests"))
    success = f'{{engine="0",finished_reason="length",model_name="{script.model}"}}'
    lines.append(f"vllm:request_success_total{success} {float(counters.success)!r}")
    lines += [
        f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{edge}"}} {float(counters.success)!r}'
        for edge in (0.001, 0.005, 0.01, 0.1, 1.0, 10.0, "+Inf")
    ]
    for name, values in (
        ("prompt", [prompt for prompt, _ in counters.lengths]),
        ("generation", [output for _, output in counters.lengths]),
    ):
        lines += [
            f'vllm:request_{name}_tokens_bucket{{engine="0",le="{_edge(edge)}",model_name="{script.model}"}} '
            f"{float(sum(value <= edge for value in values))!r}"
            for edge in _edges(script.max_model_len)
        ]
    lines.append(_cache_config(script))
    return "\n".join(lines) + "\n"


def _edge(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(value)


def _edges(longest: int) -> list[float]:
    """Give vLLM's bounds for lengths: 1, 2, 5, 10 ... up to the longest, then +Inf."""
    found = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]
    return [float(each) for each in found if each <= longest] + [math.inf]


def _series(name: str, value: float, script: Script, *, share: bool) -> list[str]:
    name, _, extra = name.partition("{")
    label = f',{extra[:-1].replace("=", chr(61) + chr(34))}"' if extra else ""
    kind = "counter" if "total" in name else "gauge"
    lines = [f"# HELP vllm:{name} Scripted.", f"# TYPE vllm:{name} {kind}"]
    for engine in range(script.engines):
        part = value
        if engine in script.idle_engines:
            part = 0
        elif share:
            part = value // script.engines + (value % script.engines if engine == 0 else 0)
        lines.append(f'vllm:{name}{{engine="{engine}",model_name="{script.model}"{label}}} {float(part)!r}')
    return lines


def _cache_config(script: Script) -> str:
    labels = {
        "block_size": script.block_size,
        "cache_dtype": script.kv_cache_dtype,
        "calculate_kv_scales": script.calculate_kv_scales,
        "enable_prefix_caching": True,
        "engine": 0,
        "gpu_memory_utilization": 0.9,
        "num_gpu_blocks": script.kv_blocks,
        "sliding_window": None,
    }
    return "vllm:cache_config_info{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "} 1.0"
