"""Tell from a few answers whether something on a port is an engine, and which.

No requests are sent here; the client that asked hands over what it got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.engines.connection import Reply


@dataclass(frozen=True, slots=True)
class Recognition:
    """Which engine it is (None: none that can be driven), and a sentence that says what to do otherwise."""

    engine: str | None
    sentence: str


def json_object(reply: Reply | None) -> Mapping[str, Any] | None:
    """Give the JSON object of a 200 answer, or None for anything else."""
    if reply is None or reply.status != 200:
        return None
    try:
        content = json.loads(reply.body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, Mapping) else None


def cards(reply: Reply | None) -> list[Mapping[str, Any]] | None:
    """Give the model cards of an answer of /v1/models, or None when it isn't such an answer."""
    content = json_object(reply)
    data = content.get("data") if content is not None else None
    if not isinstance(data, list):
        return None
    return [card for card in data if isinstance(card, Mapping) and isinstance(card.get("id"), str)]


def owner(models: Reply | None) -> str | None:
    """Give the engine that owns a listed model; None where no card names one."""
    from sidecar.engines.adapters import engines

    owners = {str(card.get("owned_by")) for card in cards(models) or ()}
    return next((name for name, engine in engines().items() if owners & set(engine.owners)), None)


def recognise(
    url: str,
    flavour: str | None,
    version: Reply | None,
    models: Reply | None,
    *,
    asked: str = "vllm",
    front: str = "",
) -> Recognition:
    """Judge by the names of metrics (`flavour`), /version and /v1/models what a client of `asked` talks to.

    Cards name their engine as owner (vllm/entrypoints/openai, 0.6 to 0.33; sglang srt/entrypoints/openai/protocol.py,
    0.5; tensorrt_llm/serve/openai_protocol.py, 1.x). vLLM alone answers /version with a JSON object that has just a
    version while its models are locked; TensorRT-LLM has /version too, so owners and metric names count first.
    `front` names what stands in front of engines: whatever it repeats of them, it is none.
    """
    from sidecar.engines.adapters import USUAL, of_name

    title = of_name(asked).title
    if front:
        return Recognition(
            None,
            f"This is not the engine: {url} is {front}, and what is sent there may be worked on by any engine behind it. "
            "Point WARMUP_ENGINE_URL at the engine's own port in this pod.",
        )
    listed = cards(models)
    locked = models is not None and models.status in (401, 403)
    versioned = "version" in (json_object(version) or {})
    found = flavour or owner(models)
    if found is None and versioned and (listed or locked):
        found = USUAL
    if found == asked:
        return Recognition(found, f"{url} is {title}.")
    if found is not None:
        return Recognition(
            found,
            f"{url} is {of_name(found).title} and not {title}: set WARMUP_ENGINE={found}, or auto.",
        )
    return _unknown(url, title, asked, listed is not None or locked)


def _unknown(url: str, title: str, asked: str, open_ai: bool) -> Recognition:
    if open_ai:
        return Recognition(
            None,
            f"{url} speaks the OpenAI protocol and is not recognised as {title}: if it is a router or a proxy, "
            f"point WARMUP_ENGINE_URL at the engine's own port; if it is {title}, set WARMUP_ENGINE={asked}.",
        )
    return Recognition(
        None,
        f"{url} answers in HTTP and is not an inference engine: it has neither a list of models nor {title}'s "
        "metrics. Point WARMUP_ENGINE_URL at the engine's port.",
    )
