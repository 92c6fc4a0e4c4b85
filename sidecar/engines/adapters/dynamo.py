"""Dynamo's workers: engines that take requests from Dynamo's frontend alone, so their health and metrics are watched only.

Source: Dynamo documentation, "Health Checks" and "Metrics" (DYN_SYSTEM_PORT), components/backends. No real Dynamo was run
against this. A worker of llm-d is a plain vLLM and no business of this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sidecar.config.routers import ENGINE_COMMANDS
from sidecar.engines import server_facts
from sidecar.engines.argv import Flag, port, read_flags
from sidecar.engines.connection import Reply
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.exposition import Exposition
from sidecar.engines.http_engine import HttpEngine
from sidecar.engines.protocol import CompletionRequest, EngineFacts, Hint
from sidecar.engines.stream import Answer
from sidecar.engines.values import Gathered
from sidecar.errors import NotAnEngine

#: Flags of Dynamo's own; those of the engine inside are read as that engine reads them.
FLAGS: Mapping[str, Flag] = {
    "--disaggregation-mode": Flag("role", lambda word: {"agg": "both", "aggregated": "both"}.get(word, word)),
    "--is-prefill-worker": Flag("prefill_worker", takes="switch"),
    "--is-decode-worker": Flag("decode_worker", takes="switch"),
}
#: Where a worker shows health and metrics; what the engine inside it would listen on is not used.
PORT_VARIABLE = "DYN_SYSTEM_PORT"
_INSIDE = re.compile(r"\bdynamo\.(vllm|sglang|trtllm)\b")
WHY = "Dynamo's workers take requests from Dynamo's frontend alone"


class DynamoWorker(HttpEngine):
    """A client of the system port of one worker (DYN_SYSTEM_PORT); it can't be sent requests."""

    name = "dynamo"
    title = "Dynamo"

    async def facts(self) -> EngineFacts:
        """Give what its command line tells; its system port tells only that it is one. Raises NotAnEngine or EngineError."""
        await self.stats()
        return server_facts.completed(self.name, Gathered(), self._hints, {})

    async def adapters(self) -> tuple[str, ...]:
        """Name none: adapters are warmed by nobody here."""
        return ()

    async def _must_be_own(self, page: Exposition | None, models: Reply | None = None) -> None:
        """Take any page with the series of Dynamo or of the engine inside it; `models` are never asked for."""
        assert models is None, "a worker lists no models"
        if page is not None and page.flavour is None and self._strict:
            raise NotAnEngine(
                f"{self._http.url} shows no metrics of a worker of Dynamo; set DYN_SYSTEM_PORT in the engine's container "
                "and point WARMUP_ENGINE_URL at that port."
            )

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        answer.fail("unsupported", f"{WHY}, so not this of {request.max_tokens} tokens")


def hints(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read the flags of Dynamo and those of the engine inside it."""
    # Whoever lists the engines imports this file.
    from sidecar.engines.adapters import of_name

    inside = _INSIDE.search(" ".join(words))
    found = of_name(inside[1] if inside else None).hints(words, environment)
    own = read_flags(list(words), FLAGS)
    for role in ("prefill", "decode"):
        if (flag := own.pop(f"{role}_worker", None)) is not None and flag.value:
            own["role"] = Hint(role, flag.source)
    for inner in ("port", "host", "tls", "api_key", "uds"):
        found.pop(inner, None)
    if environment.get(PORT_VARIABLE):
        own["port"] = Hint(port(environment[PORT_VARIABLE]), f"environment {PORT_VARIABLE}")
    return {**found, **own}


_NEVER = Claim("no", "it takes requests from Dynamo's frontend alone: health only, flagged as unwarmed")

ENGINE = Declaration(
    name="dynamo",
    title="Dynamo",
    versions="0.4 to 1.0",
    make=DynamoWorker.connected,
    owners=(),
    command=ENGINE_COMMANDS["dynamo"],
    endpoints=(
        Endpoint("/health", "whether it is alive, every second; on DYN_SYSTEM_PORT"),
        Endpoint("/metrics", "those of the engine inside, every 5 s"),
    ),
    metrics=MetricNames(
        prefixes=("dynamo_component_",),
        absent="set DYN_SYSTEM_PORT in the engine's container and point WARMUP_ENGINE_URL at it",
    ),
    listens=Listens(0),
    hints=hints,
    claims={
        "recognised": Claim("scripted"),
        "loading, dead": Claim("scripted"),
        "key": Claim("no", "its system port has none"),
        "facts": Claim("scripted", "by its command line"),
        "token ids": _NEVER,
        "steps": _NEVER,
        "sampling": _NEVER,
        "structured": _NEVER,
        "logprobs": _NEVER,
        "metrics": Claim("scripted", "those of the engine inside"),
        "stalls": Claim("scripted", "with vLLM or SGLang inside"),
        "asleep": Claim("scripted", "with vLLM inside"),
        "prefill role": _NEVER,
        "decode role": _NEVER,
        "caches": Claim("scripted", "those of the engine inside"),
    },
    unwarmed=lambda facts: f"{WHY}" + (f", also one of role {facts.role}" if facts.role not in (None, "both") else ""),
    unchecked=lambda _: WHY,
)
