"""What every engine client answers with, and the protocol all of them follow.

No HTTP and no parsing lives here; the rooms above depend on these types alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

HealthState = Literal["up", "refused", "reset", "timed_out", "unhealthy", "starting", "unreachable", "not_an_engine"]
ErrorKind = Literal["unsupported", "unauthorized", "broken", "refused", "reset", "timed_out", "not_json"]
#: What an engine can be asked to do; the names are vLLM's (vllm/tasks.py), `score` stands for its scoring endpoints.
Task = Literal["generate", "embed", "score", "classify", "transcription"]
#: What an engine does in a deployment that separates reading prompts from generating.
Role = Literal["both", "prefill", "decode"]
EMPTY: Mapping[str, Any] = MappingProxyType({})


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, Plain) else value


class Plain:
    """Give a frozen dataclass a JSON form: field names as keys, tuples as lists."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Give all fields as plain values for JSON."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {each.name: _plain(getattr(self, each.name)) for each in fields}


@dataclass(frozen=True, slots=True)
class Health(Plain):
    """One answer to the engine's health check.

    `seconds` is how long it took. `new_connection`: the answer came over a connection that was opened for it,
    which is what an engine that was restarted between two checks looks like.
    """

    state: HealthState
    status: int | None
    seconds: float
    detail: str
    new_connection: bool = False


@dataclass(frozen=True, slots=True)
class Hint(Plain):
    """One fact from outside the engine's HTTP surface, such as its command line, with where it came from."""

    value: Any
    source: str


#: Facts from outside by name: fields of EngineFacts, and further names that `argv.hints_from_argv` documents.
Hints: TypeAlias = Mapping[str, Hint]


@dataclass(frozen=True, slots=True)
class EngineFacts(Plain):
    """What the engine says of itself, completed by hints and documented defaults.

    Lengths and batch sizes in tokens, `kv_blocks` and `block_size` as the engine counts them; `kv_tokens` is what the
    KV cache holds where the engine says so itself. None: unknown.
    `weights` is the scheme behind `quantization`, such as `nvfp4`, `fp8` or `none`. `tasks` are those with an
    endpoint, `images` and `sounds` say whether chat messages may hold such. `kv_connectors` move KV caches between
    engines. `adapters` are served names, `adapter_ranks` their LoRA ranks where they can be read. `dp_ranks` is how
    many data-parallel ranks this port can route to, `speculative_tokens` how many are drafted at once,
    `cudagraph_sizes` the captured batch sizes. `skipped_warmups` names what of the engine's own warm-up is switched
    off. `step_timeout_s` is how long one step may take until the engine ends itself, `kv_release_s` how long it keeps
    KV blocks that nobody fetches; both in seconds. `batch_invariant`: it promises the same answer to the same prompt whatever
    else it works on. `sources` says for each known field where it came from; "default …"
    marks an assumption.
    """

    engine: str
    version: str | None
    model: str
    root: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    vocab_size: int | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    block_size: int | None = None
    kv_blocks: int | None = None
    kv_tokens: int | None = None
    calculate_kv_scales: bool | None = None
    chat: bool | None = None
    adapters: tuple[str, ...] = ()
    weights: str | None = None
    tasks: tuple[str, ...] = ()
    images: bool | None = None
    sounds: bool | None = None
    role: str | None = None
    kv_connectors: tuple[str, ...] = ()
    adapter_ranks: Mapping[str, int] = field(default_factory=dict)
    dp_ranks: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    speculative_tokens: int | None = None
    cudagraph_sizes: tuple[int, ...] = ()
    attention_backend: str | None = None
    skipped_warmups: tuple[str, ...] = ()
    step_timeout_s: int | None = None
    kv_release_s: int | None = None
    asleep: bool | None = None
    batch_invariant: bool | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Histogram(Plain):
    """Observations in seconds: for each upper bound (infinity at last) all up to it, and their sum."""

    buckets: Mapping[float, float]
    sum: float


