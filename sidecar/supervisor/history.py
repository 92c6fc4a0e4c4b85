"""Earlier starts with the same key, as their records in the store tell them, for `/status` and its page.

Only told here; what a record proves about a generation is decided in `caches`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.caches.client import BootsRequest
from sidecar.caches.manifest import sequence_of
from sidecar.supervisor.pod import Pod

#: Reading small files of the store; a store that takes longer hangs. Seconds.
STORE_S = 30.0
#: So many starts are shown: a bar each still has some pixels on a telephone.
SHOWN = 60
#: A start that took longer than a month, or that came after the year 9999, was measured by nobody.
LONGEST_S, LATEST = 31 * 86_400.0, 253_402_300_000.0
OUTCOMES = ("ready", "made", "died")


async def read(pod: Pod) -> tuple[Mapping[str, Any], ...]:
    """Read the records of the exact key, and show them. A store that is away costs the history only."""
    key = pod.restored.exact_key if pod.restored else ""
    if not pod.store or not key:
        return ()
    records = await pod.caches.boots(BootsRequest(store=pod.store, scope="exact", key=key), STORE_S)
    pod.board.history = {"key": key, "starts": starts(records, pod.restored_attempt)}
    return records


def fields(pod: Pod) -> dict[str, Any]:
    """Give what a boot's record says for later histories: when it was written, and how long the start took until ready."""
    took = pod.board.engine.get("ready_after_s")
    return {"at": round(pod.board.wall(), 3), **({} if took is None else {"ready_s": took})}


def starts(records: Iterable[Mapping[str, Any]], attempt: str) -> list[dict[str, Any]]:
    """List the starts by generation and time, without this one; what isn't sensible in a record is left out or null.

    `outcome`: `made` (it compiled the generation), `ready` (restored from it), `died` (before ready). `seconds` until
    ready, `at` in seconds since the epoch.
    """
    found = [
        {
            "generation": str(record.get("generation") or "")[:64],
            "outcome": record["outcome"],
            "seconds": _within(record.get("ready_s"), LONGEST_S),
            "cold": record["cold"] if isinstance(record.get("cold"), bool) else None,
            "at": _within(record.get("at"), LATEST),
        }
        for record in records
        if record.get("outcome") in OUTCOMES and record.get("attempt") != attempt
    ]
    found.sort(key=lambda each: (sequence_of(each["generation"]), each["at"] or 0.0, each["outcome"] != "made"))
    return found[-SHOWN:]


def _within(value: object, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 < value <= most else None
