"""What a check of `check` found: one sentence about one thing.

Nothing is tried here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was tried: what, how it went, and a sentence that says what to do when it went wrong."""

    what: str
    level: Level
    sentence: str
