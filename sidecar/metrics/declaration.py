"""What a metric is: the type of a row in the tables of this room, with the most series that it can have.

No metric is declared here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PREFIX = "warmup_sidecar_"
#: Where a value goes whose name isn't known, so that no outsider can grow the number of series.
OTHER = "other"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric: name without prefix, type, meaning, unit, and its labels with the values that exist from birth.

    A label whose values are None is open: its series appear with their source and go with it, and `most` says how many
    values it has at the same time at most; without a number one. `optional`: no series until there is a value.
    `buckets` is how many a histogram has at most, the last one included.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    optional: bool = False
    most: Mapping[str, int] = field(default_factory=dict)
    buckets: int = 0

    def series(self, families: int) -> int:
        """Give how many series a scrape has of it at most; `families` is how many cache families there are."""
        values = [
            families + 1 if label == "family" else self.most.get(label, 1) if values is None else len(values)
            for label, values in self.labels.items()
        ]
        # A histogram has a sum and a count besides.
        return math.prod(values) * (self.buckets + 2 if self.kind == "histogram" else 1)
