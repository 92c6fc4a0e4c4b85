"""Which steps of the engine a warm-up has visited, as points of (tokens, requests): what a picture of coverage is made of.

Nothing is judged or drawn here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.warmup.bursts import Burst
from sidecar.warmup.coverage import Coverage, Matter
from sidecar.warmup.planner import Plan
from sidecar.warmup.records import burst_id
from sidecar.warmup.search import BATCHES, TOGETHER, TOKENS

#: Points in `/status`, of about 15 bytes each; beyond that the visited ones are thinned out.
POINTS_KEPT = 1500
#: Later ones are drawn over earlier ones.
STATES = ("visited", "replayed", "compiled")
_TOGETHER = re.compile(re.escape(TOGETHER).replace(r"\{\}", r"(\d{1,9})"))

Point = tuple[int, int]


def picture(plan: Plan, known: Coverage | None, found: Coverage | None, replayed: int) -> dict[str, Any]:
    """Give the points by state, what the next pod replays, and the engine's limits.

    A point is the tokens that one step reads, and the requests they are of. `compiled`: in this warm-up; `replayed`:
    compiled by an earlier pod and sent again here (`replayed` bursts); `visited`: compiled nothing. `omitted` counts
    visited points that were thinned out.
    """
    earlier = {(each.name, repr(each.burst)): each.names for each in known.matters} if known else {}
    old, new = list[Matter](), list[Matter]()
    for each in found.matters if found else ():
        (old if each.names <= earlier.get((each.name, repr(each.burst)), frozenset()) else new).append(each)
    planned = {burst_id(step, burst): burst for step in plan.steps for burst in step.bursts}
    compiled = _points(new, planned)
    sent_again = (_points(old, planned) if replayed else set[Point]()) - compiled
    visited = (_visited(found.sizes) if found else set[Point]()) - compiled - sent_again
    shown = _thinned(visited, max(0, POINTS_KEPT - len(compiled) - len(sent_again)))
    return {
        "visited": shown,
        "replayed": _thinned(sent_again, POINTS_KEPT),
        "compiled": _thinned(compiled, POINTS_KEPT),
        "omitted": len(visited) - len(shown),
        "max_tokens": plan.limits.max_num_batched_tokens,
        "max_requests": plan.limits.max_num_seqs,
        "converged": found.converged if found else False,
    }


def _visited(sizes: Mapping[str, Iterable[int]]) -> set[Point]:
    points: set[Point] = set()
    for scale, values in sizes.items():
        together = _TOGETHER.fullmatch(scale)
        if scale == BATCHES:
            # A step of decodes alone reads one token of each request.
            points |= {(size, size) for size in values}
        elif scale == TOKENS or together:
            points |= {(size, int(together[1]) if together else 1) for size in values}
    return {point for point in points if min(point) >= 1}


def _points(matters: Iterable[Matter], planned: Mapping[str, Burst]) -> set[Point]:
    bursts = (planned.get(each.name, each.burst) for each in matters)
    return {_point(burst) for burst in bursts if burst is not None}


def _point(burst: Burst) -> Point:
    tokens = max(sum(ask.count * ask.prompt_tokens for ask in phase) for phase in burst.phases)
    return tokens, burst.concurrency


def _thinned(points: set[Point], most: int) -> list[Point]:
    """Give at most so many points in order, evenly taken."""
    ordered = sorted(points)
    if len(ordered) <= most:
        return ordered
    return [ordered[index * len(ordered) // most] for index in range(most)]
