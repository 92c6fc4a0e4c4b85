"""Warms adapters that are loaded while the pod serves: the first pass of a LoRA rank that was never used is slow.

Adapters that were there at ready belong to the warm-up's own steps. Nothing is sent to an engine that sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.errors import EngineError
from sidecar.supervisor.pod import Pod
from sidecar.warmup.passages import PASSAGES

#: So many adapters are warmed in one stay in ready; an engine that is given new ones by the hundred has few ranks.
AT_MOST = 16
#: Alone and a few together: with an adapter, batches of one and of several have kernels of their own.
TOGETHER = 3
TOKENS = 8


class AdapterWatch:
    """Knows which adapters were warmed in this stay in ready."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        limits = pod.board.engine.get("limits")
        known = limits.get("adapters") if isinstance(limits, Mapping) else None
        self._known = {str(name) for name in known} if isinstance(known, list | tuple) else set[str]()
        self._warmed = 0

    async def look(self) -> tuple[str, ...]:
        """Warm the adapters that are new since the last look, and name them. Never raises for what the engine does."""
        pod = self._pod
        if pod.asleep():
            return ()
        try:
            served = await pod.engine.adapters()
        except EngineError:
            return ()
        new = [name for name in served if name not in self._known]
        self._known.update(new)
        return tuple([name for name in new if await self._warm(name)])

    async def _warm(self, name: str) -> bool:
        if self._warmed >= AT_MOST:
            return False
        answers: list[Completion] = []
        for numbers in (range(1), range(1, 1 + TOGETHER)):
            if await self._sleeps():
                self._known.discard(name)
                return False
            answers += await self._send(name, numbers)
        self._warmed += 1
        pod = self._pod
        bad = next((each.error for each in answers if not each.ok), None)
        slowest = max(each.total_s for each in answers)
        told = f"it does not answer: {bad}" if bad else f"{len(answers)} requests, the slowest took {slowest:.2f} s"
        pod.board.tell(
            f"Adapter {name} was loaded while serving and is warmed now: {told}.", "warning" if bad else "info"
        )
        return True

    async def _sleeps(self) -> bool:
        """Say whether nothing may be sent: what the watcher saw is seconds old, and a request could end a sleeping engine."""
        try:
            return self._pod.asleep() or bool((await self._pod.engine.stats()).asleep)
        except EngineError:
            return True

    async def _send(self, name: str, numbers: Iterable[int]) -> list[Completion]:
        pod = self._pod
        requests = [
            CompletionRequest(
                prompt=PASSAGES[number % len(PASSAGES)],
                max_tokens=TOKENS,
                model=name,
                cache_salt=f"adapter-{pod.boot}-{name}-{number}",
                deadline_s=pod.settings.request_timeout_s,
            )
            for number in numbers
        ]
        return list(await asyncio.gather(*(pod.engine.complete(request) for request in requests)))
