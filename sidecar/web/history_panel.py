"""The card of the status page about earlier starts: how long each took until ready, by generation.

Where they come from is `supervisor/history.py`; how they are drawn, `plots.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.web import parts, plots, words
from sidecar.web.markup import Element, element

#: Starts that are drawn, the newest; more bars than this have no width on a telephone.
DRAWN = 60
#: Kind of a start → how it is named.
KINDS: Mapping[str, str] = {
    "made": "compiled the generation",
    "ready": "restored from it",
    "died": "died before ready",
    "this": "this start",
}


@dataclass(frozen=True)
class Start:
    """One start: its kind, the generation's name, and seconds until ready where they are known."""

    kind: str
    generation: str
    seconds: float | None
    at: float | None


def history(status: Mapping[str, Any]) -> Element | None:
    """Show earlier starts and this one; nothing before the store was read, or without one."""
    found = parts.section(status, "history")
    if not found:
        return None
    earlier = _starts(found)
    if not earlier:
        empty = element("p", "The store has no record of an earlier start with this key.", class_="soft")
        return parts.card("Earlier starts", "history", empty)
    this = _this(status)
    drawn = earlier[-DRAWN:] + ([this] if this else [])
    known = [start.seconds for start in drawn if start.seconds is not None]
    kinds = [kind for kind in KINDS if any(start.kind == kind for start in drawn)]
    return parts.card(
        "Earlier starts",
        "history",
        element("p", "Time to ready of earlier starts with this key, by generation, oldest first."),
        parts.legend(*((f"k-{kind}", KINDS[kind]) for kind in kinds)),
        plots.bars([_bar(start) for start in drawn], _spoken(drawn, known), _marks(known)) if known else None,
        None if known else element("p", "Their records do not say how long they took.", class_="soft"),
        _as_table(earlier),
        tag=element("span", f"{len(earlier)} in the store", class_="soft small"),
    )


def _starts(found: Mapping[str, Any]) -> list[Start]:
    return [
        Start(
            str(each.get("outcome")) if each.get("outcome") in ("made", "ready", "died") else "ready",
            str(each.get("generation") or "")[:64],
            _positive(each.get("seconds")),
            _positive(each.get("at")),
        )
        for each in parts.mappings(found, "starts")[-1000:]
    ]


def _this(status: Mapping[str, Any]) -> Start | None:
    seconds = _positive(parts.section(status, "engine").get("ready_after_s"))
    generation = str(parts.section(status, "restore").get("generation") or "")[:64]
    return None if seconds is None else Start("this", generation, seconds, None)


def _bar(start: Start) -> tuple[str, float | None, str]:
    took = words.seconds(start.seconds) if start.seconds is not None else "time not known"
    named = "" if start.kind == "this" and not start.generation else f"{_number(start.generation)}, "
    when = f", {words.day(start.at)}" if start.at is not None else ""
    return f"k-{start.kind}", start.seconds, f"{named}{KINDS[start.kind]}: {took}{when}"


def _spoken(drawn: Sequence[Start], known: Sequence[float]) -> str:
    last = next((start for start in reversed(drawn) if start.seconds is not None), None)
    ending = f"; the last one {words.seconds(last.seconds)}" if last else ""
    return (
        f"Time to ready of {len(drawn)} starts: from {words.seconds(min(known))} to {words.seconds(max(known))}{ending}."
        if known
        else f"{len(drawn)} starts."
    )


def _marks(known: Sequence[float]) -> list[tuple[float, str]]:
    top = max(known, default=1.0)
    return [(top, _brief(top)), (top / 2, _brief(top / 2)), (0.0, "0")]


def _brief(seconds: float) -> str:
    """Write a duration into the few pixels beside an axis."""
    if seconds < 119.5:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"


def _as_table(starts: Sequence[Start]) -> Element:
    """Say the same in numbers: a line a generation, newest first."""
    by_generation: dict[str, list[Start]] = {}
    for start in starts:
        by_generation.setdefault(start.generation, []).append(start)
    rows = []
    for generation, group in list(by_generation.items())[::-1]:
        restored = [start.seconds for start in group if start.kind == "ready" and start.seconds is not None]
        cold = [start.seconds for start in group if start.kind == "made" and start.seconds is not None]
        died = sum(1 for start in group if start.kind == "died")
        rows.append(
            element(
                "tr",
                element("th", _number(generation), scope="row", title=generation or None),
                element("td", words.seconds(statistics.median(cold)) if cold else words.NOTHING, class_="n"),
                element("td", words.seconds(statistics.median(restored)) if restored else words.NOTHING, class_="n"),
                element("td", words.count(len(group)), class_="n"),
                element("td", words.count(died), class_="n alarm" if died else "n"),
            )
        )
    heads = [("Generation", ""), ("Cold", "n"), ("Restored", "n"), ("Starts", "n"), ("Died", "n")]
    table = parts.table(heads, rows[:DRAWN], "Time to ready by generation, medians")
    return element("details", element("summary", "By generation, medians"), table)


def _number(generation: str) -> str:
    """Name a generation by its number; the digest after it says nothing to people."""
    number, _, _ = generation.partition("-")
    return f"generation {int(number)}" if number.isascii() and number.isdigit() else generation or "no generation"


def _positive(value: object) -> float | None:
    found = words.number(value)
    return found if found is not None and 0 < found < plots.LARGEST else None
