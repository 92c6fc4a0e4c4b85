"""Sampling features by name, and the request fields that switch each of them on.

Declared once here; profiles refer to the names, nothing else writes these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

SamplingFeature = Literal[
    "greedy",
    "temperature",
    "top_p",
    "top_k",
    "top_p_top_k",
    "min_p",
    "penalties",
    "seed",
    "logit_bias",
    "min_tokens",
    "stop",
    "n",
    "bad_words",
    "combined",
]
FEATURES: tuple[SamplingFeature, ...] = get_args(SamplingFeature)

#: Fields of vLLM's completion request (vllm/entrypoints/openai/completion/protocol.py, 0.33). Every sampled
#: one has temperature 1, since the engine skips the sampler's filters for greedy requests.
_FIELDS: Mapping[SamplingFeature, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "top_p_top_k": {"temperature": 1.0, "top_p": 0.9, "top_k": 20},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {
        "temperature": 1.0,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
    "seed": {"temperature": 1.0, "seed": 7},
    "logit_bias": {"temperature": 1.0, "logit_bias": {"100": 2.0, "101": -2.0}},
    "min_tokens": {"temperature": 1.0, "min_tokens": 2, "ignore_eos": False},
    "stop": {"temperature": 1.0, "stop": ["\n\n\n\n"], "ignore_eos": False},
    "n": {"temperature": 1.0, "n": 2},
    "bad_words": {"temperature": 1.0, "bad_words": ["warmup"]},
    # A seed makes the engine filter by itself instead of in one fused kernel (vllm/v1/sample/ops/topk_topp_sampler.py).
    "combined": {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7},
}


def fields_of(feature: SamplingFeature) -> Mapping[str, Any]:
    """Give the request fields of a feature, `temperature` among them."""
    return _FIELDS[feature]


def json_fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask for output that follows a JSON schema, in the spelling of all vLLM versions and of others."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "warmup", "schema": dict(schema)}},
        "ignore_eos": False,
    }


def regex_fields(pattern: str, version: str | None) -> Mapping[str, Any]:
    """Ask for output that matches a regular expression.

    `structured_outputs` is the field since vLLM 0.11; before, it was `guided_regex`, which 0.12 removed.
    """
    if _older_than(version, (0, 11)):
        return {"guided_regex": pattern, "ignore_eos": False}
    return {"structured_outputs": {"regex": pattern}, "ignore_eos": False}


def _older_than(version: str | None, limit: tuple[int, int]) -> bool:
    numbers = (version or "").split(".")[:2]
    if len(numbers) < 2 or not all(each.isdigit() for each in numbers):
        return False
    return (int(numbers[0]), int(numbers[1])) < limit
