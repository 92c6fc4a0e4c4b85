"""Tell from a few answers whether something on a port is an engine, and which.

No requests are sent here; the client that asked hands over what it got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.engines.connection import Reply

#: Engines that are recognised so that the sentence can name them, and that no client exists for yet.
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


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


def recognise(url: str, flavour: str | None, version: Reply | None, models: Reply | None) -> Recognition:
    """Judge by the names of metrics (`flavour`), /version and /v1/models.

    vLLM alone answers /version with a JSON object that has just a version and lists models as owned by "vllm"
    (vllm/entrypoints/openai, 0.6 to 0.33). TensorRT-LLM has /version too, so metric names count first.
    """
    listed = cards(models)
    owners = {str(card.get("owned_by")) for card in listed or ()}
    locked = models is not None and models.status in (401, 403)
    versioned = "version" in (json_object(version) or {})
    if flavour == "vllm" or "vllm" in owners or (versioned and (listed or locked) and flavour is None):
        return Recognition("vllm", f"{url} is vLLM.")
    other = flavour or next((owner for owner in owners if owner in NAMES), None)
    if other is not None:
        return Recognition(
            None,
            f"{url} is {NAMES[other]}, which this version has no client for; it can drive vLLM. "
            "Without one the engine runs unwarmed.",
        )
    if listed is not None or locked:
        return Recognition(
            None,
            f"{url} speaks the OpenAI protocol and is not recognised as vLLM: if it is a router or a proxy, "
            "point WARMUP_ENGINE_URL at the engine's own port; if it is vLLM, set WARMUP_ENGINE=vllm.",
        )
    return Recognition(
        None,
        f"{url} answers in HTTP and is not an inference engine: it has neither a list of models nor vLLM's "
        "metrics. Point WARMUP_ENGINE_URL at the engine's port.",
    )
