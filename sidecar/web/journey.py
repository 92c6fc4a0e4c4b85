"""The stays in phases told as journeys to ready: the latest one, what came after it, and the earlier ones.

Only arithmetic on the timeline; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.lifecycle import Phase
from sidecar.web import words

_DAY_S = 86_400
_PHASES = frozenset(phase.value for phase in Phase)


@dataclass(frozen=True)
class Stay:
    """One stay in a phase: `since` in seconds since the epoch, `seconds` so far or in all."""

    phase: str
    since: float
    seconds: float
    ended: bool


@dataclass(frozen=True)
class Journey:
    """`stays` on the way to ready (or so far), `after` from ready on, `earlier` everything before this
    journey.
    """

    stays: tuple[Stay, ...]
    after: tuple[Stay, ...]
    earlier: tuple[Stay, ...]

    @property
    def arrived(self) -> bool:
        """Say whether this journey reached ready."""
        return bool(self.after)

    @property
    def seconds(self) -> float:
        """Give how long the way took, or takes so far."""
        return sum(stay.seconds for stay in self.stays)

    @property
    def title(self) -> str:
        """Name what `seconds` is."""
        if self.arrived:
            return "Time to ready"
        return "Without traffic for" if self.earlier else "Under way for"

    @property
    def said(self) -> str:
        """Say in a few words where this journey stands."""
        if not self.arrived:
            return f"served until {self._ended}" if self.earlier else "not ready yet"
        if not self.after[-1].ended and self.after[-1].phase == Phase.READY.value:
            return f"ready for {words.seconds(self.after[-1].seconds)}"
        return "was ready"

    @property
    def _ended(self) -> str:
        """Give the moment at which the journey before this one, which ends in ready, was over; with its day if long ago."""
        last = self.earlier[-1]
        moment = words.day if self.seconds > _DAY_S else words.moment
        return moment(last.since + last.seconds)


def known(phase: str) -> str:
    """Give the phase's name if there is a colour for it."""
    return phase if phase in _PHASES else Phase.STARTING.value


def latest(timeline: Iterable[Mapping[str, Any]]) -> Journey:
    """Cut the timeline: a journey ends with ready, and the next begins with whatever follows, draining
    aside.
    """
    stays = [
        Stay(
            str(span.get("phase", "")),
            words.number(span.get("since")) or 0.0,
            words.number(span.get("seconds")) or 0.0,
            bool(span.get("ended")),
        )
        for span in timeline
    ]
    ending = (Phase.READY.value, Phase.DRAINING.value, Phase.STOPPED.value)
    tail = len(stays)
    while tail and stays[tail - 1].phase in ending:
        tail -= 1
    if not any(stay.phase == Phase.READY.value for stay in stays[tail:]):
        tail = len(stays)
    start = tail
    while start and stays[start - 1].phase != Phase.READY.value:
        start -= 1
    return Journey(tuple(stays[start:tail]), tuple(stays[tail:]), tuple(stays[:start]))
