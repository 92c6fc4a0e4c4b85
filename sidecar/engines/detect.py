"""Choose the client for an engine, and say in sentences what a port looks like from here.

Nothing engine-specific lives here; to add an engine, add its file in `adapters/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sidecar.config import Settings
from sidecar.engines import exposition
from sidecar.engines.adapters import engines, of_name
from sidecar.engines.connection import Connection, UnansweredError
from sidecar.engines.declaration import Connect
from sidecar.engines.http_engine import text_of
from sidecar.engines.protocol import (
    EMPTY,
    Completion,
    CompletionRequest,
    Engine,
    EngineFacts,
    EngineStats,
    Health,
    Hints,
    Plain,
)
from sidecar.engines.recognition import cards, owner
from sidecar.errors import EngineError, NotAnEngine

#: Two questions that a model server answers from memory; beyond this it is slow, and the health check says so. Seconds.
QUESTION_S = 5.0


@dataclass(frozen=True, slots=True)
class Sighting(Plain):
    """What a port looks like: whether an engine that can be driven answers, and sentences for people."""

    usable: bool
    sentences: tuple[str, ...]
    facts: EngineFacts | None = None


def make_engine(
    settings: Settings,
    api_key: Callable[[], str | None],
    clock: Callable[[], float],
    hints: Hints = EMPTY,
) -> Engine:
    """Make the client for the engine that the settings name; sends nothing.

    With `auto` it is chosen by the engine's command line, else by what answers, and whatever looks like none is refused;
    with a name the word is taken.
    """
    connect = Connect(
        settings.engine_url,
        api_key,
        clock,
        model=settings.model,
        strict=settings.engine == "auto",
        hints=hints,
        consume_metrics=settings.consume_metrics,
    )
    return AnyEngine(connect) if settings.engine == "auto" else of_name(settings.engine).make(connect)


class AnyEngine:
    """The client of whichever engine is there: chosen by hints or at the first answer, and anew when another one came."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._engine = self._made(None)
        self._chosen = False
        self._left: list[Engine] = []
        self.use_hints(connect.hints)

    @property
    def name(self) -> str:
        """Name the engine that is driven now."""
        return self._engine.name

    @name.setter
    def name(self, value: str) -> None:
        raise AttributeError(f"the engine is chosen by what answers, not set to {value}")

    def _made(self, name: str | None) -> Engine:
        return of_name(name).make(self._connect)

    def use_hints(self, hints: Hints) -> None:
        """Take facts from outside; a command line says which engine it is before anything answers."""
        self._connect = replace(self._connect, hints=hints)
        told = hints.get("engine")
        if told is not None and told.value in engines():
            self._chosen = True
            if told.value != self._engine.name:
                self._left.append(self._engine)
                self._engine = self._made(str(told.value))
        self._engine.use_hints(hints)

    async def close(self) -> None:
        """Close all connections to the engine."""
        for engine in (*self._left, self._engine):
            await engine.close()

    async def health(self) -> Health:
        """Ask the chosen client; before one is chosen, what answers is asked what it is."""
        await self._choose()
        found = await self._engine.health()
        if found.state == "not_an_engine":
            self._chosen = False
        return found

    async def facts(self) -> EngineFacts:
        """Ask the chosen client. Raises as it does."""
        await self._choose()
        try:
            return await self._engine.facts()
        except NotAnEngine:
            self._chosen = "engine" in self._connect.hints
            raise

    async def adapters(self) -> tuple[str, ...]:
        """Ask the chosen client. Raises as it does."""
        await self._choose()
        return await self._engine.adapters()

    async def stats(self) -> EngineStats:
        """Ask the chosen client. Raises as it does."""
        await self._choose()
        try:
            return await self._engine.stats()
        except NotAnEngine:
            self._chosen = "engine" in self._connect.hints
            raise

    async def complete(self, request: CompletionRequest) -> Completion:
        """Send one request through the chosen client; never raises for what the engine does."""
        await self._choose()
        return await self._engine.complete(request)

    async def _choose(self) -> None:
        if self._chosen:
            return
        found = await recognised(self._connect)
        if found is None:
            return
        self._chosen = True
        if found != self._engine.name:
            await self._engine.close()
            self._engine = self._made(found)


async def recognised(connect: Connect) -> str | None:
    """Ask a port which engine it is, without work for it and without reading what others may want; None: unknown."""
    http = Connection(connect.url, connect.api_key)
    try:
        models = await http.get("/v1/models", timeout_s=QUESTION_S, key=True)
        if (found := owner(models)) is not None:
            return found
        if models.status in (401, 403):
            for name, engine in engines().items():
                if engine.mark and (await http.get(engine.mark, timeout_s=QUESTION_S)).status in (200, 503):
                    return name
        page = exposition.read(text_of(await http.get("/metrics", timeout_s=QUESTION_S)))
    except UnansweredError:
        return None
    finally:
        await http.close()
    if page.front:
        return None
    return "dynamo" if page.around and cards(models) is None else page.flavour


async def look(engine: Engine) -> Sighting:
    """Ask an engine for health, facts and metrics once each; never raises for what the engine does."""
    health = await engine.health()
    if health.state != "up":
        return Sighting(False, (health.detail,))
    try:
        facts = await engine.facts()
        stats = await engine.stats()
    except EngineError as error:
        return Sighting(False, (health.detail, str(error)))
    version = f" {facts.version}" if facts.version else ""
    sentences = [f"It is {facts.engine}{version} and serves {facts.model}.", stats.missing]
    return Sighting(True, (health.detail, *filter(None, sentences)), facts)
