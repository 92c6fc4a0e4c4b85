"""How numbers, times and states are written for people: seconds, bytes, moments, and the tone of a word.

No markup is made here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from unicodedata import category

#: What is shown where nothing is known.
NOTHING = "–"

#: Words of outcomes and states → tone, which the style sheet turns into a colour. Others are neutral.
TONES: Mapping[str, str] = {
    **dict.fromkeys(("hit", "kept", "converged", "passed", "published", "up", "done", "nothing_new"), "good"),
    **dict.fromkeys(("running", "restoring", "warming", "starting"), "work"),
    **dict.fromkeys(
        (
            "partial",
            "exhausted",
            "timed_out",
            "late",
            "read_only",
            "unsupported",
            "busy",
            "asleep",
            "unwarmed",
            "unchecked",
            "warning",
            "reset",
        ),
        "care",
    ),
    **dict.fromkeys(
        (
            "failed",
            "degenerate",
            "wrong",
            "gpu_lost",
            "engine_gone",
            "gone",
            "unreachable",
            "stalled",
            "not_an_engine",
            "killer",
            "error",
            "unavailable",
            "lost",
        ),
        "bad",
    ),
}


def tone(word: object) -> str:
    """Give the tone of an outcome or state: good, work, care, bad or calm."""
    return TONES.get(str(word), "calm")


def number(value: object) -> float | None:
    """Give a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def seconds(value: object) -> str:
    """Write a duration: `80 ms`, `2.31 s`, `84.2 s`, `3 min 05 s`, `2 h 05 min`, `3 d 4 h`."""
    found = number(value)
    if found is None:
        return NOTHING
    if found < 0.9995:
        return f"{found * 1000:.0f} ms"
    if found < 9.995:
        return f"{found:.2f} s"
    if found < 99.95:
        return f"{found:.1f} s"
    if found < 119.5:
        return f"{found:.0f} s"
    minutes, rest = divmod(round(found), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(value: object) -> str:
    """Write bytes in decimal units, as disks and object stores count them."""
    found = number(value)
    if found is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(found) < 999.5:
            return f"{found:.0f} {unit}" if found >= 100 or unit == "B" else f"{found:.1f} {unit}"
        found /= 1000
    return f"{found:.1f} TB"


def count(value: object) -> str:
    """Write a count with thin spaces between thousands."""
    found = number(value)
    return NOTHING if found is None else f"{found:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def percent(value: object) -> str:
    """Write a ratio 0..1 as a percentage."""
    found = number(value)
    return NOTHING if found is None else f"{found * 100:.0f} %"


def moment(value: object) -> str:
    """Write seconds since the epoch as time of day, UTC."""
    found = number(value)
    try:
        return NOTHING if found is None else datetime.fromtimestamp(found, UTC).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return NOTHING


def day(value: object) -> str:
    """Write seconds since the epoch as day and time of day, UTC."""
    found = number(value)
    try:
        return NOTHING if found is None else datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return NOTHING


def one_line(value: object, longest: int = 500) -> str:
    """Write foreign text for a terminal: a line without control characters, which could move the cursor or recolour it."""
    shown = " ".join(str(value).split())
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(each) in ("Cc", "Cf", "Cs") else each for each in shown[:longest]
    )


def plain(word: object) -> str:
    """Write an identifier such as `awaiting_engine` as words."""
    return str(word).replace("_", " ")
