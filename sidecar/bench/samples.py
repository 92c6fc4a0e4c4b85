"""What came back from a load: times of every answered request in flat columns, failures by kind.

Sends nothing; figures are made of it in `report.py`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from sidecar.bench.percentiles import Tally
from sidecar.engines.protocol import Completion

#: How failures without a telling HTTP status are called.
_KINDS = {
    "refused": "connection refused",
    "reset": "connection lost",
    "timed_out": "timed out",
    "not_json": "unreadable answer",
    "broken": "error in a 200 answer",
}


@dataclass(slots=True)
class Failure:
    """How often a kind of failure was seen, and what was said the first time."""

    count: int
    first: str


class Samples:
    """Columns of one number per answered request, so that a million of them take 48 MB. Times in seconds.

    `started`: since the load began. `ttft`: from before the request is written to the first non-empty text in any
    channel; NaN for tokens without any text, which models of random weights give. `tpot`: from the first text to the
    last, divided by the output tokens after the first; NaN for answers of one token. `total`: to the end of the
    answer. `gaps`: times between pieces of text, all requests together.
    """

    def __init__(self) -> None:
        self.started, self.ttft, self.tpot, self.total = (array("d") for _ in range(4))
        self.prompt_tokens, self.tokens = array("q"), array("q")
        self.gaps = Tally()
        self.failures: dict[str, Failure] = {}

    @property
    def answered(self) -> int:
        """Count the requests that were answered."""
        return len(self.ttft)

    @property
    def failed(self) -> int:
        """Count the requests that were not."""
        return sum(each.count for each in self.failures.values())

    def take(self, started: float, answer: Completion) -> bool:
        """Enter one answer; `started` in seconds since the load began. Say whether it counts as answered."""
        kind = failure_kind(answer)
        if kind:
            self._fail(kind, answer)
            return False
        self.started.append(started)
        self.ttft.append(float("nan") if answer.ttft_s is None else answer.ttft_s)
        rest = answer.tokens - 1
        self.tpot.append(sum(answer.gaps_s) / rest if rest > 0 and answer.gaps_s else float("nan"))
        self.total.append(answer.total_s)
        self.prompt_tokens.append(answer.prompt_tokens)
        self.tokens.append(answer.tokens)
        for gap in answer.gaps_s:
            self.gaps.add(gap)
        return True

    def _fail(self, kind: str, answer: Completion) -> None:
        known = self.failures.setdefault(kind, Failure(0, answer.error or kind))
        known.count += 1


def failure_kind(answer: Completion) -> str:
    """Name the kind of failure; empty for a good answer. An answer without text or token is a failure, too."""
    if not answer.ok:
        if answer.status is not None and answer.status != 200:
            return f"HTTP {answer.status}"
        return _KINDS.get(answer.error_kind or "", "failed")
    return "no text" if answer.ttft_s is None and not answer.tokens else ""
