"""Traffic that was learned from an engine's histograms, as a part of a profile's mix: counts of requests by size.

How it is learned is known to the command; what is drawn from it, to `planner.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from sidecar.warmup.recorded import BUCKETS_KEPT, LARGEST, MOST_COUNTED, Distribution, RecordedMix
from sidecar.warmup.steps import Strict

#: Pairs of an upper bound and how many requests lie between it and the bound before.
Buckets = Annotated[
    Distribution,
    PlainValidator(Distribution.from_json),
    PlainSerializer(lambda found: found.to_json(), return_type=list[Any]),
    WithJsonSchema({
        "type": "array", "minItems": 1, "maxItems": BUCKETS_KEPT,
        "items": {
            "type": "array", "minItems": 2, "maxItems": 2,
            "prefixItems": [
                {"type": "integer", "minimum": 1, "maximum": LARGEST},
                {"type": "number", "minimum": 0, "maximum": MOST_COUNTED},
            ],
        },
    }),
]  # fmt: skip


class Learned(Strict):
    """What users sent: `requests` in all, and how many of each size, as pairs of an upper bound and a count.

    Bounds ascend; a pair counts what lies above the bound before it. Lengths in tokens. Without `concurrency` the mix's
    span counts for it.
    """

    requests: float = Field(gt=0, le=MOST_COUNTED)
    prompt_tokens: Buckets
    output_tokens: Buckets
    concurrency: Buckets | None = None

    @property
    def mix(self) -> RecordedMix:
        """Give it as traffic that was recorded."""
        return RecordedMix(self.prompt_tokens, self.output_tokens, self.concurrency or Distribution(), self.requests)

    @property
    def sentence(self) -> str:
        """Tell it to people."""
        return f"Random draws follow what the profile's mix has learned of {self.requests:,.0f} requests: {self.mix.sizes}."
