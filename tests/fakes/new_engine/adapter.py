"""Tiny, an engine that nobody runs: its declaration and its client, in the one file that an engine takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sidecar.engines import server_facts
from sidecar.engines.argv import Flag, number, port, positional, read_flags
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.generation import body_of, converse
from sidecar.engines.http_engine import HttpEngine
from sidecar.engines.protocol import CompletionRequest, EngineFacts, Hint
from sidecar.engines.stream import Answer
from sidecar.engines.values import Gathered, text

FLAGS: Mapping[str, Flag] = {
    "--port": Flag("port", port),
    "--max-length": Flag("max_model_len", number),
    "--max-requests": Flag("max_num_seqs", number),
}


class TinyEngine(HttpEngine):
    """A client of one server that speaks OpenAI's protocol and nothing else."""

    name = "tiny"
    title = "Tiny"
    has_version = False

    async def facts(self) -> EngineFacts:
        """Ask /v1/models. Raises NotAnEngine, ModelNotServed or EngineError."""
        card, _ = await self._card()
        found = Gathered()
        found.offer("model", text(card.get("id")), "/v1/models")
        self._served = str(card["id"])
        return server_facts.completed(self.name, found, self._hints, {})

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        path = "/v1/completions" if request.messages is None else "/v1/chat/completions"
        await converse(self._http, path, body_of(request, await self._model(request)), answer, self._clock, {})


def hints(words: Sequence[str], _environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read the flags of `tiny-server MODEL`."""
    model = positional(list(words), "tiny-server")
    return {**read_flags(list(words), FLAGS), **({"root": Hint(model, "argv of the engine")} if model else {})}


SEEN, UNSAID = Claim("scripted"), Claim("no", "its documentation says nothing of it")

ENGINE = Declaration(
    name="tiny",
    title="Tiny",
    versions="1",
    make=TinyEngine.connected,
    owners=("tiny",),
    command=re.compile(r"(^|[\s/])tiny-server\b"),
    listens=Listens(7000),
    endpoints=(
        Endpoint("/health", "whether it is alive, every second"),
        Endpoint("/metrics", "load and tokens, every 5 s"),
        Endpoint("/v1/models", "the model"),
        Endpoint("/v1/completions", "warm-up"),
        Endpoint("/v1/chat/completions", "warm-up"),
    ),
    metrics=MetricNames(
        prefixes=("tiny_",),
        numbers={
            "kv_cache_usage": ("tiny_cache_usage",),
            "running": ("tiny_running",),
            "waiting": ("tiny_waiting",),
            "prompt_tokens_total": ("tiny_prompt_tokens_total",),
            "generation_tokens_total": ("tiny_generation_tokens_total",),
        },
    ),
    hints=hints,
    claims={
        "recognised": SEEN,
        "loading, dead": SEEN,
        "key": UNSAID,
        "facts": SEEN,
        "token ids": SEEN,
        "steps": SEEN,
        "sampling": SEEN,
        "structured": UNSAID,
        "logprobs": SEEN,
        "metrics": SEEN,
        "stalls": UNSAID,
        "asleep": UNSAID,
        "prefill role": UNSAID,
        "decode role": UNSAID,
        "caches": UNSAID,
    },
    unwarmed=lambda facts: "" if facts.role in (None, "both") else f"The engine's role is {facts.role}",
)
