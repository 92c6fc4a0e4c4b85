"""The larger drawings of the status page, as inline SVG: steps on a plane of two logarithmic axes, and bars in order.

Each is bounded whatever it is given: cells and bars have a fixed number of places. What they mean is said in `coverage_panel.py`
and `history_panel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sidecar.web.markup import Element, element, raw

#: Most places of the plane, across and up: a cell is 4 pixels wide on a telephone of 320.
COLUMNS, ROWS = 64, 21
#: Heights in pixels: of the plane, of the bars, and of the line of numbers below.
PLANE, BARS, BELOW = 162, 120, 20
#: Most numbers on an axis, and the largest value that one is made for.
TICKS, LARGEST = 6, 2.0**40

Point = tuple[float, float]


class LogAxis:
    """An axis from 1 to `most`, in at most `places` steps of equal ratio; what lies beyond is shown at its end.

    Batch sizes are searched in half octaves, so that more places than those would only show gaps.
    """

    def __init__(self, most: float, places: int, by_half_octaves: bool = False) -> None:
        self._octaves = math.log2(min(max(most, 2.0), LARGEST))
        self.places = min(places, round(2 * self._octaves) + 1) if by_half_octaves else places

    def place(self, value: float) -> int:
        """Give the place of a value."""
        share = math.log2(min(max(value, 1.0), LARGEST)) / self._octaves
        return min(self.places - 1, round(share * (self.places - 1)))

    def ticks(self) -> list[tuple[float, int]]:
        """Give powers of two, each with its share of the axis, 0..1: the middle of its place."""
        step = max(1, math.ceil(self._octaves / TICKS))
        return [
            ((self.place(2.0**power) + 0.5) / self.places, 2**power) for power in range(0, int(self._octaves) + 1, step)
        ]


def cells(states: Mapping[str, Iterable[Point]], across: LogAxis, up: LogAxis) -> dict[str, set[tuple[int, int]]]:
    """Put points into places; a place has the last state of those whose points lie in it."""
    taken: dict[tuple[int, int], str] = {}
    for state, points in states.items():
        taken |= {(across.place(x), up.places - 1 - up.place(y)): state for x, y in points}
    return {state: {place for place, of in taken.items() if of == state} for state in states}


def plane(states: Mapping[str, Iterable[Point]], most: Point, label: str, titles: Mapping[str, str]) -> Element:
    """Draw points of (x, y) by state, later states over earlier ones, up to `most` of each; the class is `s-STATE`."""
    across, up = LogAxis(most[0], COLUMNS), LogAxis(most[1], ROWS, by_half_octaves=True)
    paths = [
        element(
            "path",
            element("title", titles.get(state, state)),
            # Our own numbers, and longer than foreign text may be.
            d=raw("".join(f"M{x:d} {y:d}h1v1h-1z" for x, y in sorted(found))),
            class_=f"s-{state}",
        )
        for state, found in cells(states, across, up).items()
        if found
    ]
    inner = element(
        "svg",
        element("rect", width=COLUMNS, height=up.places, class_="track"),
        paths,
        width="100%",
        height=PLANE,
        viewBox=f"0 0 {COLUMNS} {up.places}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    drawn = _picture(label, inner, _below(across.ticks()), PLANE)
    return _with_axis([(1 - share, _short(value)) for share, value in up.ticks()], drawn, PLANE)


def bars(values: Sequence[tuple[str, float | None, str]], label: str, marks: Sequence[tuple[float, str]]) -> Element:
    """Draw (class, length, title) as upright bars in order; one without a length is a mark at the foot.

    `marks` are the numbers at the axis, each with the length that it stands for, the largest at the top.
    """
    top = max([length or 0.0 for _, length, _ in values] + [mark for mark, _ in marks] + [1e-9])
    wide = 100 / max(len(values), 12)
    drawn = []
    for position, (class_, length, title) in enumerate(values):
        tall = 4.0 if length is None else max(2.0, length / top * BARS)
        drawn.append(
            element(
                "rect",
                element("title", title),
                x=f"{position * wide + wide * 0.1:.2f}%",
                y=f"{BARS - tall:.1f}",
                width=f"{wide * 0.8:.2f}%",
                height=f"{tall:.1f}",
                class_=class_,
            )
        )
    lines = [
        element("rect", x="0", y=f"{BARS * (1 - mark / top):.1f}", width="100%", height="1", class_="grid")
        for mark, _ in marks
    ]
    return _with_axis(
        [(1 - mark / top, text) for mark, text in marks], _picture(label, [lines, drawn], None, BARS), BARS
    )


def _picture(label: str, content: object, below: object, height: int) -> Element:
    whole = height + (BELOW if below else 0)
    return element(
        "svg", element("title", label), content, below, role="img", aria_label=label, width="100%", height=whole
    )


def _below(ticks: Sequence[tuple[float, float]]) -> list[Element]:
    return [
        element(
            "text",
            _short(value),
            x=f"{share * 100:.1f}%",
            y=PLANE + 15,
            text_anchor="start" if share < 0.03 else "end" if share > 0.97 else "middle",
        )
        for share, value in ticks
    ]


def _with_axis(marks: Iterable[tuple[float, str]], drawn: Element, height: int) -> Element:
    """Put numbers to the left; they don't shrink with the drawing, so that they stay readable on a narrow screen."""
    numbers = [
        element("text", text, x="100%", y=f"{min(max(share * height + 4, 10), height):.0f}", text_anchor="end")
        for share, text in marks
    ]
    axis = element("svg", numbers, width="100%", height=height, aria_hidden="true")
    return element("div", element("div", axis, class_="axis"), drawn, class_="plot")


def _short(value: float) -> str:
    """Write a power of two as engines write sizes: 512, 8k, 1M."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= unit:
            return f"{value / unit:.0f}{name}"
    return f"{value:.0f}"
