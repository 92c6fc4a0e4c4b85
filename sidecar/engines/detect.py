"""Choose the client for an engine, and say in sentences what a port looks like from here.

Nothing engine-specific lives here; to add an engine, add its client and name it in `make_engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.config import Settings
from sidecar.engines.protocol import EMPTY, Engine, EngineFacts, Hints, Plain
from sidecar.engines.vllm import VllmEngine
from sidecar.errors import EngineError


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

    With `auto` the client refuses what answers and does not look like vLLM; with `vllm` it takes the word.
    """
    return VllmEngine(
        settings.engine_url,
        api_key=api_key,
        clock=clock,
        model=settings.model,
        strict=settings.engine == "auto",
        hints=hints,
    )


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
