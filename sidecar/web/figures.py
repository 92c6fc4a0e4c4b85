"""Small drawings of the status page, as inline SVG: meters, pairs of bars, the timeline's bar.

Widths are percentages, so that a drawing fits whatever holds it; colours come from the style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.web.markup import Element, element

#: A part that took any time at all stays visible: percent of the bar.
LEAST_SHARE = 0.6


def _box(x: float, width: float, height: float, class_: str, y: float = 0.0, title: str | None = None) -> Element:
    name = element("title", title) if title else None
    return element(
        "rect",
        name,
        x=f"{x:.2f}%",
        y=f"{y:g}",
        width=f"{max(width, 0):.2f}%",
        height=f"{height:g}",
        class_=class_,
    )


def meter(ratio: float, label: str) -> Element:
    """Draw how full something is, 0..1."""
    share = min(max(ratio, 0.0), 1.0) * 100
    return element(
        "svg",
        _box(0, 100, 8, "track"),
        _box(0, share, 8, "fill"),
        role="img",
        aria_label=label,
        width="100%",
        height="8",
    )


def pair(
    upper: float | None, lower: float | None, largest: float, label: str, classes: tuple[str, str]
) -> Element | None:
    """Draw two bars above each other on one scale that ends at `largest`; None when there is nothing to
    draw.
    """
    if upper is None or largest <= 0:
        return None
    bars = [
        _box(0, max(100 * length / largest, 1.5), 7, class_, y)
        for length, class_, y in ((upper, classes[0], 0), (lower, classes[1], 9))
        if length
    ]
    return element("svg", *bars, role="img", aria_label=label, width="100%", height="16")


def stacked(parts: Sequence[tuple[str, float, str]], label: str) -> Element:
    """Draw parts (class, length in any unit, title) side by side in proportion; short ones keep a visible
    width.
    """
    whole = sum(length for _, length, _ in parts) or 1.0
    shares = [max(100 * length / whole, LEAST_SHARE) for _, length, _ in parts]
    scale = 100 / max(sum(shares), 1e-9)
    x = 0.0
    boxes = []
    for (class_, _, title), share in zip(parts, shares, strict=True):
        boxes.append(_box(x, share * scale - 0.15, 30, class_, 0, title))
        x += share * scale
    return element("svg", *boxes, role="img", aria_label=label, class_="bar", width="100%", height="30")


def swatch(class_: str) -> Element:
    """Draw the colour of a part for a legend."""
    return element(
        "svg",
        element("rect", width="11", height="11", rx="3", class_=class_),
        width="11",
        height="11",
        aria_hidden="true",
    )
