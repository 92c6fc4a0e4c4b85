"""Which GPUs of a machine the engine sees, where they are not all alike.

No key is computed here (`fingerprint`), and no GPU is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def gpus(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Give the GPUs that count: all, or of unlike ones those that the engine sees, numbered as it numbers them."""
    found = _all(facts)
    named = _named(facts, found)
    return found if named is None else [{**one, "index": index} for index, one in enumerate(named)]


def unclear(facts: Mapping[str, Any]) -> str | None:
    """Give the list of visible devices where GPUs are unlike and it does not say for certain which it names."""
    found = _all(facts)
    given = _list(facts)
    return given if given is not None and _are_unlike(found) and _named(facts, found) is None else None


def _all(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = facts.get("gpus")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _are_unlike(found: Sequence[Mapping[str, Any]]) -> bool:
    return len({(str(one.get("name")), str(one.get("sm") or "")) for one in found}) > 1


def _environment(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    found = facts.get("environment")
    return found if isinstance(found, Mapping) else {}


def _list(facts: Mapping[str, Any]) -> str | None:
    given = _environment(facts)
    return next((str(given[name]) for name in _LISTS if name in given), None)


def _named(facts: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Resolve the list of visible devices; None when there is none, all are alike, or it is not certain.

    An index counts by bus only with CUDA_DEVICE_ORDER=PCI_BUS_ID, and the fastest come first else (CUDA programming
    guide, environment variables). The launcher lists GPUs by bus.
    """
    given = _list(facts)
    if given is None or not _are_unlike(found):
        return None
    by_bus = str(_environment(facts).get("CUDA_DEVICE_ORDER", "")) == "PCI_BUS_ID"
    named = []
    for word in (word.strip() for word in given.split(",")):
        if word.isdecimal():
            which = [one for at, one in enumerate(found) if by_bus and str(one.get("index", at)) == str(int(word))]
        else:
            # CUDA takes the beginning of an identifier, as long as it is one GPU's.
            which = [one for one in found if len(word) > 4 and str(one.get("uuid") or "").startswith(word)]
        if len(which) != 1 or which[0] in named:
            return None
        named += which
    return named
