"""What the clients of all engines have in common: health, model list, metrics and requests of one HTTP server.

Which paths there are and what their answers mean is said by each engine's own client; connections are opened in
`connection.py`, requests for text are read in `generation.py`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sidecar.engines import exposition
from sidecar.engines.connection import Connection, Reply, UnansweredError
from sidecar.engines.declaration import Connect
from sidecar.engines.generation import KEY_ADVICE, completion_of
from sidecar.engines.protocol import (
    EMPTY,
    Completion,
    CompletionRequest,
    EngineStats,
    ErrorKind,
    Health,
    HealthState,
    Hints,
)
from sidecar.engines.recognition import cards, recognise
from sidecar.engines.stream import Answer, snippet
from sidecar.errors import EngineError, EngineGone, EngineUnauthorized, ModelNotServed, NotAnEngine

#: Characters of a page of metrics: real ones have some 100,000; a larger one is parsed in a thread, a huge one not at all.
THREAD_FROM, PAGE_LIMIT = 200_000, 4_000_000
#: Which kind of failed request each failure to get an answer is.
_KINDS: Mapping[HealthState, ErrorKind] = {
    "refused": "refused",
    "unreachable": "refused",
    "reset": "reset",
    "timed_out": "timed_out",
    "not_an_engine": "not_json",
}
#: The same for what goes wrong while the model's name is being asked.
_ERRORS: Mapping[type[EngineError], ErrorKind] = {
    EngineUnauthorized: "unauthorized",
    ModelNotServed: "unsupported",
    NotAnEngine: "not_json",
}


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each kind of question may take, in seconds. Requests for text carry their own.

    `server_info_s` counts when hints are there already: vLLM's first answer to /server_info runs programs
    that describe the machine (vllm/collect_env.py) for seconds, and warm-up must not wait for it then.
    """

    health_s: float = 10.0
    metrics_s: float = 10.0
    facts_s: float = 30.0
    recheck_s: float = 2.0
    server_info_s: float = 0.5


