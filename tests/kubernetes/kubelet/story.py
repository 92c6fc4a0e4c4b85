"""What happened to a pod, in order, and a way to wait for it without sleeping.

Events are for tests to read; the emulated kubelet never looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

What = Literal[
    "started",
    "startup passed",
    "ready",
    "unready",
    "exited",
    "probe failed",
    "hook",
    "SIGTERM",
    "SIGKILL",
    "backs off",
    "deleted",
    "ended",
]


@dataclass(frozen=True)
class Event:
    """One thing that happened: when (seconds of the loop's clock), to which container (empty: the pod), and what."""

    at: float
    container: str
    what: What
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.at:9.2f} {self.container or 'pod'} {self.what} {self.detail}".rstrip()


@dataclass
class Story:
    """The events of one pod, and who waits for something."""

    events: list[Event] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, container: str, what: What, detail: str = "") -> None:
        """Add an event, and wake everybody who waits."""
        self.events.append(Event(asyncio.get_running_loop().time(), container, what, detail))
        self.wake()

    def wake(self) -> None:
        """Have everybody who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next event."""
        await self._changed.wait()

    def of(self, container: str, *what: What) -> list[Event]:
        """List what happened to a container."""
        return [event for event in self.events if event.container == container and (not what or event.what in what)]

    def order(self, *wanted: tuple[str, What]) -> list[tuple[str, What]]:
        """List container and kind of those events that are among `wanted`, as they came."""
        return [(event.container, event.what) for event in self.events if (event.container, event.what) in wanted]

    async def until(self, holds: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait until `holds`; it is looked at after every event. Past the deadline fail with the story."""
        try:
            async with asyncio.timeout(deadline_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            told = "\n".join(str(event) for event in self.events[-40:])
            raise AssertionError(f"not within {deadline_s:g} s: {what}. The pod's story:\n{told}") from None
