"""What may be sent to an engine that does half of the work only: prefill or decode, apart from each other.

Knows roles and kinds of steps; peers and transfers of KV caches are no business of warm-up.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.asks import OtherAsk
from sidecar.warmup.bursts import Ask, Burst

UNWARMED = "unwarmed: no safe local payload for this role"
#: Kinds of steps that are about generating, which an engine of role prefill leaves to others.
NOT_FOR_PREFILL = ("decode", "mixed", "speculative")
#: With these a request without transfer parameters is worked on where it arrives and leaves nothing pinned: their
#: schedulers return at once when `kv_transfer_params` is missing (vllm/distributed/kv_transfer/kv_connector/v1/nixl
#: and mooncake, 0.32), or keep KV caches without a peer. Others read a peer's address out of every request, and end
#: the engine without one, so nothing is sent where one of those is at work.
LOCAL_WITHOUT_PARAMETERS = (
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "MooncakeConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
)


def unwarmed(facts: EngineFacts) -> str:
    """Say why nothing can be sent to an engine of this role; empty where something can."""
    if facts.role in (None, "both"):
        return ""
    known = facts.kv_connectors and all(name in LOCAL_WITHOUT_PARAMETERS for name in facts.kv_connectors)
    if facts.engine == "vllm" and known:
        return ""
    through = f" through {' and '.join(facts.kv_connectors)}" if facts.kv_connectors else ""
    return f"The engine's role is {facts.role}{through}; {UNWARMED}."


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
