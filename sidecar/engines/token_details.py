"""What an answer tells of single tokens beside their text: ids, and log-probabilities of alternatives.

Only shapes of vLLM's answers are known here (vllm/entrypoints/openai/*/protocol.py, 0.10 to 0.33).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: How tokens are named when `return_tokens_as_token_ids` is asked for.
_NAMED = "token_id:"


def token_ids(found: object) -> tuple[int, ...] | None:
    """Read a list of token ids; None where there is none."""
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
        return None
    return tuple(found)


def prompt_logprobs(found: object) -> tuple[Mapping[int, float], ...] | None:
    """Read for each place of a prompt the log-probabilities by token id: of the token there, and of likelier ones."""
    if not isinstance(found, list):
        return None
    return tuple(_by_id(each) for each in found)


def alternatives(found: object) -> list[Mapping[int, float]]:
    """Read for each generated place the log-probabilities by token id; empty where tokens aren't told as ids."""
    if not isinstance(found, Mapping):
        return []
    places = found.get("top_logprobs")
    if isinstance(places, list):
        return [_by_name(each) for each in places]
    content = found.get("content")
    if not isinstance(content, list):
        return []
    return [_by_name(_of_chat(each)) for each in content]


def _of_chat(place: object) -> Mapping[str, object]:
    listed = place.get("top_logprobs") if isinstance(place, Mapping) else None
    if not isinstance(listed, list):
        return {}
    return {str(each.get("token")): each.get("logprob") for each in listed if isinstance(each, Mapping)}


def _by_name(found: object) -> Mapping[int, float]:
    if not isinstance(found, Mapping):
        return {}
    named = {str(name): value for name, value in found.items()}
    return {
        int(name.removeprefix(_NAMED)): _number(value)
        for name, value in named.items()
        if name.startswith(_NAMED) and name.removeprefix(_NAMED).isdecimal()
    }


def _by_id(found: object) -> Mapping[int, float]:
    if not isinstance(found, Mapping):
        return {}
    return {int(name): _number(_logprob(value)) for name, value in found.items() if str(name).isdecimal()}


def _logprob(value: Any) -> object:
    return value.get("logprob") if isinstance(value, Mapping) else value


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
