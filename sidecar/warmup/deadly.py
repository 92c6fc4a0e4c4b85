"""Bursts outside the steps of which an engine died: how they are named, so that the next warm-up of the pod knows them.

Bursts of steps have names of their own; who is to blame for a death is decided in `attempts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sidecar.warmup.bursts import Burst

#: How the names of random draws begin. No draw comes twice, so that deaths of several are counted together.
DRAWN = "draws/"
_NAME = re.compile(r"^(?P<phase>[a-z ]+)/(?P<requests>\d+) at once, up to (?P<longest>\d+) of (?P<tokens>\d+) tokens$")


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a burst is: requests at once, tokens of its longest prompt, tokens of all prompts and outputs."""

    requests: int
    longest: int
    tokens: int

    @classmethod
    def of(cls, burst: Burst) -> Extent:
        """Measure a burst."""
        return cls(burst.concurrency, burst.longest_prompt, burst.tokens)

    @classmethod
    def named(cls, name: str) -> Extent | None:
        """Read an extent out of the name that `name_of` gave; None for names of steps' bursts."""
        found = _NAME.match(name)
        return None if found is None else cls(*(int(found[part]) for part in ("requests", "longest", "tokens")))

    def name_of(self, phase: str) -> str:
        """Name a burst of this extent that a phase sent: the same shape has the same name in every warm-up."""
        return f"{phase}/{self.requests} at once, up to {self.longest} of {self.tokens} tokens"

    def within(self, other: Extent) -> bool:
        """Say whether the other one is at least as large in every way."""
        return self.requests <= other.requests and self.longest <= other.longest and self.tokens <= other.tokens


class Deadly:
    """What is left out because engines died of it outside the steps. `killers` are names; those of steps are passed over.

    An engine that has answered something at least as large did not die of size: that one burst is left out, and its
    neighbours are sent. Where it has not, size may be what kills, and each further death would cost a start: then
    nothing goes beyond what was answered.
    """

    def __init__(self, killers: Iterable[str]) -> None:
        known = ((name, Extent.named(name)) for name in killers)
        self._killers = {name: extent for name, extent in known if extent is not None}
        # Only the largest: whatever fits into one of them says nothing more.
        self._answered: list[Extent] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Name what is left out."""
        return tuple(sorted(self._killers))

    def answered(self, burst: Burst) -> None:
        """Note a burst whose requests were all answered."""
        size = Extent.of(burst)
        if not _any_holds(self._answered, size):
            self._answered = [each for each in self._answered if not each.within(size)] + [size]

    def add(self, burst: Burst, phase: str) -> str:
        """Note a burst of which the engine just died, and give it a name."""
        size = Extent.of(burst)
        name = size.name_of(phase)
        self._killers[name] = size
        return name

    def is_known(self, burst: Burst) -> bool:
        """Say whether an engine died of a burst of just this extent."""
        return Extent.of(burst) in self._killers.values()

    def is_beyond(self, burst: Burst) -> bool:
        """Say whether a burst is as large as one that killed, and nothing as large as that one was answered yet."""
        size = Extent.of(burst)
        return any(each.within(size) and not _any_holds(self._answered, each) for each in self._killers.values())

    def leaves_out(self, burst: Burst) -> bool:
        """Say whether a burst outside the steps must not be sent."""
        size = Extent.of(burst)
        return any(size == killer or self._too_large(size, killer) for killer in self._killers.values())

    def _too_large(self, size: Extent, killer: Extent) -> bool:
        if _any_holds(self._answered, killer):
            return False
        return killer.within(size) or (size.within(killer) and not _any_holds(self._answered, size))


def _any_holds(extents: Collection[Extent], size: Extent) -> bool:
    return any(size.within(each) for each in extents)
