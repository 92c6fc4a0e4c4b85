"""A plan as plain values, and what it may cost in time, without anything being sent.

How it is shown on a terminal is the business of the commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.warmup.bursts import Ask, Burst
from sidecar.warmup.planner import Plan, PlannedStep
from sidecar.warmup.recorded import quantiles

#: Tokens of prompts a second, of an 8B model with FP8 weights on one H200: 8192 tokens in 0.156 s and 30000 in 0.79 s,
#: 256 prompts of 128 in 0.67 s (h200_baseline, vLLM 0.25.1, 2026-11-29).
PREFILL_TOKENS_S = 45_000.0
#: Of a tiny model on two cores: 2048 tokens in 0.078 s (vllm_on_cpu, vLLM 0.32). A real one is slower by its size.
CPU_PREFILL_TOKENS_S = 26_000.0
#: One decode step, and what a request costs beside its tokens. Assumed: the measured time to the first token of 16 was
#: 0.017 s on that H200 and 0.011 s on those cores.
STEP_S = 0.012
REQUEST_S = 0.017
BASIS = "an 8B model with FP8 weights on one H200, measured; yours is faster or slower by its size"
CPU_BASIS = "a tiny model on two cores, measured; yours is slower by its size"


@dataclass(frozen=True)
class Estimate:
    """Seconds of one round on a warm engine, and what they were computed from."""

    round_s: float
    basis: str


def estimate(plan: Plan, *, cpu: bool = False, tokens_s: float | None = None) -> Estimate:
    """Estimate one round of a plan on an engine with complete caches, burst after burst; kernels come on top.

    `tokens_s`: tokens of prompts a second, where they are known better.
    """
    rate = tokens_s or (CPU_PREFILL_TOKENS_S if cpu else PREFILL_TOKENS_S)
    basis = f"{tokens_s:g} prompt tokens a second, as given" if tokens_s else CPU_BASIS if cpu else BASIS
    total = sum(_seconds(burst, rate) for step in plan.steps for burst in step.bursts)
    return Estimate(round(total, 1), basis)


def _seconds(burst: Burst, rate: float) -> float:
    phases = [
        REQUEST_S
        + sum(ask.count * (ask.prompt_tokens - ask.prefix_tokens) for ask in phase) / rate
        + max(ask.prefix_tokens for ask in phase) / rate
        + max(ask.output_tokens for ask in phase) * STEP_S
        for phase in burst.phases
    ]
    return sum(phases)


def outline(plan: Plan) -> dict[str, Any]:
    """Give everything of a plan as plain values: every burst with the shape of its requests."""
    return {
        "profile": plan.profile.name,
        "limits": dataclasses.asdict(plan.limits),
        "requests": plan.requests,
        "tokens": plan.tokens,
        "random_draws": plan.profile.converge.random_draws,
        "mix": _mix(plan),
        "unwarmed": plan.unwarmed,
        "notes": list(plan.notes),
        "not_applicable": list(plan.not_applicable),
        "steps": [_step(step) for step in plan.steps],
    }


def _mix(plan: Plan) -> dict[str, Any]:
    """Give what random draws follow: the profile's spans, or the quantiles of what users sent."""
    users = plan.users
    if users is None:
        return {"source": "profile", **plan.profile.mix.model_dump(mode="json", by_alias=True)}
    found = {name: quantiles(part) for name, part in users.parts.items()}
    source = {"source": "recorded", "pods": users.pods} if plan.recorded else {"source": "learned"}
    return {**source, "requests": round(users.requests), **found}


def _step(step: PlannedStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": step.kind,
        "requests": step.requests,
        "tokens": step.tokens,
        "bursts": [_burst(burst) for burst in step.bursts],
    }


def _burst(burst: Burst) -> dict[str, Any]:
    return {
        "key": burst.key,
        "requests": burst.requests,
        "tokens": burst.tokens,
        "concurrency": burst.concurrency,
        "then": burst.then,
        "phases": [[_ask(ask) for ask in phase] for phase in burst.phases],
    }


def _ask(ask: Ask) -> dict[str, Any]:
    """Give the fields of a shape that differ from their defaults, and sizes always."""
    found = {}
    for field in dataclasses.fields(ask):
        value = getattr(ask, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value != default or field.name in ("count", "prompt_tokens", "output_tokens"):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def sentence_of(ask: Ask) -> str:
    """Say what the requests of a shape are, beside their sizes; empty for plain greedy text."""
    found = []
    for name, value in _ask(ask).items():
        if name in ("count", "prompt_tokens", "output_tokens"):
            continue
        if name in ("messages", "text"):
            found.append("a conversation" if name == "messages" else "natural text")
        elif name == "fields":
            found += [_field(key, item) for key, item in value.items() if key != "ignore_eos"]
        elif name == "stream":
            found.append("not streamed")
        else:
            found.append(name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}")
    return ", ".join(found)


def _field(name: str, value: Any) -> str:
    shown = value if isinstance(value, int | float | str) else "…"
    return f"{name} {shown}"
