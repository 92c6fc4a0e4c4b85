"""The difference of two JSON values as JSON Patch (RFC 6902).

Nothing about Kubernetes is known here.
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def difference(before: object, after: object, path: str = "") -> list[Operation]:
    """List the operations that make `after` of `before`.

    Lists that only grew at their end get the new items appended; other lists are compared item by item where
    they are equally long, else replaced.
    """
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        return _of_objects(before, after, path)
    if isinstance(before, list) and isinstance(after, list) and len(after) >= len(before) > 0:
        return _of_lists(before, after, path)
    return [{"op": "replace", "path": path, "value": after}]


def _of_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> list[Operation]:
    found: list[Operation] = []
    for name in before:
        if name not in after:
            found.append({"op": "remove", "path": f"{path}/{escaped(name)}"})
    for name, value in after.items():
        place = f"{path}/{escaped(name)}"
        if name in before:
            found += difference(before[name], value, place)
        else:
            found.append({"op": "add", "path": place, "value": value})
    return found


def _of_lists(before: list[Any], after: list[Any], path: str) -> list[Operation]:
    found: list[Operation] = []
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        found += difference(old, new, f"{path}/{index}")
    return found + [{"op": "add", "path": f"{path}/-", "value": value} for value in after[len(before) :]]


def escaped(name: str) -> str:
    """Write a name as it stands in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
