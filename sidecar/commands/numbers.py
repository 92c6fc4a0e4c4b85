"""Numbers that commands take on their line: within a range, and numbers at all.

What a number means is known to the command that asks for it.
"""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A range that `nan` is not in: each comparison with it is false, so that a loop until then never ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Give the number; fails with a sentence for what is none."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number to count with.", param, ctx)
        return found
