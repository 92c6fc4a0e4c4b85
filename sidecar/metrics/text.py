"""The text of one metric, kept between scrapes: as long as its series stay the same ones, only their values are written.

prometheus_client writes every line whose series is new; checking and quoting names and labels is nearly all of its work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


#: How prometheus_client writes a value.
_as_text: Callable[[float], str] = floatToGoString


class _Alone(CollectorRegistry):
    """A registry of one metric."""

    def __init__(self, family: Family) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterator[Family]:
        """Give the metric."""
        yield self._family


@dataclass
class Written:
    """One metric's text, with what stands before the value on each of its lines."""

    shape: Hashable
    text: str
    intro: str
    heads: Sequence[str]

    @classmethod
    def anew(cls, shape: Hashable, family: Family | None) -> Written:
        """Have prometheus_client write it; None: a metric without series, which has no text."""
        if family is None or not family.samples:
            return cls(shape, "", "", ())
        text = generate_latest(_Alone(family)).decode("utf-8")
        # Not splitlines: a label's value may hold characters that end a line elsewhere.
        lines = text.removesuffix("\n").split("\n")
        comments = [line for line in lines if line.startswith("#")]
        heads = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
        return cls(shape, text, "".join(f"{line}\n" for line in comments), heads)

    def update(self, values: Sequence[float]) -> None:
        """Write other values for the same series, in the same order."""
        lines = [f"{head} {_as_text(value)}\n" for head, value in zip(self.heads, values, strict=True)]
        self.text = self.intro + "".join(lines) if lines else ""