class HttpEngine(ABC):
    """A client of one server.

    `api_key` gives the key or None whenever a request needs it and never raises, `clock` monotonic seconds,
    `model` the served name to use (empty: the first that is no adapter). With `strict`, what does not look
    like this engine is refused.
    """

    name: str
    title: ClassVar[str]
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str] = "/metrics"
    has_version: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        api_key: Callable[[], str | None],
        clock: Callable[[], float],
        model: str = "",
        strict: bool = True,
        deadlines: Deadlines | None = None,
        hints: Hints = EMPTY,
    ) -> None:
        self._http = Connection(url, api_key)
        self._clock = clock
        self._wanted = model
        self._served: str | None = None
        self._strict = strict
        self._recognised = not strict
        self._deadlines = deadlines or Deadlines()
        self._hints = hints

    @classmethod
    def connected(cls, connect: Connect, **more: Any) -> Self:
        """Make a client as it is asked for, with what only this engine's takes."""
        return cls(
            connect.url,
            api_key=connect.api_key,
            clock=connect.clock,
            model=connect.model,
            strict=connect.strict,
            hints=connect.hints,
            **more,
        )

    def use_hints(self, hints: Hints) -> None:
        """Take facts from outside; they count from the next call of `facts`."""
        self._hints = hints

    async def close(self) -> None:
        """Close all connections to the engine."""
        await self._http.close()

    async def health(self) -> Health:
        """Ask whether the engine is alive, over the kept connection; no work for the GPU."""
        started = self._clock()
        try:
            reply = await self._ask_health()
        except UnansweredError as error:
            return Health(error.state, None, self._clock() - started, error.sentence)
        if reply.new_connection:
            self._recognised = not self._strict
        state, detail = self._judge_health(reply.status)
        return Health(state, reply.status, self._clock() - started, detail, reply.new_connection)

    async def _ask_health(self) -> Reply:
        return await self._http.get(self.health_path, timeout_s=self._deadlines.health_s, kept=True)

    def _judge_health(self, status: int) -> tuple[HealthState, str]:
        path = self.health_path
        if status == 200:
            return "up", f"The engine answers {path}."
        if status >= 500:
            return "unhealthy", f"The engine answers HTTP {status} to {path}: its core has died or isn't up yet."
        return "not_an_engine", (
            f"{self._http.url} answers HTTP {status} to {path}, which no {self.title} does; point WARMUP_ENGINE_URL "
            "at the engine's own port."
        )

    async def adapters(self) -> tuple[str, ...]:
        """Ask /v1/models which adapters there are now: they can be loaded while the engine serves."""
        return tuple(str(card["id"]) for card in (await self._card())[1])

    async def stats(self) -> EngineStats:
        """Read the metrics once. Raises NotAnEngine, or EngineError when there is no answer for now."""
        path = self.metrics_path
        try:
            reply = await self._http.get(path, timeout_s=self._deadlines.metrics_s)
        except UnansweredError as error:
            raise typed(error) from error
        if reply.status >= 500:
            raise EngineError(f"{self._http.url} answers HTTP {reply.status} to {path}.")
        page = await self._parsed(text_of(reply))
        if page.flavour != self.name or page.front:
            await self._must_be_own(page)
        if reply.status != 200:
            return EngineStats(missing=self._no_metrics(reply.status))
        return exposition.statistics(page, self.name)

    async def _parsed(self, text: str) -> exposition.Exposition:
        """Parse a page of metrics; a huge one in a thread, so that probes are answered meanwhile."""
        if len(text) > PAGE_LIMIT:
            raise EngineError(
                f"{self._http.url}{self.metrics_path} has {len(text)} bytes, more than {PAGE_LIMIT}: it is not read."
            )
        if len(text) < THREAD_FROM:
            return exposition.read(text)
        return await asyncio.to_thread(exposition.read, text)

    def _no_metrics(self, status: int) -> str:
        what = f"The engine answers HTTP {status} to {self.metrics_path}"
        return f"{what}, so its load and stalls can't be seen."

    async def complete(self, request: CompletionRequest) -> Completion:
        """Send one request to the endpoint that takes it.

        Never raises for what the engine does. Cancelling it closes the connection; engines then abort the work.
        """
        started = self._clock()
        answer = self._answer(request)
        try:
            async with asyncio.timeout(request.deadline_s):
                await self._converse(request, answer)
        except TimeoutError:
            answer.fail("timed_out", f"no complete answer within {request.deadline_s:g} s")
        except UnansweredError as error:
            answer.fail(*await self._why_unanswered(error))
        except EngineError as error:
            cause = error.__cause__
            if isinstance(cause, UnansweredError):
                answer.fail(*await self._why_unanswered(cause))
            answer.fail(_ERRORS.get(type(error), "broken"), str(error))
        return completion_of(answer, started, self._clock())

    def _answer(self, request: CompletionRequest) -> Answer:
        """Give what reads the answer to a request."""
        return Answer(first_text=request.on_first_token)

    @abstractmethod
    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        """Send a request and read its answer. Raises UnansweredError or EngineError; has no deadline of its own."""

    async def _model(self, request: CompletionRequest) -> str:
        return request.model or self._wanted or self._served or str((await self._card())[0]["id"])

    async def _why_unanswered(self, error: UnansweredError) -> tuple[ErrorKind, str]:
        """Tell an engine that died in the middle of an answer from one that only broke off this answer."""
        if error.incomplete:
            try:
                await self._http.get(self.health_path, timeout_s=self._deadlines.recheck_s)
            except UnansweredError:
                return "reset", error.sentence
            return "broken", f"{error.sentence} The engine itself is still there."
        return _KINDS.get(error.state, "reset"), error.sentence

    async def _card(self) -> tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]]:
        """Give the card of the model to use, and those of its adapters."""
        reply = await self._get("/v1/models", key=True)
        what = f"{self._http.url} answers HTTP {reply.status} to /v1/models"
        if reply.status in (401, 403):
            raise EngineUnauthorized(f"{what}: the API key is missing or wrong; {KEY_ADVICE}.")
        if reply.status >= 500:
            raise EngineError(f"{what}: {snippet(reply.body)}")
        await self._must_be_own(None, reply)
        listed = cards(reply) or []
        base = [card for card in listed if not card.get("parent")]
        chosen = next((card for card in listed if card["id"] == self._wanted), None) if self._wanted else None
        if chosen is None and (self._wanted or not base):
            names = ", ".join(card["id"] for card in listed) or "nothing"
            raise ModelNotServed(
                f"{self._http.url} does not serve '{self._wanted or 'a base model'}'; it serves {names}. "
                f"Set WARMUP_MODEL to one of these{', or leave it empty for the first' if self._wanted and base else ''}."
            )
        return chosen or base[0], tuple(card for card in listed if card.get("parent"))

    async def _must_be_own(self, page: exposition.Exposition | None, models: Reply | None = None) -> None:
        """Raise NotAnEngine unless the answers look like this engine; asked once for each connection."""
        listed = models is None or cards(models) is not None
        behind = page is not None and page.front and self._strict
        if self._recognised and listed and not behind:
            return
        version = await self._get("/version") if self.has_version else None
        models = models or await self._get("/v1/models", key=True)
        seen = recognise(self._http.url, None if page is None else page.flavour, version, models, asked=self.name)
        if seen.engine is None or page is not None:
            # Whoever owns the listed models need not be asked for metrics, which some engines give away once only.
            page = page or exposition.read(text_of(await self._get(self.metrics_path)))
            seen = recognise(self._http.url, page.flavour, version, models, asked=self.name, front=page.front)
        if seen.engine != self.name:
            raise NotAnEngine(seen.sentence)
        if not listed:
            raise EngineError(f"{self._http.url} answers /v1/models with something that lists no models.")
        self._recognised = True

    async def _get(self, path: str, *, key: bool = False) -> Reply:
        try:
            return await self._http.get(path, timeout_s=self._deadlines.facts_s, key=key)
        except UnansweredError as error:
            raise typed(error) from error

    async def _quiet_get(self, path: str, timeout_s: float | None = None, *, key: bool = False) -> Reply | None:
        try:
            return await self._http.get(path, timeout_s=timeout_s or self._deadlines.facts_s, key=key)
        except UnansweredError:
            return None


def typed(error: UnansweredError) -> EngineError:
    """Give the error that stands for an answer that didn't come."""
    kinds: Mapping[str, type[EngineError]] = {
        "not_an_engine": NotAnEngine,
        "refused": EngineGone,
        "reset": EngineGone,
    }
    return kinds.get(error.state, EngineError)(error.sentence)


def text_of(reply: Reply | None) -> str:
    """Give the text of a 200 answer; empty for anything else."""
    return reply.body.decode("utf-8", "replace") if reply is not None and reply.status == 200 else ""
