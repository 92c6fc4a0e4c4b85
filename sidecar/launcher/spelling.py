"""One spelling for JSON that is about to become a digest, so that white space and order make no other one.

The sidecar has the same rule for what it can see (caches/spelling.py); a test compares both.
"""

from __future__ import annotations

import json
from typing import Any


class _Literal(str):
    """A number as it is written: 1, 1.0 and 1e0 stay three values."""


def canonical(text: str) -> str:
    """Spell a JSON object or list in one way; what is no JSON, or has a member twice, stays as it is given."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        found = json.loads(text, parse_int=_Literal, parse_float=_Literal, object_pairs_hook=_members)
        return _written(found)
    except (ValueError, RecursionError):
        return text


def _members(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member twice")
    return found


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return str(value) if isinstance(value, _Literal) else json.dumps(value)
