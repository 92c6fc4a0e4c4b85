"""One spelling for options whose value is JSON, whichever way vLLM lets people write it.

Values are never computed with: two are one only where the engine's parser makes them one. Which options matter is decided
in `normalise`; the launcher has its own copy of `canonical` (launcher/spelling.py), because nothing of it may be imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# What vLLM 0.32 takes for a number behind a dotted option although it is no JSON: utils/argparse_utils.py,
# `human_readable_int` (2k, 80G), and what Python's int() takes (+7, 1_000).
_NUMBER = re.compile(r"\s*[+-]?\d[\d_]*(\.\d+)?[kKmMgGtT]?\s*")


class _Literal(str):
    """A number as it is written: 1, 1.0 and 1e0 stay three values."""

    __slots__ = ()


class _Unclear(ValueError):
    """The same member twice: which of them counts is the engine's business."""


def canonical(text: str) -> str:
    """Spell a JSON object or list in one way: order of members, white space, escapes.

    What is no JSON, or has a member twice, stays as it is given.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return _written(_read(text))
    except (ValueError, RecursionError):
        return text


def joined(given: Sequence[tuple[str, str]]) -> str | None:
    """Make one JSON object of dotted options, each a path (`pass_config.fuse`, `custom_ops+`) and a value.

    None where they contradict each other, and stay as they are given. Source: vLLM 0.32 utils/argparse_utils.py,
    `FlexibleArgumentParser.parse_args`.
    """
    found: dict[str, Any] = {}
    try:
        for path, text in given:
            value: Any = text.split(",") if path.endswith("+") else _value(text)
            for step in reversed(path.removesuffix("+").split(".")):
                value = {step: value}
            _merge(found, value)
        return _written(found)
    except (_Unclear, RecursionError):
        return None


def _read(text: str) -> Any:
    return json.loads(text, parse_int=_Literal, parse_float=_Literal, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Unclear
    return found


def _value(text: str) -> Any:
    try:
        return _read(text)
    except json.JSONDecodeError:
        return _Literal(text.strip()) if _NUMBER.fullmatch(text) else text


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        known = into.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        elif name in into:
            raise _Unclear
        else:
            into[name] = value


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return str(value) if isinstance(value, _Literal) else json.dumps(value)
