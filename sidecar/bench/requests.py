"""Requests of given lengths with prompts that no cache has seen, in the fields that the engine takes.

Knows nothing of when they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.bench.shapes import Shape
from sidecar.engines.protocol import Completion, CompletionRequest, Engine
from sidecar.errors import EngineError, EngineGone, EngineUnauthorized, ModelNotServed
from sidecar.warmup.prompts import PromptSource

#: Length of the one request before a load: the shortest that any engine takes without a special case. Tokens.
FIRST_TOKENS = 8
#: Token ids below this exist in every vocabulary that is in use, where the engine does not tell its size.
SAFE_VOCABULARY = 1000


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which fields beyond OpenAI's the engine takes.

    `salted`: a `cache_salt` keeps prompts apart in the prefix cache (vLLM since 0.9). `fields` go into every request.
    `note` is a sentence about what had to be left out.
    """

    salted: bool = True
    fields: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})
    note: str = ""


PLAIN = Dialect(
    False,
    {},
    "The engine takes neither cache_salt nor ignore_eos: answers may end before their number of tokens is reached.",
)


class RequestSource:
    """Makes one request after the other, each with `deadline_s` seconds."""

    def __init__(
        self, shapes: Iterator[Shape], prompts: PromptSource, model: str, dialect: Dialect, deadline_s: float
    ) -> None:
        self._shapes = shapes
        self._prompts = prompts
        self._model = model
        self._dialect = dialect
        self._deadline_s = deadline_s

    def next(self) -> CompletionRequest:
        """Make the next request."""
        return self.of(next(self._shapes), self._dialect)

    def of(self, shape: Shape, dialect: Dialect) -> CompletionRequest:
        """Make a request of one shape."""
        return CompletionRequest(
            prompt=self._prompts.tokens(shape.prompt_tokens),
            max_tokens=shape.output_tokens,
            temperature=shape.temperature,
            extra=dialect.fields,
            cache_salt=self._prompts.salt() if dialect.salted else None,
            deadline_s=self._deadline_s,
            model=self._model,
        )


async def try_one(engine: Engine, prompts: PromptSource, model: str, deadline_s: float) -> Dialect:
    """Send one tiny request, to see that the engine answers at all, and which fields it takes.

    Raises EngineUnauthorized, ModelNotServed, EngineGone or EngineError with what the engine said.
    """
    source = RequestSource(iter(()), prompts, model, Dialect(), deadline_s)
    refused: Completion | None = None
    for dialect in (Dialect(), PLAIN):
        answer = await engine.complete(source.of(Shape(FIRST_TOKENS, 1), dialect))
        if answer.ok:
            return dialect
        refused = refused or answer
        if answer.status not in (400, 422):
            raise _refusal(answer)
    assert refused is not None, "the loop has run"
    raise _refusal(refused)


def _refusal(answer: Completion) -> EngineError:
    said = f"The engine does not answer requests for text: {answer.error or 'no answer'}."
    if answer.error_kind == "unauthorized":
        return EngineUnauthorized(said)
    if answer.status == 404:
        return ModelNotServed(f"{said} It may serve another model or another task than generating text.")
    if answer.error_kind in ("refused", "reset"):
        return EngineGone(said)
    return EngineError(said)
