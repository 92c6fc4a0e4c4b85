"""Warms random engines with hidden kernels in virtual time, and computes what of a stated traffic mix is left to compile.

Figures and their targets are made in `bench_warmup.py`; tests use the same runs on fewer engines.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
from dataclasses import dataclass
from typing import Any

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.bursts import Burst
from sidecar.warmup.coverage import Coverage
from sidecar.warmup.planner import Plan, draw_burst, make_plan
from sidecar.warmup.profiles import Profile
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.fakes.kernel_batching import seconds_of, steps_of
from tests.fakes.kernel_engine import InProcessEngine, ModelWitness, VirtualLoop
from tests.fakes.kernel_model import KernelModel, Step

MAX_TOKENS, MAX_BATCH = 4096, 64
FACTS = EngineFacts(
    engine="vllm", version="0.32.0", model="m", max_model_len=8192, max_num_batched_tokens=MAX_TOKENS,
    max_num_seqs=MAX_BATCH, vocab_size=32000, block_size=16, kv_blocks=65536, chat=True,
)  # fmt: skip
#: The stated mix: lengths and concurrency even in their logarithm.
MIX = {
    "prompt_tokens": {"from": 8, "to": MAX_TOKENS},
    "output_tokens": {"from": 2, "to": 24},
    "concurrency": {"from": 1, "to": 32},
}
STEPS: list[dict[str, Any]] = [
    {"kind": "prefill", "tokens": [1, 2, 16, 17, 64, 256, 1024, "max_num_batched_tokens", "max_num_batched_tokens+1"]},
    {"kind": "prefill", "name": "concurrent prefill", "tokens": [128, 512], "concurrency": [2, 8, 17], "output_tokens": 8},
    {"kind": "decode", "batch": [1, 2, 4, 8, 16, 17, 32, "max_num_seqs"], "output_tokens": 12},
    {"kind": "mixed", "decodes": 8, "decode_output_tokens": 48, "prefill_tokens": [17, 512, 2048]},
    {"kind": "sampling", "features": ["greedy", "top_k", "top_p", "min_p", "seed"]},
    {"kind": "logprobs", "values": [0, 1, 5, 20]},
]  # fmt: skip
#: What a person would do by hand: each power of two once, alone, and as a batch.
POWERS: list[dict[str, Any]] = [
    {"kind": "prefill", "tokens": [1 << power for power in range(13)]},
    {"kind": "decode", "batch": [1 << power for power in range(7)]},
]
DRAWS = 300
#: Draws of the mix by which its share is computed, the same for all engines.
REFERENCE = 20_000
SAMPLED = 10_000


@dataclass(frozen=True)
class Reach:
    """What became of one engine. Shares from 0 to 1, of draws from the stated mix; durations in virtual seconds."""

    seed: int
    breakpoints: int
    result: WarmResult
    covered: float
    stalls: int
    bare_s: float = 0.0

    @property
    def claimed_wrongly(self) -> bool:
        """Say whether it was called converged, and more is left than the sentence admits."""
        risk = self.result.residual_risk
        return self.result.outcome == "converged" and (risk is None or 1 - self.covered > risk)

    @property
    def requests_each(self) -> float:
        """Give the requests of steps and search for each breakpoint and halving of the range."""
        return (self.result.requests) / (self.breakpoints * math.log2(MAX_TOKENS))


def profile(steps: list[dict[str, Any]] = STEPS, **fields: Any) -> Profile:
    """Make the profile that all engines are warmed with."""
    given = {
        "description": "random engines", "name": "random", "steps": steps, "mix": MIX,
        "converge": {"random_draws": DRAWS, "max_rounds": 20}, **fields,
    }  # fmt: skip
    return Profile.model_validate(given)


def plan(**fields: Any) -> Plan:
    """Fit that profile to the engines."""
    return make_plan(profile(**fields), FACTS)


def model(seed: int) -> KernelModel:
    """Draw an engine."""
    return KernelModel.drawn(seed, max_tokens=MAX_TOKENS, max_batch=MAX_BATCH)


def warm(engine_model: KernelModel, seed: int, coverage: Coverage | None = None, **fields: Any) -> WarmResult:
    """Warm one engine up, in virtual time. `fields` change the profile."""

    async def run() -> WarmResult:
        engine = InProcessEngine(engine_model, FACTS, random.Random(seed + 1))
        runner = WarmupRunner(
            engine, plan(**fields), ModelWitness(engine_model), WarmPolicy(budget_s=7200),
            asyncio.get_running_loop().time, random.Random(seed + 2), coverage=coverage,
        )  # fmt: skip
        return await runner.run()

    with asyncio.Runner(loop_factory=VirtualLoop) as loop:
        return loop.run(run())


def reach(seed: int, **fields: Any) -> Reach:
    """Warm a random engine up, then count what is left."""
    engine_model = model(seed)
    result = warm(engine_model, seed, **fields)
    covered = engine_model.covered([steps for _, steps in reference()])
    return Reach(seed, engine_model.breakpoints, result, covered, stalls(engine_model, random.Random(seed + 3)))


def by_powers(seed: int) -> Reach:
    """Warm the same engine by powers of two, once through."""
    unsearched = {"search": {"enabled": False}, "converge": {"random_draws": 0, "max_rounds": 1}}
    return reach(seed, steps=POWERS, **unsearched)


@functools.cache
def reference(draws: int = REFERENCE) -> tuple[tuple[int, frozenset[Step]], ...]:
    """Give so many draws from the stated mix, each as likely as another: its requests, and the steps they make."""
    rng, mix, found = random.Random(0), plan(), []
    for number in range(draws):
        burst = draw_burst(mix, rng, number)
        found.append((burst.requests, frozenset(_steps(burst, rng))))
    return tuple(found)


def stalls(engine_model: KernelModel, rng: random.Random, requests: int = SAMPLED) -> int:
    """Count the steps that compile while so many requests are drawn from the mix and served."""
    sent, found = 0, 0
    while sent < requests:
        count, steps = rng.choice(reference())
        sent += count
        found += sum(bool(engine_model.run(step)) for step in steps)
    return found


def bare_seconds(bursts: list[Burst]) -> float:
    """Give how long the steps of these bursts take alone, without a warm-up around them."""
    return sum(seconds_of(step) for burst in bursts for step in _steps(burst, random.Random(0)))


def _steps(burst: Burst, rng: random.Random) -> list[Step]:
    asks = [(ask.prompt_tokens, ask.output_tokens) for phase in burst.phases for ask in phase for _ in range(ask.count)]
    return steps_of(asks, MAX_TOKENS, MAX_BATCH, rng)
