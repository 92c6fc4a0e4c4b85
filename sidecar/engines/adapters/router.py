"""Routers and proxies in front of engines: watched for health only, because what is sent there runs on any engine behind.

What they are called is in `config/routers.py`. No real one was run against this. One that is met at WARMUP_ENGINE_URL
where another engine is expected is refused by the client of that engine; see `engines/recognition.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sidecar.config.routers import COMMAND, router_of
from sidecar.engines import server_facts
from sidecar.engines.argv import Flag, port, read_flags
from sidecar.engines.declaration import Claim, Declaration, Endpoint, Listens, MetricNames
from sidecar.engines.http_engine import HttpEngine
from sidecar.engines.protocol import CompletionRequest, EngineFacts, EngineStats, HealthState, Hint
from sidecar.engines.stream import Answer
from sidecar.engines.values import Gathered

FLAGS: Mapping[str, Flag] = {"--host": Flag("host"), "--port": Flag("port", port)}
WHY = "This is a router, and what is sent to it is worked on by whichever engine behind it"


class Router(HttpEngine):
    """A client of one router. Not all of them have /health, so whatever is no error of the server counts as alive."""

    name = "router"
    title = "a router"

    def _judge_health(self, status: int) -> tuple[HealthState, str]:
        if status >= 500:
            return "unhealthy", f"The router answers HTTP {status} to /health: it or all engines behind it are away."
        return "up", f"The router answers HTTP {status} to /health."

    async def stats(self) -> EngineStats:
        """Give none: its numbers are about engines elsewhere."""
        return EngineStats(missing="A router's metrics are about engines elsewhere, so they are not read.")

    async def facts(self) -> EngineFacts:
        """Give what is known without asking it."""
        return server_facts.completed(self.name, Gathered(), self._hints, {})

    async def adapters(self) -> tuple[str, ...]:
        """Name none: adapters are warmed by nobody here."""
        return ()

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        answer.fail("unsupported", f"{WHY}, so not this of {request.max_tokens} tokens")


def hints(words: Sequence[str], _environment: Mapping[str, str]) -> dict[str, Hint]:
    """Read where it listens, and call it by its name."""
    title = router_of(" ".join(words))
    return {**read_flags(list(words), FLAGS), **({"model": Hint(title, "argv of the engine")} if title else {})}


_NEVER = Claim("no", "nothing is sent through a router: health only, flagged as unwarmed")
_ELSEWHERE = Claim("no", "they are those of engines elsewhere")

ENGINE = Declaration(
    name="router",
    title="Routers",
    versions="any",
    make=Router.connected,
    owners=(),
    command=COMMAND,
    endpoints=(Endpoint("/health", "whether it is alive, every second"),),
    metrics=MetricNames(prefixes=()),
    listens=Listens(0),
    hints=hints,
    claims={
        "recognised": Claim(
            "scripted", "by its command; one that is met at WARMUP_ENGINE_URL is refused by its metrics"
        ),
        "loading, dead": Claim("scripted"),
        "key": Claim("no", "/health needs none"),
        "facts": Claim("no", "it has none of its own"),
        "token ids": _NEVER,
        "steps": _NEVER,
        "sampling": _NEVER,
        "structured": _NEVER,
        "logprobs": _NEVER,
        "metrics": _ELSEWHERE,
        "stalls": _ELSEWHERE,
        "asleep": _ELSEWHERE,
        "prefill role": _NEVER,
        "decode role": _NEVER,
        "caches": Claim("no", "it compiles nothing"),
    },
    front=True,
    unwarmed=lambda _: WHY,
    unchecked=lambda _: WHY,
)
