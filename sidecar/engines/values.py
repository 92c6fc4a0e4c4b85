"""Read single values out of answers that may hold anything, and collect facts with their sources.

Knows no engine and no endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.engines.protocol import Hint


@dataclass(slots=True)
class Gathered:
    """Facts by field name; the first source that knows a fact wins."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def offer(self, name: str, value: Any, source: str) -> None:
        """Take a fact unless it is None or already known."""
        if value is not None and name not in self.values:
            self.values[name], self.sources[name] = value, source

    def offer_hint(self, name: str, hint: Hint | None, wanted: type) -> None:
        """Take a hint that has the type of the fact."""
        if hint is not None and isinstance(hint.value, wanted) and isinstance(hint.value, bool) == (wanted is bool):
            self.offer(name, hint.value, hint.source)


def mapping(value: object) -> Mapping[str, Any]:
    """Give a mapping; empty when it isn't one."""
    return value if isinstance(value, Mapping) else {}


def text(value: object) -> str | None:
    """Give a text; None when it isn't one, or stands for nothing."""
    return value if isinstance(value, str) and value not in ("", "None") else None


def whole(value: object) -> int | None:
    """Read a positive whole number, also from a label's text; anything else is unknown."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if number > 0 else None


def connectors(transfer: object) -> tuple[str, ...] | None:
    """Name what moves KV caches, from a KVTransferConfig (vllm/config/kv_transfer.py); MultiConnector holds several."""
    found = mapping(transfer)
    name = text(found.get("kv_connector"))
    if name is None:
        return None
    inner = mapping(found.get("kv_connector_extra_config")).get("connectors")
    several = [each for one in inner for each in connectors(one) or ()] if isinstance(inner, list) else []
    return tuple(several) if name == "MultiConnector" and several else (name,)
