"""Sends one burst with exactly the concurrency it asks for and returns every answer.

Retries nothing and judges nothing; what errors mean is decided in `attempts.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.engines.protocol import Completion, Engine
from sidecar.engines.stream import NOT_NOW as NOT_NOW
from sidecar.errors import EngineAsleep
from sidecar.warmup.bursts import Burst
from sidecar.warmup.collecting import no_full_collections
from sidecar.warmup.prompts import BEYOND_OPENAI, Draft, PromptSource

#: Starting a request that takes longer than this is followed by a pause of `BREATH_S` before the next. Seconds.
LONG_TURN_S = 0.005
BREATH_S = 0.002
#: A client that overlooks its own deadline is cut off this much later, in seconds.
GRACE_S = 5.0
ASLEEP = "The engine is asleep; nothing is sent to it until it wakes."


@dataclass(frozen=True)
class Sent:
    """What came back from a burst. `overlapped`: later phases met running requests of the first.

    `put_off` counts answers of "not now" to requests that were sent again while others of the burst were answered.
    """

    completions: tuple[Completion, ...]
    seconds: float
    overlapped: bool = True
    put_off: int = 0

    @property
    def tokens(self) -> int:
        """Count prompt and output tokens as the engine counted them."""
        return sum(each.prompt_tokens + each.tokens for each in self.completions)

    @property
    def slowest_s(self) -> float | None:
        """Give the slowest time to first token in seconds; to the whole answer where none was streamed."""
        waits = [each.ttft_s for each in self.completions if each.ok and each.ttft_s is not None]
        return max(waits or [each.total_s for each in self.completions if each.ok], default=None)


class Traffic:
    """Sends bursts to one engine. `asleep` is asked before every phase; `clock` gives monotonic seconds."""

    def __init__(
        self, engine: Engine, prompts: PromptSource, clock: Callable[[], float], asleep: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._clock = clock
        self._asleep = asleep
        self._until = math.inf
        self._put_off = 0

    @property
    def lacks(self) -> tuple[str, ...]:
        """Name the fields that requests have gone without since `leave_out_more`."""
        return self._prompts.lacks

    def leave_out_more(self) -> bool:
        """Leave one more of the fields that not every server takes out of all requests; say whether there was one."""
        left = BEYOND_OPENAI[len(self.lacks) :]
        self._prompts.lacks = BEYOND_OPENAI[: len(self.lacks) + 1]
        return bool(left)

    def leave_out_nothing(self) -> None:
        """Send all fields again."""
        self._prompts.lacks = ()

    async def send(self, burst: Burst, timeout_s: float, until: float = math.inf) -> Sent:
        """Send all phases of a burst; each request has `timeout_s` seconds, and none lasts beyond `until`.

        All requests of a phase start at once. When this is cancelled, all of them are. Raises EngineAsleep.
        """
        started = self._clock()
        self._until, self._put_off = until, 0
        phases = self._prompts.drafts(burst, timeout_s)
        with no_full_collections(burst.concurrency):
            if burst.then == "after_first_token" and len(phases) > 1:
                completions, overlapped = await self._overlapping(phases)
            else:
                completions, overlapped = await self._one_after_another(phases), True
        return Sent(tuple(completions), self._clock() - started, overlapped, self._put_off)

    async def _one_after_another(self, phases: Sequence[Sequence[Draft]]) -> list[Completion]:
        found: list[Completion] = []
        for phase in phases:
            self._awake()
            async with asyncio.TaskGroup() as group:
                tasks = [await self._start(group, draft) for draft in phase]
            found += await self._in_turns(phase, [task.result() for task in tasks])
            if not all(each.ok for each in found):
                break
        return found

    async def _overlapping(self, phases: Sequence[Sequence[Draft]]) -> tuple[list[Completion], bool]:
        """Start the first phase; once each of its requests has shown a token, or ended, start the others."""
        self._awake()
        async with asyncio.TaskGroup() as group:
            shown = [asyncio.Event() for _ in phases[0]]
            first = [await self._start(group, draft, event) for draft, event in zip(phases[0], shown, strict=True)]
            for event in shown:
                await event.wait()
            overlapped = any(not task.done() for task in first)
            failed = any(task.done() and not (task.result().ok or _is_put_off(task.result())) for task in first)
            later: list[asyncio.Task[Completion]] = []
            if not failed and not self._asleep():
                later = [await self._start(group, draft) for phase in phases[1:] for draft in phase]
        told = [task.result() for task in [*first, *later]]
        return await self._in_turns([draft for phase in phases for draft in phase], told), overlapped

    async def _in_turns(self, drafts: Sequence[Draft], told: list[Completion]) -> list[Completion]:
        """Send again what was put off while others were answered: an engine or router that takes fewer requests at once.

        Each turn must have got something answered, and nothing is waited for beyond that; what follows is no limit on how
        many there are at once.
        """
        answered = any(each.ok for each in told)
        while answered and (again := [at for at, each in enumerate(told) if _is_put_off(each)]):
            self._awake()
            self._put_off += len(again)
            async with asyncio.TaskGroup() as group:
                tasks = {at: await self._start(group, drafts[at]) for at in again}
            answered = any(task.result().ok for task in tasks.values())
            told = [tasks[at].result() if at in tasks else each for at, each in enumerate(told)]
        return told

    async def _start(
        self, group: asyncio.TaskGroup, draft: Draft, shown: asyncio.Event | None = None
    ) -> asyncio.Task[Completion]:
        """Start one request, and let the loop breathe: 512 started in one go would hold it for a quarter of a second."""
        began = self._clock()
        task = group.create_task(self._complete(draft, shown))
        await asyncio.sleep(0)
        if self._clock() - began > LONG_TURN_S:
            # A prompt of 100,000 tokens takes 20 ms to write; what waits for the loop gets its turn before the next one.
            await asyncio.sleep(BREATH_S)
        return task

    async def _complete(self, draft: Draft, shown: asyncio.Event | None = None) -> Completion:
        """Make and send one request; `shown` is set at its first token, and at its end whatever that was."""
        started = self._clock()
        request = draft()
        request = dataclasses.replace(
            request,
            deadline_s=max(0.001, min(request.deadline_s, self._until - started)),
            on_first_token=None if shown is None else shown.set,
        )
        try:
            async with asyncio.timeout(request.deadline_s + GRACE_S):
                return await self._engine.complete(request)
        except TimeoutError:
            return Completion(
                ok=False,
                status=None,
                ttft_s=None,
                total_s=self._clock() - started,
                error_kind="timed_out",
                error=f"no complete answer within {request.deadline_s:g} s",
            )
        finally:
            if shown is not None:
                shown.set()

    def _awake(self) -> None:
        if self._asleep():
            raise EngineAsleep(ASLEEP)


def _is_put_off(completion: Completion) -> bool:
    return not completion.ok and completion.status in NOT_NOW
