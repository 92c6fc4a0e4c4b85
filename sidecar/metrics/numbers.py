"""Reads single values out of plain mappings that may hold anything.

No metric is known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """Give a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def mapping(value: object) -> Mapping[str, Any]:
    """Give a mapping; empty when it isn't one."""
    return value if isinstance(value, Mapping) else {}
