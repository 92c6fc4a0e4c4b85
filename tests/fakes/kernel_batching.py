"""Continuous batching of a scripted engine: which sequences share a step, and how long a step takes.

No clock runs here: `kernel_engine.py` lets steps take their time, virtual or real.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.fakes.kernel_model import Step

#: A step costs this much, and each of its tokens that: about an 8B model on an H200 (55,000 tokens/s). Seconds.
STEP_S, TOKEN_S = 0.004, 0.000018
#: Requests of one burst arrive within this time, so that nobody chooses which of them share a step. Seconds.
SPREAD_S = 0.002


@dataclass(eq=False)
class Running:
    """One request: tokens of its prompt still to be read, and of its output still to be made."""

    prompt: int
    output: int
    features: tuple[str, ...] = ()
    on_token: Callable[[], None] = lambda: None

    @property
    def ended(self) -> bool:
        """Say whether all of its output was made."""
        return self.output <= 0


@dataclass
class Batching:
    """Fills steps as vLLM does: running sequences first, then waiting ones, prompts in chunks."""

    max_tokens: int
    max_sequences: int
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)

    def add(self, one: Running) -> None:
        """Take a request in."""
        self.waiting.append(one)

    def step(self) -> tuple[Step, tuple[str, ...]] | None:
        """Run one step and give its sizes, with the features in it; None when there is nothing to do."""
        left, tokens, reads = self.max_tokens, 0, 0
        in_step: list[Running] = []
        for one in self.running:
            share = min(left, one.prompt) if one.prompt else min(left, 1)
            if share:
                reads += self._take(one, share, in_step)
                left, tokens = left - share, tokens + share
        while left and self.waiting and len(self.running) < self.max_sequences:
            one = self.waiting.popleft()
            self.running.append(one)
            share = min(left, one.prompt)
            reads += self._take(one, share, in_step)
            left, tokens = left - share, tokens + share
        if not in_step:
            return None
        features = tuple(dict.fromkeys(name for one in in_step for name in one.features))
        return Step(tokens, len(in_step), reads == 0), features

    def settle(self) -> None:
        """Hand out the tokens of the step just run, and let go of what has ended."""
        for one in self.running:
            if not one.prompt and one.output > 0 and one in self._made:
                one.output -= 1
                one.on_token()
        self.running = [one for one in self.running if not one.ended]
        self._made = set()

    _made: set[Running] = field(default_factory=set)

    def _take(self, one: Running, share: int, in_step: list[Running]) -> bool:
        reads = one.prompt > 0
        one.prompt = max(0, one.prompt - share) if reads else 0
        if not one.prompt:
            self._made.add(one)
        in_step.append(one)
        return reads


def seconds_of(step: Step) -> float:
    """Give how long a step takes when nothing is compiled."""
    return STEP_S + TOKEN_S * step.tokens


def arrival_s(rng: random.Random) -> float:
    """Draw when a request of a burst reaches the scheduler: half of them at once, the others within `SPREAD_S`."""
    return 0.0 if rng.random() < 0.5 else rng.random() * SPREAD_S


def steps_of(
    requests: Iterable[tuple[int, int]], max_tokens: int, max_sequences: int, rng: random.Random
) -> list[Step]:
    """Give all steps of a burst of requests (prompt, output) that reaches an idle engine."""
    arriving = deque(sorted((arrival_s(rng), prompt, output) for prompt, output in requests))
    batching, found, now = Batching(max_tokens, max_sequences), list[Step](), 0.0
    while True:
        while arriving and arriving[0][0] <= now:
            _, prompt, output = arriving.popleft()
            batching.add(Running(prompt, output))
        made = batching.step()
        if made is not None:
            found.append(made[0])
            now += seconds_of(made[0])
            batching.settle()
        elif arriving:
            now = arriving[0][0]
        else:
            return found
