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
#: What kept a check from judging, where the outcome alone doesn't say: whoever shows it knows what to do about each.
Cause = Literal["", "asleep", "recording", "time", "key", "engine"]
#: How prompts are sent: one at a time, together behind one prefix that is cached already, or as many at once as a
#: CUDA graph is captured for. `likelihood` is no way of sending: the probability of the recorded answer is compared, as the
#: engine gave it when it said the same token for token, or when the answer was read back.
Way = Literal["solo", "concurrent", "batch", "likelihood"]


#: Characters of a text that are compared, and of these so many words, or characters where there are no spaces.
COMPARED, PIECES = 2000, 500
#: Wrong answers whose texts are compared.
DIFFS = 50


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

    def to_json(self, *, with_diff: bool = True) -> dict[str, Any]:
        """Give all fields, and the two texts compared word by word for a page; `diff` is empty without."""
        return {**dataclasses.asdict(self), "diff": text_diff(self.expected, self.got) if with_diff else []}


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """How a golden check ended.

    `failed`: the engine answers and its output is not what was recorded, beyond what is allowed. `skipped`: nothing that
    tells could be asked, for example of a sleeping engine or one that makes no text. `engine_gone`: nothing listens any
    more. `error`: it can't be judged, for example because the recording is of another model, or time ran out; that says
    nothing bad of the output.

    `drift_percent` is by how much the probability of a recorded token changed on average, and `allowed_percent` how much
    is allowed; None where it could not be measured. `statistics` are the numbers behind it, `notes` sentences about what
    could not be checked and about what was excused. `seconds`: how long it took. `cause` is for callers, and in no JSON.
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
    cause: Cause = ""

    def to_json(self) -> dict[str, Any]:
        """Give the result in the shape of `/status` and of `golden check --json`.

        Keys: `outcome`, `sentence`, `label` (of the recording), `drift_percent`, `allowed_percent`, `prompts` and
        `answers` (counts), `failed` (a list of `name`, `way`, `reason`, `expected`, `got`, `diff`), `statistics` (see
        `verdict.py`), `notes`, `seconds`. Numbers are finite or null. Blocks for up to seconds: `diff` is made here, for
        the first of what failed; a note says how many have none.
        """
        bare = len(self.failed) - DIFFS
        left = [f"Differences are shown for the first {DIFFS} of {len(self.failed)} wrong answers."] if bare > 0 else []
        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "label": self.label,
            "drift_percent": rounded(self.drift_percent),
            "allowed_percent": self.allowed_percent,
            "prompts": self.prompts,
            "answers": self.answers,
            "failed": [each.to_json(with_diff=at < DIFFS) for at, each in enumerate(self.failed)],
            "statistics": {name: rounded(value) for name, value in self.statistics.items()},
            "notes": [*self.notes, *left],
            "seconds": rounded(self.seconds),
        }


def rounded(value: float | int | None) -> float | int | None:
    """Round to four digits after the point; what is not finite becomes None, which JSON can say."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 4) if math.isfinite(value) else None


def text_diff(expected: str, got: str) -> list[list[str]]:
    """Compare two texts word by word: pairs of `same`, `gone` or `new` and the piece of text.

    The cost grows with the square of their lengths, so that long texts are compared up to a point; a last piece says where.
    """
    before, after = _words(expected[:COMPARED]), _words(got[:COMPARED])
    pieces: list[list[str]] = []
    uncut = "".join(before) == expected and "".join(after) == got
    rest = [] if uncut else [["same", f" [… compared up to here: {len(expected)} and {len(got)} characters in all]"]]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(["same", "".join(before[a:b])])
            continue
        if b > a:
            pieces.append(["gone", "".join(before[a:b])])
        if d > c:
            pieces.append(["new", "".join(after[c:d])])
    return pieces + rest


def _words(text: str) -> list[str]:
    """Cut a text after each space; texts without any are compared by the character. Gives the first PIECES of them."""
    words = text.split(" ")
    return ([f"{word} " for word in words[:-1]] + words[-1:] if len(words) > 1 else list(text))[:PIECES]
