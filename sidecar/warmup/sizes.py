"""Sizes in profiles: numbers, expressions over the engine's limits, and sweeps; as types and resolved.

What a size is used for (tokens, batch) is the business of `steps.py`; clipping that of `planner.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

#: Names of limits an expression may use; see `Limits`.
SYMBOLS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_EXPRESSION = re.compile(
    rf"^\s*(?P<symbol>{'|'.join(SYMBOLS)})\s*(?:\*\s*(?P<times>\d+))?\s*(?:/\s*(?P<by>[1-9]\d*))?"
    r"\s*(?P<plus>[+-]\s*\d+)?\s*$"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can take, in tokens and sequences. `kv_tokens`: room of the KV cache, if known."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    vocab_size: int
    kv_tokens: int | None = None

    def symbol(self, name: str) -> int:
        """Give the limit that an expression names."""
        return {
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
        }[name]


def _checked(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a size is a number such as 512, or an expression such as max_num_batched_tokens/2+1")
    if isinstance(value, int):
        if value < 1:
            raise ValueError("a size is 1 or more")
        return value
    if not _EXPRESSION.match(value):
        raise ValueError(
            f"'{value}' is not a size: use a number, or one of {', '.join(SYMBOLS)}, "
            "optionally followed by *N, /N and +N or -N, in this order"
        )
    return value


#: A number, or `symbol[*N][/N][+N|-N]`.
Size = Annotated[
    int | str,
    BeforeValidator(_checked),
    WithJsonSchema({
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": re.sub(r"\?P<\w+>", "", _EXPRESSION.pattern)},
        ]
    }),
]  # fmt: skip


class Sweep(pydantic.BaseModel):
    """Many sizes between two: `points` of them, evenly spaced in ratio (geometric) or in distance (linear).

    Each is rounded to `multiple_of` and repeated once per offset: `multiple_of: 16, offsets: [0, 1]` visits
    512 and 513.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    start: Size = Field(alias="from")
    to: Size
    points: int = Field(ge=2, le=1024)
    spacing: Literal["geometric", "linear"] = "geometric"
    multiple_of: int = Field(1, ge=1)
    offsets: tuple[int, ...] = Field((0,), min_length=1)


def _shape(value: Any) -> str:
    return "sweep" if isinstance(value, Mapping | Sweep) else "size"


#: What a list of sizes in a profile holds.
SizeOrSweep = Annotated[Annotated[Size, Tag("size")] | Annotated[Sweep, Tag("sweep")], Discriminator(_shape)]
Sizes = Annotated[tuple[SizeOrSweep, ...], Field(min_length=1)]


def resolve(size: int | str, limits: Limits) -> int:
    """Turn a size into a number of at least 1. Raises ValueError for a text that is no size."""
    if isinstance(size, int):
        return size
    found = _EXPRESSION.match(size)
    if found is None:
        raise ValueError(f"'{size}' is not a size")
    value = limits.symbol(found["symbol"]) * int(found["times"] or 1) // int(found["by"] or 1)
    return max(1, value + int((found["plus"] or "0").replace(" ", "")))


def resolve_all(sizes: Iterable[int | str | Sweep], limits: Limits) -> tuple[int, ...]:
    """Turn a list of sizes and sweeps into ascending distinct numbers."""
    found: set[int] = set()
    for size in sizes:
        found.update(_points(size, limits) if isinstance(size, Sweep) else (resolve(size, limits),))
    return tuple(sorted(found))


def _points(sweep: Sweep, limits: Limits) -> set[int]:
    low, high = sorted((resolve(sweep.start, limits), resolve(sweep.to, limits)))
    found: set[int] = set()
    for index in range(sweep.points):
        share = index / (sweep.points - 1)
        value = low * (high / low) ** share if sweep.spacing == "geometric" else low + (high - low) * share
        rounded = max(1, round(value / sweep.multiple_of)) * sweep.multiple_of
        found.update(max(1, rounded + offset) for offset in sweep.offsets)
    return found


def integer_class(value: int) -> str:
    """Name the class on which Triton specialises a run-time integer: 1, divisible by 16, or other.

    Source: engine_internals of vLLM 0.33 (Triton 3.8, specialisation of integer arguments).
    """
    if value == 1:
        return "1"
    return "divisible by 16" if value % 16 == 0 else "other"


def missing_classes(values: Iterable[int]) -> tuple[str, ...]:
    """Name the integer classes that none of the values falls into."""
    present = {integer_class(value) for value in values}
    return tuple(each for each in ("1", "divisible by 16", "other") if each not in present)
