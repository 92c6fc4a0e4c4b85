"""Keeps full garbage collections short, and out of the time in which hundreds of streams are in flight.

Measures nothing and frees nothing itself; what is sent meanwhile is the business of who sends it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: From so many requests in flight on it pays. A stream is about a hundred objects, and a full collection walks all of
#: them in one go: 90 to 100 ms with 512 streams, 40 ms where the imports are frozen (CPython 3.11, 2 cores of an AMD EPYC).
MANY = 64
#: Collections of the middle generation before a full one. So many never come together while a load lasts.
NEVER = 1 << 30
#: Loads that are under way, and the thresholds from before the first of them.
_before: list[tuple[int, int, int]] = []


def keep_imports() -> None:
    """Take what is there by now, imports above all, out of later collections: each would walk it for some 30 ms."""
    gc.collect()
    gc.freeze()


@contextmanager
def no_full_collections(streams: int) -> Iterator[None]:
    """Hold full collections off while this many streams are in flight; of few, nothing is changed.

    What is young is collected as ever. A stream's own objects are freed when it ends, so that nothing piles up.
    """
    if streams < MANY:
        yield
        return
    _before.append(gc.get_threshold())
    young, middle, _ = _before[0]
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        first = _before[0]
        _before.pop()
        if not _before:
            gc.set_threshold(*first)
