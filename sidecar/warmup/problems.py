"""What is wrong with a profile, in sentences with the place in its file.

Pydantic finds the problems; nothing is checked here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from sidecar.warmup.marked_yaml import MarkedYaml
from sidecar.warmup.steps import UNKNOWN_KEY


def problems_of(found: MarkedYaml, error: pydantic.ValidationError) -> list[str]:
    """Give a sentence for each problem, each with file, line and column."""
    return [_sentence(found, each) for each in _causes(error.errors())]


def _causes(errors: Sequence[Any]) -> list[Any]:
    """Leave out lists that are too short only because of what was wrong with their items."""
    places = [tuple(each["loc"]) for each in errors]
    return [
        each
        for each in errors
        if each["type"] != "too_short"
        or not any(
            len(place) > len(each["loc"]) and place[: len(each["loc"])] == tuple(each["loc"]) for place in places
        )
    ]


def _sentence(found: MarkedYaml, error: Any) -> str:
    location = tuple(error["loc"])
    context: Mapping[str, Any] = error.get("ctx") or {}
    kind, message = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind == UNKNOWN_KEY:
        location += (context["key"],)
    elif kind == "union_tag_invalid":
        expected = [each.strip(" '") for each in str(context["expected_tags"]).split(",")]
        close = difflib.get_close_matches(str(context["tag"]), expected, n=1)
        hint = f"did you mean {close[0]}?" if close else "there are " + ", ".join(expected)
        message = f"'{context['tag']}' is not a kind of step; {hint}"
        location += ("kind",)
    elif kind == "union_tag_not_found":
        message = "a step needs a `kind`, such as `kind: prefill`"
    elif kind == "missing":
        message = f"`{location[-1]}` is missing"
    elif kind == "literal_error":
        given, expected = error["input"], context["expected"]
        message = f"{given!r} is not one of {expected}{_close(given, expected)}"
    return f"{found.place(location)}: {_field(location)}{message}{'' if message.endswith(('.', '?')) else '.'}"


def _close(given: object, expected: object) -> str:
    options = [each.strip(" '") for each in str(expected).replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(given), options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _field(location: tuple[int | str, ...]) -> str:
    """Name the innermost field of a location; step kinds and tags in it are no fields."""
    names = [part for part in location if isinstance(part, str) and part not in ("size", "sweep", "kind")]
    return f"{names[-1]}: " if names else ""