@dataclass(frozen=True, slots=True)
class EngineStats(Plain):
    """One reading of the engine's metrics. None: the engine does not show it, which is not the same as 0.

    `identity` is the start of the engine's process as text, `kv_cache_usage` a ratio 0..1, `progress` a sum
    that grows whenever the engine finishes any work, `progress_by_rank` the same for each data-parallel rank by its
    number, and `load_by_rank` its running requests and its KV cache usage. `prompt_lengths` and `output_lengths` count
    ended requests by their tokens: for each upper bound of a bucket (infinity at last) all requests up to it.
    `time_to_first_token` and `inter_token_latency` have the engine's own buckets.
    `missing` says in a sentence why series are absent.
    """

    identity: str | None = None
    kv_cache_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    preemptions_total: float | None = None
    prefix_cache_hits_total: float | None = None
    prefix_cache_queries_total: float | None = None
    asleep: bool | None = None
    progress: float | None = None
    progress_by_rank: Mapping[str, float] = field(default_factory=dict)
    load_by_rank: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    prompt_lengths: Mapping[float, float] = field(default_factory=dict)
    output_lengths: Mapping[float, float] = field(default_factory=dict)
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request asks for instead of text, and what belongs to it beside the prompt.

    `embed` embeds the prompt, `score` and `rerank` compare it with `documents`, `transcription` writes down
    `audio`, a WAV file, in `language`.
    """

    kind: Literal["embed", "score", "rerank", "transcription"]
    documents: tuple[str, ...] = ()
    audio: bytes = field(default=b"", repr=False)
    language: str = "en"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request: token ids or text as `prompt`, or `messages` for the chat endpoint.

    `extra` is sent as it is, over everything else. `deadline_s` covers the whole request, in seconds.
    `on_first_token` is called once, at the first text of a streamed answer: warm-up adds prefills to running
    decodes with it. `model` names an adapter, `rank` the data-parallel rank that must work on it. With `work` the
    request asks for something else than text; only `prompt`, `model`, `rank` and `deadline_s` count then.
    """

    prompt: Sequence[int] | str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    stream: bool = True
    cache_salt: str | None = None
    deadline_s: float = 900.0
    model: str | None = None
    rank: int | None = None
    work: Work | None = None
    on_first_token: Callable[[], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """How one request went: times in seconds, `tokens` and `prompt_tokens` as the engine counted them.

    `ttft_s` is the time to the first non-empty text in any channel; None when no text came or the request
    wasn't streamed. `gaps_s` are the times between later pieces of text. `error` is a sentence with what the
    engine said, `error_kind` its class. `logprobs` are those of the generated tokens, NaN where one is null.
    `token_ids` are the generated ones and `prompt_token_ids` those of the prompt, when `extra` asked for
    `return_token_ids`. Where tokens were asked for as token ids (`return_tokens_as_token_ids`), `alternatives` has the
    log-probabilities of the likeliest tokens at each generated place by token id, and `prompt_logprobs` those at each place
    of the prompt, when `extra` asked for it; the first place of a prompt has none.
    """

    ok: bool
    status: int | None
    ttft_s: float | None
    total_s: float
    gaps_s: tuple[float, ...] = ()
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    logprobs: tuple[float, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    alternatives: tuple[Mapping[int, float], ...] | None = None
    prompt_logprobs: tuple[Mapping[int, float], ...] | None = None


class Engine(Protocol):
    """A client of one inference engine."""

    name: str

    async def health(self) -> Health:
        """Ask whether the engine is alive; never raises for what the engine does, and has an own deadline."""
        ...

    async def facts(self) -> EngineFacts:
        """Learn what the engine says of itself, without sending it work.

        Raises NotAnEngine, EngineUnauthorized, ModelNotServed or EngineError.
        """
        ...

    async def adapters(self) -> tuple[str, ...]:
        """Name the adapters that are served now. Raises NotAnEngine, EngineUnauthorized, ModelNotServed or EngineError."""
        ...

    async def stats(self) -> EngineStats:
        """Read the engine's metrics once. Raises NotAnEngine or EngineError."""
        ...

    async def complete(self, request: CompletionRequest) -> Completion:
        """Send one request and classify how it went; never raises for what the engine does."""
        ...

    def use_hints(self, hints: Hints) -> None:
        """Take facts from outside, such as the launcher's; they count from the next call of `facts`."""
        ...

    async def close(self) -> None:
        """Close all connections to the engine."""
        ...
