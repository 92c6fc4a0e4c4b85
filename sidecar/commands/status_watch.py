"""Asking many daemons for their status at the same time, once or again and again.

How it is shown is in `watch_view.py`; how one daemon is spoken to, in `web/client.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.errors import WarmupError
from sidecar.web.client import DaemonClient

#: Daemons that are asked at the same moment: a process may open about a thousand files.
AT_ONCE = 64


@dataclass
class Watched:
    """One daemon that is asked: its last answer, or `trouble`, a sentence why there is none now. `answers` counts both."""

    url: str
    status: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    answers: int = 0

    @property
    def is_ready(self) -> bool:
        """Say whether it answers, and that it is ready."""
        return not self.trouble and self.status.get("ready") is True


async def look(watched: Sequence[Watched], answered: Callable[[Watched], None] = lambda _: None) -> None:
    """Ask all of them once; `answered` is called for each as soon as its answer is there."""
    room = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_ask(each, room, answered) for each in watched))


async def follow(watched: Sequence[Watched], interval_s: float, answered: Callable[[Watched], None]) -> None:
    """Ask each of them every `interval_s` seconds, a slow one without holding the others up. Runs until cancelled."""
    room = asyncio.Semaphore(AT_ONCE)

    async def again(each: Watched) -> None:
        while True:
            await _ask(each, room, answered)
            await asyncio.sleep(interval_s)

    # Not a task group: a reader that went away has to come through as the error that it is.
    await asyncio.gather(*(again(each) for each in watched))


async def _ask(each: Watched, room: asyncio.Semaphore, answered: Callable[[Watched], None]) -> None:
    async with room:
        try:
            async with DaemonClient(each.url) as client:
                each.status, each.trouble = await client.status(), ""
        except WarmupError as error:
            each.status, each.trouble = {}, str(error)
    each.answers += 1
    answered(each)
