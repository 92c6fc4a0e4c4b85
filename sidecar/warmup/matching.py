"""What a profile is for: its `match` section, and whether an engine meets each of its conditions.

Which of several fitting profiles is taken is decided in `choice.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from sidecar.engines.protocol import EngineFacts, Role, Task
from sidecar.warmup.steps import Strict

SmName = Annotated[str, Field(pattern=r"^(cpu|sm\d{2,3})$")]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]
_BOUND = re.compile(r"^\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*$")
_COMPARED: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
}


class Match(Strict):
    """What a profile is for. A list that is empty, or left out, means: any.

    `kv_cache_dtype`, `quantization`, `engine` and `model` take patterns such as `fp8*`. `quantization` is compared
    with what the engine calls it and with the scheme of the weights (`nvfp4`, `fp8`, `none` …); `model` with the
    served name and the path. `engine_version` is a range such as `>=0.11,<0.30`.
    """

    sm: tuple[SmName, ...] = ()
    engine: tuple[Pattern, ...] = ()
    engine_version: str = ""
    kv_cache_dtype: tuple[Pattern, ...] = ()
    quantization: tuple[Pattern, ...] = ()
    role: tuple[Role, ...] = ()
    task: tuple[Task, ...] = ()
    model: tuple[Pattern, ...] = ()

    @pydantic.field_validator("engine_version")
    @classmethod
    def _a_range(cls, value: str) -> str:
        for part in value.split(","):
            if value and not _BOUND.match(part):
                raise ValueError(f"'{part.strip()}' is no bound of a version; write a range such as >=0.11,<0.30")
        return value


Verdict = Literal["met", "not met", "unknown"]


@dataclass(frozen=True)
class Condition:
    """One condition of a profile, with what the engine says to it: `wanted` and `found` as text."""

    name: str
    wanted: str
    found: str
    verdict: Verdict

    def __str__(self) -> str:
        if self.verdict == "unknown":
            return f"{self.name} must be {self.wanted}, and the engine doesn't tell it"
        return f"{self.name} {'is' if self.verdict == 'met' else 'must be'} {self.wanted}" + (
            "" if self.verdict == "met" else f", and is {self.found}"
        )


#: Conditions by how much they say about an engine, least first. A profile is the more specific the more it says
#: here: each counts more than all before it together, so that two profiles are equal only with equal conditions.
ORDER = ("engine", "engine_version", "kv_cache_dtype", "quantization", "task", "role", "model")


def specificity(match: Match) -> int:
    """Say how specific a profile is: a sum of 2 to the power of each condition's place in ORDER."""
    return sum(1 << place for place, name in enumerate(ORDER) if getattr(match, name))


def conditions(match: Match, facts: EngineFacts | None) -> Iterator[Condition]:
    """Judge every condition about the engine; `sm` is the business of the choice. Without facts all are unknown."""
    for name in ORDER:
        wanted = getattr(match, name)
        if not wanted:
            continue
        shown = wanted if isinstance(wanted, str) else " or ".join(wanted)
        found = _found(name, facts) if facts is not None else ()
        if not found:
            yield Condition(name, shown, "", "unknown")
        elif name == "engine_version":
            yield Condition(name, shown, found[0], "met" if _in_range(found[0], wanted) else "not met")
        else:
            met = any(fnmatchcase(value.lower(), pattern.lower()) for value in found for pattern in wanted)
            yield Condition(name, shown, " or ".join(found), "met" if met else "not met")


def _found(name: str, facts: EngineFacts) -> tuple[str, ...]:
    """Give what the engine is called in this respect; several names for one thing are possible."""
    values: Mapping[str, tuple[str | None, ...]] = {
        "engine": (facts.engine,),
        "engine_version": (facts.version,),
        "kv_cache_dtype": (facts.kv_cache_dtype,),
        "quantization": (facts.quantization, facts.weights),
        "task": facts.tasks,
        "role": (facts.role,),
        "model": (facts.model, facts.root),
    }
    return tuple(dict.fromkeys(value for value in values[name] if value))


def _in_range(version: str, wanted: str) -> bool:
    numbers = _numbers(version)
    if not numbers:
        return False
    for part in wanted.split(","):
        found = _BOUND.match(part)
        if found is None:
            return False
        bound = _numbers(found[2])
        width = max(len(numbers), len(bound))
        padded = [each + (0,) * (width - len(each)) for each in (numbers, bound)]
        if not _COMPARED[found[1]](padded[0], padded[1]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Read the release of a version: `0.25.1.dev3+gabc` is 0.25.1."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(each) for each in found[1].split(".")) if found else ()
