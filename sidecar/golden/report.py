"""What a golden check found: an outcome, a sentence, numbers, and each prompt that went wrong with both texts.

Nothing is judged here, and nothing is printed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

GoldenOutcome = Literal["passed", "failed", "skipped", "engine_gone", "error"]
#: How prompts are sent: one at a time, together behind one prefix that is cached already, or as many at once as a
#: CUDA graph is captured for. `likelihood` is no way of sending: the recorded answer is read back and its probability
#: compared.
Way = Literal["solo", "concurrent", "batch", "likelihood"]


@dataclass(frozen=True, slots=True)
class GoldenProgress:
    """How far a check or a recording is: answers so far, answers in all, and which way is being sent."""

    done: int
    total: int
    way: str


@dataclass(frozen=True, slots=True)
class FailedPrompt:
    """One prompt that went wrong: how it was sent, why, and the recorded and the present text."""

    name: str
    way: Way
    reason: str
    expected: str
    got: str

    def to_json(self) -> dict[str, Any]:
        """Give all fields, and the two texts compared line by line for a page."""
        return {**dataclasses.asdict(self), "diff": text_diff(self.expected, self.got)}


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """How a golden check ended.

    `failed`: the engine answers and its output is not what was recorded, beyond what is allowed. `skipped`: nothing that
    tells could be asked, for example of a sleeping engine or one that makes no text. `engine_gone`: nothing listens any
    more. `error`: it can't be judged, for example because the recording is of another model, or time ran out; that says
    nothing bad of the output.

    `drift_percent` is by how much the probability of a recorded token changed on average, and `allowed_percent` how much
    is allowed; None where it could not be measured. `statistics` are the numbers behind it, `notes` sentences about what
    could not be checked and about what was excused. `seconds`: how long it took.
    """

    outcome: GoldenOutcome
    sentence: str
    drift_percent: float | None = None
    allowed_percent: float | None = None
    prompts: int = 0
    answers: int = 0
    failed: tuple[FailedPrompt, ...] = ()
    statistics: Mapping[str, float | int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    label: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Give the result in the shape of `/status` and of `golden check --json`.

        Keys: `outcome`, `sentence`, `label` (of the recording), `drift_percent`, `allowed_percent`, `prompts` and
        `answers` (counts), `failed` (a list of `name`, `way`, `reason`, `expected`, `got`, `diff`), `statistics` (see
        `judging.py`), `notes`, `seconds`. Numbers are finite or null.
        """
        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "label": self.label,
            "drift_percent": rounded(self.drift_percent),
            "allowed_percent": self.allowed_percent,
            "prompts": self.prompts,
            "answers": self.answers,
            "failed": [each.to_json() for each in self.failed],
            "statistics": {name: rounded(value) for name, value in self.statistics.items()},
            "notes": list(self.notes),
            "seconds": rounded(self.seconds),
        }


def rounded(value: float | int | None) -> float | int | None:
    """Round to four digits after the point; what is not finite becomes None, which JSON can say."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 4) if math.isfinite(value) else None


def text_diff(expected: str, got: str) -> list[list[str]]:
    """Compare two texts word by word: pairs of `same`, `gone` or `new` and the piece of text."""
    before, after = _words(expected), _words(got)
    pieces: list[list[str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(["same", "".join(before[a:b])])
            continue
        if b > a:
            pieces.append(["gone", "".join(before[a:b])])
        if d > c:
            pieces.append(["new", "".join(after[c:d])])
    return pieces


def _words(text: str) -> list[str]:
    """Cut a text after each space; texts without any are compared by the character."""
    words = text.split(" ")
    return [f"{word} " for word in words[:-1]] + words[-1:] if len(words) > 1 else list(text)
