"""The JSON form of what crosses the process boundary: a frozen dataclass, checked field by field when it is read back.

Which messages there are is said in `messages` and `publish_messages`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints


class Message:
    """Give a frozen dataclass a JSON form that is checked when it is read back."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this message."""
        found: dict[str, Any] = _plain(self)
        return found

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read a message back; unknown fields are ignored. Raises ValueError with a sentence."""
        message = _decode(cls, data, cls.__name__)
        assert isinstance(message, cls)
        return message


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _decode(hint: Any, value: object, where: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_message(hint, value, where)
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal and value in inner:
        return value
    if origin in (Union, UnionType):
        return None if value is None else _decode(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(inner[0], item, where) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {str(name): _decode(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(value, where)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ValueError(f"{where} can't be {value!r:.80}.")


def _number(value: float, where: str) -> float:
    """Take what JSON in Python lets through and other readers of a status do not: no number, endless, too large."""
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{where} can't be {value!r:.80}.")
    return found


def _decode_message(cls: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object.")
    hints = get_type_hints(cls)
    given: dict[str, object] = {}
    for item in dataclasses.fields(cls):
        if item.name in value:
            given[item.name] = _decode(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no field {item.name}.")
    made: object = cls(**given)
    return made
