"""What is sent at once: a burst of requests, described without their prompts, so that a plan stays small.

Prompts are made in `prompts.py` when a burst is sent; sending is `traffic.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: When the next phase of a burst starts: when all of the phase before have shown a token, or have ended.
Then = Literal["after_first_token", "after_completion"]


@dataclass(frozen=True, slots=True)
class Ask:
    """`count` requests of one shape. Lengths in tokens.

    The first `prefix_tokens` of the prompt are the same for the whole burst. `text` or `messages` take the
    place of token ids; `prompt_tokens` is then an estimate. `fields` go into the request as they are.
    """

    count: int
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    temperature: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    stream: bool = True

    @property
    def tokens(self) -> int:
        """Count the tokens all requests of this shape hold at most."""
        return self.count * (self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that are in flight together, in one phase or in several; `key` is unique within its step."""

    key: str
    phases: tuple[tuple[Ask, ...], ...]
    then: Then = "after_completion"

    @property
    def requests(self) -> int:
        """Count the requests of all phases."""
        return sum(ask.count for phase in self.phases for ask in phase)

    @property
    def concurrency(self) -> int:
        """Count the requests in flight at the busiest time."""
        phases = [sum(ask.count for ask in phase) for phase in self.phases]
        return sum(phases) if self.then == "after_first_token" else max(phases)

    @property
    def tokens(self) -> int:
        """Count the tokens of all requests, prompts and outputs; small bursts are sent before large ones."""
        return sum(ask.tokens for phase in self.phases for ask in phase)

    @property
    def longest_prompt(self) -> int:
        """Give the length of the longest prompt in tokens."""
        return max(ask.prompt_tokens for phase in self.phases for ask in phase)


def single(key: str, *asks: Ask) -> Burst:
    """Make a burst of one phase."""
    return Burst(key, (tuple(asks),))
