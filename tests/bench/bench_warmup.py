"""How far a warm-up reaches on 200 random engines, what a replay costs, and how long the event loop is held.

Run it by hand, `python -m tests.bench.bench_warmup`; nothing here is a test, and no number is asserted. The engines run in
virtual time (`warmup_reach.py`), replay and load against a real HTTP server in this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import quantile
from tests.bench.warmup_load import Load, load_of, replay_cost
from tests.bench.warmup_reach import MAX_TOKENS, SAMPLED, Reach, by_powers, reach, reference

ENGINES = 200
#: The search was developed on engines 0 to 199; what it is judged by are others.
FIRST = 10_000
#: Engines of the first fifth and of the last, by their breakpoints, between which growth is measured.
FIFTH = 5


def reach_figures(found: Sequence[Reach], powers: Sequence[Reach]) -> list[Figure]:
    """Say how much of the mix is left to live traffic, of how many engines."""
    of = f"{len(found)} engines"
    left, stalls = [1 - each.covered for each in found], [float(each.stalls) for each in found]
    wrong = sum(each.claimed_wrongly for each in found) / len(found)
    by_hand = [1 - each.covered for each in powers]
    return [
        Figure("mix left", "average", statistics.mean(left) * 100, "%", 0.5, of),
        Figure("mix left", "worst", max(left) * 100, "%", 2, of),
        Figure("stalls", f"median in {SAMPLED} requests", statistics.median(stalls), "", 0, of),
        Figure("stalls", f"p95 in {SAMPLED} requests", quantile(stalls, 0.95), "", 5, of),
        Figure("converged", "claimed wrongly", wrong * 100, "%", 5, of),
        Figure(
            "converged", "not claimed", sum(each.result.outcome != "converged" for each in found), "engines", None, of
        ),
        Figure("powers of two", "mix left, average", statistics.mean(by_hand) * 100, "%", None, of),
        Figure("powers of two", "stalls, median", statistics.median([each.stalls for each in powers]), "", None, of),
        *growth_figures(found),
    ]


def growth_figures(found: Sequence[Reach]) -> list[Figure]:
    """Compare the requests of engines with few breakpoints with those of engines with many."""
    ordered = sorted(found, key=lambda each: each.breakpoints)
    part = max(1, len(ordered) // FIFTH)
    few, many = ordered[:part], ordered[-part:]

    def average(some: Sequence[Reach], searched: bool) -> float:
        return statistics.mean(each.result.searched if searched else each.breakpoints for each in some)

    points = average(many, False) / average(few, False)
    requests = average(many, True) / average(few, True)
    range_ = math.log2(MAX_TOKENS)
    each = statistics.mean(one.result.searched / (one.breakpoints * range_) for one in found)
    return [
        Figure("search", f"requests, with {points:.1f} times the breakpoints", requests, "times", points, "fifths"),
        Figure("search", "requests per breakpoint and halving of the range", each, "", None, f"{len(found)} engines"),
        Figure("search", "requests, average", statistics.mean(one.result.searched for one in found), "", None, ""),
        Figure("warm-up", "requests, average", statistics.mean(one.result.requests for one in found), "", None, ""),
    ]


def load_figures(loads: Sequence[Load]) -> list[Figure]:
    """Say how long the loop was held, and what memory grew by, while bursts were sent."""
    found = []
    for each in loads:
        found.append(Figure(each.name, "loop held at most", each.held_s * 1000, "ms", 50, each.note))
        found.append(Figure(each.name, "timer late at most", each.lag_s * 1000, "ms", None, each.note))
        found.append(Figure(each.name, "memory, more than before", each.grown_mib, "MiB", 256, each.note))
    return found


def measure(engines: int, first: int, workers: int, only: str) -> list[Figure]:
    """Measure everything; `only` names one part, `first` is the number of the first of the random engines."""
    found: list[Figure] = []
    if only in ("", "reach"):
        reference()
        with ProcessPoolExecutor(workers) as pool:
            seeds = range(first, first + engines)
            found += reach_figures(
                list(pool.map(reach, seeds, chunksize=4)), list(pool.map(by_powers, seeds, chunksize=4))
            )
    if only in ("", "replay"):
        ratio, note = asyncio.run(replay_cost())
        found.append(Figure("replay", "of the bare cost of its requests", ratio, "times", 1.3, note))
    if only in ("", "load"):
        found += load_figures(asyncio.run(load_of()))
    return found


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--first", type=int, default=FIRST, help="Number (seed) of the first engine.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=("", "reach", "replay", "load"), default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures = measure(given.engines, given.first, given.workers, given.only)
    print(f"{machine()}\n\n{table(figures)}")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
