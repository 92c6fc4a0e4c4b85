"""The traffic that users sent to earlier pods: lengths and concurrency as distributions, in a document beside the kernels.

What is drawn from it is decided in `planner.py`; the numbers are collected by the supervisor while a pod serves.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sidecar.errors import FileUnreadable
from sidecar.files import read_json, write_json_durably

#: Number of the format; another one is foreign. Raise it when a field changes its meaning.
FORMAT = 1
#: The family of what the sidecar itself keeps in the live cache, so that it is published and restored with the kernels.
FAMILY = "warmup_coverage"
FILE_NAME = "mix.json"
#: vLLM has about 20 buckets of lengths; a document with many more is none of ours.
BUCKETS_KEPT = 128
LARGEST = 1 << 24
#: No count of requests gets there; sums of larger numbers overflow.
MOST_COUNTED = 1e15
#: Earlier traffic counts half beside new, and as so many requests at most: what users send changes.
DECAY, MOST_EARLIER = 0.5, 50_000.0
#: Pods are counted up to here.
MOST_PODS = 1000
#: So few requests are no distribution.
LEAST_REQUESTS = 100


@dataclass(frozen=True)
class Distribution:
    """Counts by size. Bucket i holds sizes above the bound before it, up to `bounds[i]`; bounds ascend."""

    bounds: tuple[int, ...] = ()
    counts: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """Count everything in it."""
        return math.fsum(self.counts)

    def quantile(self, share: float) -> int:
        """Give the size below which this share (0 to 1) lies; within a bucket sizes are even in their logarithm."""
        reached = list(itertools.accumulate(self.counts))
        wanted = min(max(share, 0.0), 1.0) * reached[-1]
        at = min(bisect_right(reached, wanted), len(reached) - 1)
        while not self.counts[at]:
            at -= 1
        low, high = (self.bounds[at - 1] + 1 if at else 1), self.bounds[at]
        inside = (wanted - (reached[at] - self.counts[at])) / self.counts[at]
        return min(high, max(low, round(low * math.pow(high / low, min(1.0, max(0.0, inside))))))

    def distance(self, other: Distribution) -> float:
        """Give the largest difference of the two cumulative shares, 0 (the same) to 1 (nothing in common)."""
        return max(
            (abs(self._share(bound) - other._share(bound)) for bound in {*self.bounds, *other.bounds}), default=0.0
        )

    def _share(self, bound: int) -> float:
        return math.fsum(self.counts[: bisect_right(self.bounds, bound)]) / (self.total or 1.0)

    def plus(self, other: Distribution, factor: float) -> Distribution:
        """Add another one, weighted."""
        sums = dict(zip(self.bounds, self.counts, strict=True))
        for bound, count in zip(other.bounds, other.counts, strict=True):
            sums[bound] = sums.get(bound, 0.0) + count * factor
        return Distribution.of(sums)

    @classmethod
    def of(cls, counts: Mapping[int, float]) -> Distribution:
        """Make one of counts by upper bound.

        An empty bucket is kept where it is the lower end of one that isn't: else sizes would be drawn from the gap.
        """
        bounds = sorted(counts)
        kept = [
            (bound, max(0.0, counts[bound]))
            for bound, after in itertools.zip_longest(bounds, bounds[1:])
            if counts[bound] > 0 or (after is not None and counts[after] > 0)
        ]
        return cls(tuple(bound for bound, _ in kept), tuple(count for _, count in kept))

    def to_json(self) -> list[list[float]]:
        """Give pairs of bound and count."""
        return [[bound, round(count, 3)] for bound, count in zip(self.bounds, self.counts, strict=True)]

    @classmethod
    def from_json(cls, pairs: Any) -> Distribution:
        """Read pairs of bound and count. Raises ValueError."""
        if not isinstance(pairs, list) or not 1 <= len(pairs) <= BUCKETS_KEPT:
            raise ValueError(f"a distribution has 1 to {BUCKETS_KEPT} buckets")
        before = 0
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError("a bucket is a bound and a count")
            if type(pair[0]) is not int or not before < pair[0] <= LARGEST:
                raise ValueError("the bounds of buckets are whole numbers that ascend")
            if not _is_count(pair[1]):
                raise ValueError(f"a count is a number from 0 to {MOST_COUNTED:g}")
            before = pair[0]
        found = cls.of(dict(pairs))
        if not found.total > 0:
            raise ValueError("a distribution holds something")
        return found


@dataclass(frozen=True)
class RecordedMix:
    """What users sent: lengths in tokens, requests that ran at once; of so many `requests` and `pods`."""

    prompt_tokens: Distribution
    output_tokens: Distribution
    concurrency: Distribution
    requests: float
    pods: int = 1

    @property
    def sentence(self) -> str:
        """Tell it to people."""
        pods = f"{self.pods} pod{'' if self.pods == 1 else 's'}"
        return f"Random draws follow what users sent to {pods} ({self.requests:,.0f} requests): {self.sizes}."

    @property
    def parts(self) -> dict[str, Distribution]:
        """Give the distributions by their names, without one that nothing is known of."""
        found = {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "concurrency": self.concurrency,
        }
        return {name: part for name, part in found.items() if part.total}

    @property
    def sizes(self) -> str:
        """Tell the sizes, as a part of a sentence."""
        words = {"prompt_tokens": "prompts of", "output_tokens": "outputs of", "concurrency": "requests at once"}
        return "; ".join(
            f"{words[name]} {part.quantile(0.5):,} in the middle and {part.quantile(0.95):,} at the 95th percentile"
            for name, part in self.parts.items()
        )

    def differs_from(self, other: RecordedMix) -> float:
        """Give the largest distance of any of its distributions from the other's, 0 to 1."""
        return max(
            self.prompt_tokens.distance(other.prompt_tokens),
            self.output_tokens.distance(other.output_tokens),
            self.concurrency.distance(other.concurrency),
        )

    def after(self, earlier: RecordedMix | None) -> RecordedMix:
        """Join with what was recorded before, which counts less the older it is."""
        if earlier is None:
            return self
        factor = min(DECAY, MOST_EARLIER / max(1.0, earlier.requests))
        return RecordedMix(
            self.prompt_tokens.plus(earlier.prompt_tokens, factor),
            self.output_tokens.plus(earlier.output_tokens, factor),
            self.concurrency.plus(earlier.concurrency, factor),
            self.requests + earlier.requests * factor,
            min(MOST_PODS, self.pods + earlier.pods),
        )

    def to_json(self) -> dict[str, Any]:
        """Give the document."""
        return {
            "format": FORMAT,
            "pods": self.pods,
            "requests": round(self.requests, 1),
            "prompt_tokens": self.prompt_tokens.to_json(),
            "output_tokens": self.output_tokens.to_json(),
            "concurrency": self.concurrency.to_json(),
        }

    @classmethod
    def from_json(cls, document: Any) -> RecordedMix:
        """Read a document. Raises ValueError with what is wrong with it."""
        if not isinstance(document, Mapping):
            raise ValueError("it is no JSON object")
        if document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')}, and this version reads {FORMAT}")
        requests, pods = document.get("requests"), document.get("pods")
        if not _is_count(requests):
            raise ValueError(f"`requests` is a number from 0 to {MOST_COUNTED:g}")
        if type(pods) is not int or not 1 <= pods <= MOST_PODS:
            raise ValueError(f"`pods` is a whole number from 1 to {MOST_PODS}")
        parts = [
            Distribution.from_json(document.get(name)) for name in ("prompt_tokens", "output_tokens", "concurrency")
        ]
        return cls(parts[0], parts[1], parts[2], float(requests), pods)

    def save(self, path: Path) -> None:
        """Write the document whole or not at all, its folder too. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_durably(path, self.to_json())


def _is_count(value: Any) -> TypeGuard[int | float]:
    # type() and not isinstance(): a bool is no number here. Compared first: an int may be too large for a float.
    return type(value) in (int, float) and 0 <= value <= MOST_COUNTED


def mix_path(live_cache: Path) -> Path:
    """Say where the document lies below a live cache, to be published and restored with the kernels."""
    return live_cache / FAMILY / FILE_NAME


def load(path: Path) -> tuple[RecordedMix | None, str]:
    """Read the traffic that earlier pods recorded, or None with a sentence; empty when there is none at all."""
    try:
        found = RecordedMix.from_json(read_json(path))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, FileUnreadable, RecursionError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        told = f"The traffic recorded by earlier pods in {path} can't be used, so the profile's mix counts: {why}"
        return None, told.rstrip(".") + "."
    return (found, "") if found.requests >= LEAST_REQUESTS else (None, "")


def of_buckets(now: Mapping[float, float], before: Mapping[float, float], longest: int) -> Distribution:
    """Make a distribution of what came into a histogram since `before`; both count up to each upper bound, in tokens.

    What lies beyond the last bound is counted as `longest`. Bounds that were not there before count from 0.
    """
    counts: dict[int, float] = {}
    below = 0.0
    for bound in sorted(now):
        since = max(0.0, now[bound] - before.get(bound, 0.0))
        size = min(max(1, longest), math.floor(bound) if math.isfinite(bound) else longest)
        counts[max(1, size)] = counts.get(max(1, size), 0.0) + max(0.0, since - below)
        below = max(below, since)
    return Distribution.of(counts)


def of_samples(values: Iterable[int]) -> Distribution:
    """Make a distribution of sizes that were seen, in eighths of an octave from 16 on."""
    counts: dict[int, float] = {}
    for value in values:
        step = 1 << max(0, value.bit_length() - 4)
        bound = -(-value // step) * step
        counts[bound] = counts.get(bound, 0.0) + 1.0
        if bound > step:
            counts.setdefault(bound - step, 0.0)
    return Distribution.of(counts)


def quantiles(found: Distribution, shares: Sequence[float] = (0.5, 0.95)) -> dict[str, int]:
    """Give some quantiles by their names, such as `p95`."""
    return {f"p{share * 100:g}": found.quantile(share) for share in shares}
