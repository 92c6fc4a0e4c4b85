"""What may be sent to an engine that does half of the work only: prefill or decode, apart from each other.

Knows roles and kinds of steps; peers and transfers of KV caches are no business of warm-up.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.engines.adapters import of_name
from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.asks import OtherAsk
from sidecar.warmup.bursts import Ask, Burst

UNWARMED = "unwarmed: no safe local payload for this role"
#: Kinds of steps that are about generating, which an engine of role prefill leaves to others.
NOT_FOR_PREFILL = ("decode", "mixed", "speculative")


def unwarmed(facts: EngineFacts) -> str:
    """Say why nothing can be sent to an engine of this role; empty where something can. Each engine declares it."""
    why = of_name(facts.engine).unwarmed(facts)
    return f"{why}; {UNWARMED}." if why else ""


def unchecked(facts: EngineFacts) -> str:
    """Say why the output of this engine tells nothing about it; empty where it does."""
    why = of_name(facts.engine).unchecked(facts)
    return unwarmed(facts) or (f"{why}." if why else "")


def for_role(burst: Burst, role: str | None) -> Burst:
    """Fit a burst to the role: a prefill engine is asked for one token, since it never decodes live traffic.

    Nothing in a request says that its KV cache goes elsewhere: blocks that nobody fetches stay pinned for minutes.
    """
    if role != "prefill":
        return burst
    return replace(burst, phases=tuple(tuple(_one_token(ask) for ask in phase) for phase in burst.phases))


def _one_token(ask: Ask) -> Ask:
    if isinstance(ask, OtherAsk) and ask.work is not None:
        return ask
    fields = {name: value for name, value in ask.fields.items() if name != "min_tokens"}
    return replace(ask, output_tokens=1, fields=fields)
