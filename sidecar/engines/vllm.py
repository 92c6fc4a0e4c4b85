"""The client of vLLM: what its endpoints are called and what their answers mean.

Connections are opened in `connection.py`, requests for text are read in `generation.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.engines import abilities, exposition, server_facts
from sidecar.engines.connection import Connection, Reply, UnansweredError
from sidecar.engines.generation import KEY_ADVICE, body_of, completion_of, converse
from sidecar.engines.protocol import (
    EMPTY,
    Completion,
    CompletionRequest,
    EngineFacts,
    EngineStats,
    ErrorKind,
    Health,
    HealthState,
    Hints,
)
from sidecar.engines.recognition import cards, json_object, recognise
from sidecar.engines.server_facts import Answers
from sidecar.engines.stream import Answer, snippet
from sidecar.engines.work import do_work, rank_header
from sidecar.errors import EngineError, EngineGone, EngineUnauthorized, ModelNotServed, NotAnEngine

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


class VllmEngine:
    """A client of one vLLM server, of any version from 0.6 to 0.33.

    `api_key` gives the key or None whenever a request needs it and never raises, `clock` monotonic seconds,
    `model` the served name to use (empty: the first that is no adapter). With `strict`, what does not look
    like vLLM is refused.
    """

    name = "vllm"

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

    def use_hints(self, hints: Hints) -> None:
        """Take facts from outside; they count from the next call of `facts`."""
        self._hints = hints

    async def close(self) -> None:
        """Close all connections to the engine."""
        await self._http.close()

    async def health(self) -> Health:
        """Ask /health over the kept connection.

        503 means that the engine's core has died (vllm/entrypoints/serve/instrumentator/health.py); while
        vLLM loads, its port refuses connections. A frozen or sleeping engine answers 200.
        """
        started = self._clock()
        try:
            reply = await self._http.get("/health", timeout_s=self._deadlines.health_s, kept=True)
        except UnansweredError as error:
            return Health(error.state, None, self._clock() - started, error.sentence)
        if reply.new_connection:
            self._recognised = not self._strict
        state, detail = _judge_health(self._http.url, reply.status)
        return Health(state, reply.status, self._clock() - started, detail, reply.new_connection)

    async def adapters(self) -> tuple[str, ...]:
        """Ask /v1/models which adapters there are now: they can be loaded while the engine serves."""
        return tuple(str(card["id"]) for card in (await self._card())[1])

    async def stats(self) -> EngineStats:
        """Read /metrics once. Raises NotAnEngine, or EngineError when there is no answer for now."""
        try:
            reply = await self._http.get("/metrics", timeout_s=self._deadlines.metrics_s)
        except UnansweredError as error:
            raise _typed(error) from error
        if reply.status >= 500:
            raise EngineError(f"{self._http.url} answers HTTP {reply.status} to /metrics.")
        page = exposition.read(_text(reply))
        if page.flavour != "vllm":
            await self._must_be_vllm(page.flavour)
        if reply.status != 200:
            what = f"The engine answers HTTP {reply.status} to /metrics"
            return EngineStats(missing=f"{what}, so its load and stalls can't be seen.")
        return exposition.statistics(page)

    async def facts(self) -> EngineFacts:
        """Ask /v1/models, /version, /metrics, /server_info, /tokenize and which endpoints there are.

        Nothing of it is work for the GPU. Raises NotAnEngine, EngineUnauthorized, ModelNotServed or EngineError.
        """
        card, adapters = await self._card()
        patience = self._deadlines.facts_s
        version, page, info, chat, tasks = await asyncio.gather(
            self._quiet_get("/version"),
            self._quiet_get("/metrics"),
            self._quiet_get("/server_info?config_format=json", self._server_info_deadline()),
            abilities.has_chat(self._http, card["id"], patience),
            abilities.tasks_of(self._http, patience),
        )
        root = card.get("root") if isinstance(card.get("root"), str) else None
        config, lora = await asyncio.to_thread(server_facts.read_local, root, adapters)
        images, sounds = await self._senses(card["id"], config or {}) if chat else (None, None)
        self._served = card["id"]
        return server_facts.gather(
            Answers(
                card=card,
                adapters=tuple(each["id"] for each in adapters),
                adapter_ranks=lora,
                version=json_object(version) or {},
                metrics=exposition.read(_text(page)),
                server_info=json_object(info) or {},
                model_config=config or {},
                chat=chat,
                images=images,
                sounds=sounds,
                tasks=tasks,
            ),
            self._hints,
        )

    async def _senses(self, model: str, config: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
        """Say whether messages may hold pictures, and recordings; the engine is asked where its model's files don't tell.

        vLLM 0.25.1 answers the question for a model of text with a traceback in its log (seen on an H200).
        """
        if server_facts.reads_text_alone(config):
            return False, False
        patience = self._deadlines.facts_s
        images, sounds = await asyncio.gather(
            abilities.has_images(self._http, model, patience), abilities.has_sounds(self._http, model, patience)
        )
        return images, sounds

    async def complete(self, request: CompletionRequest) -> Completion:
        """Send one request to /v1/completions, to /v1/chat/completions when it has messages, or where its work is done.

        Never raises for what the engine does. Cancelling it closes the connection; vLLM then aborts the work.
        """
        started = self._clock()
        answer = Answer(first_text=request.on_first_token)
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

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        model = request.model or self._wanted or self._served or (await self._card())[0]["id"]
        if request.work is not None:
            await do_work(self._http, request, request.work, model, answer)
            return
        path = "/v1/completions" if request.messages is None else "/v1/chat/completions"
        await converse(self._http, path, body_of(request, model), answer, self._clock, rank_header(request))

    async def _why_unanswered(self, error: UnansweredError) -> tuple[ErrorKind, str]:
        """Tell an engine that died in the middle of an answer from one that only broke off this answer."""
        if error.incomplete:
            try:
                await self._http.get("/health", timeout_s=self._deadlines.recheck_s)
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
        await self._must_be_vllm(None, reply)
        listed = cards(reply) or []
        base = [card for card in listed if not card.get("parent")]
        chosen = next((card for card in listed if card["id"] == self._wanted), None) if self._wanted else None
        if chosen is None and (self._wanted or not base):
            names = ", ".join(card["id"] for card in listed) or "nothing"
            raise ModelNotServed(
                f"{self._http.url} does not serve '{self._wanted or 'a base model'}'; it serves {names}. "
                "Set WARMUP_MODEL to one of these, or leave it empty for the first."
            )
        return chosen or base[0], tuple(card for card in listed if card.get("parent"))

    async def _must_be_vllm(self, flavour: str | None, models: Reply | None = None) -> None:
        """Raise NotAnEngine unless the answers look like vLLM; asked once for each connection."""
        listed = models is None or cards(models) is not None
        if self._recognised and listed:
            return
        version = await self._get("/version")
        models = models or await self._get("/v1/models", key=True)
        if flavour is None:
            flavour = exposition.read(_text(await self._get("/metrics"))).flavour
        seen = recognise(self._http.url, flavour, version, models)
        if seen.engine is None:
            raise NotAnEngine(seen.sentence)
        if not listed:
            raise EngineError(f"{self._http.url} answers /v1/models with something that lists no models.")
        self._recognised = True

    def _server_info_deadline(self) -> float:
        return self._deadlines.server_info_s if self._hints else self._deadlines.facts_s

    async def _get(self, path: str, *, key: bool = False) -> Reply:
        try:
            return await self._http.get(path, timeout_s=self._deadlines.facts_s, key=key)
        except UnansweredError as error:
            raise _typed(error) from error

    async def _quiet_get(self, path: str, timeout_s: float | None = None) -> Reply | None:
        try:
            return await self._http.get(path, timeout_s=timeout_s or self._deadlines.facts_s)
        except UnansweredError:
            return None


def _judge_health(url: str, status: int) -> tuple[HealthState, str]:
    if status == 200:
        return "up", "The engine answers /health."
    if status >= 500:
        return "unhealthy", f"The engine answers HTTP {status} to /health: its core has died or isn't up yet."
    return "not_an_engine", (
        f"{url} answers HTTP {status} to /health, which no vLLM does; point WARMUP_ENGINE_URL at the engine's own port."
    )


def _typed(error: UnansweredError) -> EngineError:
    kinds: Mapping[str, type[EngineError]] = {
        "not_an_engine": NotAnEngine,
        "refused": EngineGone,
        "reset": EngineGone,
    }
    return kinds.get(error.state, EngineError)(error.sentence)


def _text(reply: Reply | None) -> str:
    return reply.body.decode("utf-8", "replace") if reply is not None and reply.status == 200 else ""
