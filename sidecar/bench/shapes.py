"""How long the requests of a load are: drawn from two ranges or from a profile's traffic mix, the same for a seed.

Makes no prompts and sends nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.errors import UsageError
from sidecar.warmup.planner import Plan, draw_burst
from sidecar.warmup.recorded import RecordedMix


@dataclass(frozen=True, slots=True)
class Shape:
    """One request: lengths in tokens."""

    prompt_tokens: int
    output_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """From so many tokens to so many."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Read `A:B` or `A`. Raises ValueError with a sentence."""
        first, colon, second = text.partition(":")
        if not first.isdecimal() or (colon and not second.isdecimal()):
            raise ValueError(f"'{text}' is not a range of tokens such as 64:2048, or one number")
        low, high = int(first), int(second or first)
        if not 1 <= low <= high:
            raise ValueError(f"'{text}' is not a range of tokens: 1 or more, the smaller number first")
        return cls(low, high)

    def draw(self, rng: random.Random) -> int:
        """Draw a length evenly in the logarithm, as lengths of real requests roughly are."""
        drawn = round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return min(self.high, max(self.low, drawn))

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}:{self.high}"


def from_ranges(prompt: Lengths, output: Lengths, max_model_len: int | None, seed: int) -> Iterator[Shape]:
    """Draw greedy requests for ever; prompts are cut so that the model's length holds prompt and output.

    Raises UsageError when not even the shortest request fits.
    """
    if max_model_len is not None and prompt.low + output.low > max_model_len:
        raise UsageError(
            f"Requests of {prompt.low} tokens with {output.low} more to generate don't fit into this model's "
            f"{max_model_len} tokens; give smaller --prompt-tokens or --output-tokens."
        )
    return _drawn(prompt, output, max_model_len, random.Random(seed))


def _drawn(prompt: Lengths, output: Lengths, longest: int | None, rng: random.Random) -> Iterator[Shape]:
    while True:
        asked, generated = prompt.draw(rng), output.draw(rng)
        if longest is not None:
            generated = min(generated, longest - prompt.low)
            asked = min(asked, longest - generated)
        yield Shape(asked, generated)


def from_profile(plan: Plan, seed: int) -> Iterator[Shape]:
    """Draw from the traffic mix of a fitted profile for ever; how many the mix sends at once does not matter."""
    if plan.users is not None:
        return _from_users(plan.users, plan, random.Random(seed))
    return _from_mix(plan, random.Random(seed))


def _from_users(users: RecordedMix, plan: Plan, rng: random.Random) -> Iterator[Shape]:
    """Draw lengths as users sent them; unlike warm-up's, outputs are as long as theirs."""
    longest, sampled = plan.limits.max_model_len, plan.profile.mix.sampled
    while True:
        generated = min(users.output_tokens.quantile(rng.random()), max(1, longest - 1))
        asked = min(users.prompt_tokens.quantile(rng.random()), max(1, longest - generated))
        yield Shape(asked, generated, 1.0 if rng.random() < sampled else 0.0)


def _from_mix(plan: Plan, rng: random.Random) -> Iterator[Shape]:
    number = 0
    while True:
        number += 1
        burst = draw_burst(plan, rng, number)
        for phase in burst.phases:
            for ask in phase:
                for _ in range(ask.count):
                    yield Shape(ask.prompt_tokens, ask.output_tokens, ask.temperature)
