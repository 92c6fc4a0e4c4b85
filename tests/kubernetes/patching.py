"""JSON Patch as the API server applies it (RFC 6902): the operations that our webhook uses, and no others.

Written apart from what makes the patches, so that both must be right.
"""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

Json = dict[str, Any]


def patched(document: Json, answer: Json) -> Json:
    """Apply the patch of an AdmissionReview's answer; without one the document stays."""
    response = answer["response"]
    assert response["allowed"] is True
    if "patch" not in response:
        return document
    assert response["patchType"] == "JSONPatch"
    return applied(document, json.loads(base64.b64decode(response["patch"])))


def applied(document: Json, operations: list[Json]) -> Json:
    """Apply operations in order; raises KeyError or IndexError where RFC 6902 says that a patch fails."""
    whole = {"": copy.deepcopy(document)}
    for operation in operations:
        *parents, last = ["", *[_name(part) for part in operation["path"].split("/")[1:]]]
        target: Any = whole
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        _apply(target, last, operation)
    return whole[""]


def _name(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _apply(target: Any, last: str, operation: Json) -> None:
    kind = operation["op"]
    if isinstance(target, list):
        if kind == "add":
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        elif kind == "replace":
            target[int(last)] = operation["value"]
        else:
            del target[int(last)]
    elif kind == "remove":
        del target[last]
    else:
        if kind == "replace" and last not in target:
            raise KeyError(operation["path"])
        target[last] = operation["value"]
