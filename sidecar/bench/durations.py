"""How the short times of requests are written: three digits, with their unit.

Longer times of starts and phases are written by `web/words.py`; nothing is measured here.
"""

from __future__ import annotations

NOTHING = "–"


def duration(seconds: float | None) -> str:
    """Write seconds with three digits: `850 µs`, `8.34 ms`, `123 ms`, `2.31 s`, `84.2 s`, `512 s`."""
    if seconds is None:
        return NOTHING
    for limit, scale, unit in ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if abs(seconds) < limit:
            return f"{three_digits(seconds * scale)} {unit}"
    return NOTHING


def three_digits(value: float) -> str:
    """Write a number with three digits, or with all of them before the point."""
    size = abs(value)
    if value == 0:
        return "0"
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
