"""The card of the status page about coverage: which steps of the engine warm-up has met, and what they compiled.

How it is drawn is in `plots.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.web import parts, plots, words
from sidecar.web.markup import Element, element

#: Points that are drawn of each state; `/status` has no more by itself, but another version's may.
DRAWN = 5000
#: State → what a point of it means, and its name in the legend.
STATES: Mapping[str, tuple[str, str]] = {
    "visited": ("visited, compiled nothing", "visited"),
    "replayed": ("compiled by an earlier pod, replayed here", "replayed"),
    "compiled": ("compiled in this warm-up", "compiled"),
}


def coverage(status: Mapping[str, Any]) -> Element | None:
    """Show the map of token counts and batch sizes; nothing before a warm-up has ended."""
    found = parts.section(status, "coverage")
    states = {name: _points(found, name) for name in STATES}
    if not any(states.values()):
        return None
    counts = {name: len(points) for name, points in states.items()}
    every = [point for points in states.values() for point in points]
    most = (
        max([x for x, _ in every] + [words.number(found.get("max_tokens")) or 0]),
        max([y for _, y in every] + [words.number(found.get("max_requests")) or 0]),
    )
    said = ", ".join(f"{words.count(counts[name])} {STATES[name][0]}" for name in STATES if counts[name])
    titles = {name: f"{words.count(counts[name])} steps {STATES[name][0]}" for name in STATES}
    omitted = words.number(found.get("omitted"))
    return parts.card(
        "Coverage",
        "coverage",
        element(
            "p",
            "Steps of the engine that warm-up has met. Across: tokens read in one step; up: requests at once.",
        ),
        parts.legend(*((f"s-{name}", legend) for name, (_, legend) in STATES.items() if counts[name])),
        plots.plane(states, most, f"Steps of the engine that warm-up has met: {said}.", titles),
        element("p", "tokens in one step →", class_="soft small n", aria_hidden="true"),
        element("p", f"{words.count(omitted)} visited steps more are not drawn.", class_="soft small")
        if omitted
        else None,
        _as_table(states),
        tag=element("span", f"{words.count(sum(counts.values()))} steps", class_="soft small"),
    )


def _as_table(states: Mapping[str, list[plots.Point]]) -> Element:
    """Say the same in numbers, for whoever can't see it: by octaves of requests."""
    rows: dict[int, dict[str, list[float]]] = {}
    for state, points in states.items():
        for tokens, requests in points:
            rows.setdefault(int(requests).bit_length(), {}).setdefault(state, []).append(tokens)
    lines = []
    for octave, by_state in sorted(rows.items()):
        met = [each for found in by_state.values() for each in found]
        low, high = 1 << (octave - 1), (1 << octave) - 1
        lines.append(
            element(
                "tr",
                element("th", "1" if high == 1 else f"{words.count(low)} to {words.count(high)}", scope="row"),
                element("td", f"{words.count(min(met))} to {words.count(max(met))}", class_="n"),
                [element("td", words.count(len(by_state.get(state, ()))), class_="n") for state in STATES],
            )
        )
    heads: list[tuple[object, str]] = [("Requests", ""), ("Tokens", "n")]
    heads += [(legend.capitalize(), "n") for _, legend in STATES.values()]
    return element(
        "details", element("summary", "The same as a table"), parts.table(heads, lines, "Coverage by requests at once")
    )


def _points(found: Mapping[str, Any], name: str) -> list[plots.Point]:
    """Take what are pairs of sensible numbers."""
    points = []
    for each in parts.listed(found, name)[:DRAWN]:
        pair = [words.number(value) for value in each] if isinstance(each, list | tuple) and len(each) == 2 else []
        if pair and all(value is not None and 1 <= value <= plots.LARGEST for value in pair):
            points.append((pair[0] or 1.0, pair[1] or 1.0))
    return points
