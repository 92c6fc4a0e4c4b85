"""Bursts of which engines of other pods died: what is reported of them, and which reports are still believed.

Where reports lie, and when they are read, is the business of the supervisor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.warmup.deadly import Extent

#: How a report is told from other records of a key.
OUTCOME = "killer"
#: What one pod reports may have been that pod's GPU or node: it is believed for a rollout's time, and then tried again.
#: What two report is no accident; an engine or a driver that is mended has another key. Seconds.
OF_ONE_S, OF_MORE_S = 6 * 3600.0, 14 * 86_400.0
#: Clocks of nodes differ; a report from further in the future is of a clock that is wrong. Seconds.
AHEAD_S = 600.0
#: What claims to be from after the year 9999 is no time.
LATEST = 253_402_300_000.0
#: A report names no more than this; a pod that finds more deadly bursts has another trouble.
NAMES_KEPT = 50
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Reported:
    """A burst that is left out because of other pods: its name, and how many of them reported it."""

    name: str
    pods: int


def report(names: Iterable[str], plan: str, at: float) -> dict[str, Any]:
    """Make a report: names of bursts, the digest of the plan that they are of, and when, in seconds since the epoch."""
    kept = [name for name in sorted(names) if len(name) <= LONGEST_NAME][:NAMES_KEPT]
    return {"outcome": OUTCOME, "killers": kept, "plan": plan, "at": round(at, 3)}


def listed(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, float]]:
    """List what records report: burst, pod, and when, in seconds since the epoch; what makes no sense is passed over."""
    found = []
    for record in records:
        at, pod, names = record.get("at"), record.get("boot"), record.get("killers")
        if record.get("outcome") != OUTCOME or not isinstance(pod, str) or not isinstance(names, list):
            continue
        if isinstance(at, int | float) and not isinstance(at, bool) and 0 <= at <= LATEST:
            found += [(name, pod, float(at)) for name in names[:NAMES_KEPT] if _is_name(name)]
    return found


def believed(records: Iterable[Mapping[str, Any]], plan: str, boot: str, now: float) -> tuple[Reported, ...]:
    """List what reports of other pods than `boot` still say at `now`, in seconds since the epoch.

    A burst of a step is its name only within one plan; what is named by its extent is the same in all of them. What is
    no report, or makes no sense, is passed over.
    """
    seen: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        for name, pod, at in listed([record]):
            same = record.get("plan") == plan or Extent.named(name) is not None
            if same and pod != boot and at <= now + AHEAD_S:
                seen[name][pod] = max(at, seen[name].get(pod, at))
    found = []
    for name, pods in sorted(seen.items()):
        lately = sum(now - at <= OF_MORE_S for at in pods.values())
        if lately > 1 or any(now - at <= OF_ONE_S for at in pods.values()):
            found.append(Reported(name, lately))
    return tuple(found)


def sentence(found: Iterable[Reported], key: str) -> str:
    """Say what is left out because of other pods, and how it is sent again."""
    told = "; ".join(f"{each.name} ({each.pods} pod{'' if each.pods == 1 else 's'})" for each in found)
    return (
        f"Engines of other pods with the same key died of what is left out here: {told}. "
        f"`warmup-sidecar store killers {key[:12]} --forget` lets it be sent again once the reason is mended."
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()
