"""Sends a burst until it has ended one way or another: what an error means, and whether it is tried again.

Knows one burst at a time; rounds, evidence and outcomes are the business of `runner.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidecar.engines.protocol import Completion, Engine, Health
from sidecar.errors import EngineAsleep, EngineError
from sidecar.warmup.bursts import Burst
from sidecar.warmup.traffic import ASLEEP, NOT_NOW, Sent, Traffic

Verdict = Literal["done", "unsupported", "broken", "unauthorized", "timed_out", "engine_gone", "asleep", "out_of_time"]
#: What is known of the engine's sleep, and of which process it is, may be so old when a burst is sent. Seconds. What the
#: watcher knows is up to 5 s old, and reading the metrics costs some 10 ms, which a burst of 50 ms should not pay each time.
FRESH_S = 0.5
#: A look takes no longer, and after one that told nothing the next waits for so long: the watcher's word counts meanwhile. Seconds.
LOOK_S, BLIND_S = 1.0, 5.0
#: Answers that say that a field is not taken; 404 is about the model or the endpoint.
AT_FAULT = (400, 422)
#: Timers fire a little early or late; a request cut off this close to the end of the budget was cut off by
#: it. Seconds.
CLOCK_SLACK_S = 0.05
_GONE_STATES = ("refused", "reset", "unhealthy", "starting", "unreachable")
_WORST_FIRST = ("unauthorized", "refused", "reset", "timed_out", "broken", "not_json", "unsupported")


@dataclass(frozen=True)
class WarmPolicy:
    """The numbers of a warm-up. Durations in seconds.

    `budget_s`: cap of the whole warm-up; 0 sends nothing. `request_timeout_s`: cap of one request. `retries`:
    how often a burst that broke is sent again, after `retry_pause_s`, doubled each time. `unavailable_s`: how
    long an engine may answer 503 or 429. `failures`: after so many broken bursts nothing more is tried.
    """

    budget_s: float = 1800.0
    request_timeout_s: float = 900.0
    retries: int = 2
    retry_pause_s: float = 1.0
    unavailable_s: float = 120.0
    failures: int = 3


@dataclass(frozen=True)
class Attempt:
    """How a burst ended. `reason` is a word for metrics such as `warmup_http_500`, `detail` a sentence.

    `blamed`: the engine died while it worked on this burst, and not already before.
    """

    verdict: Verdict
    sent: Sent = field(default_factory=lambda: Sent((), 0.0))
    detail: str = ""
    reason: str = ""
    blamed: bool = False


class Attempts:
    """Sends bursts to one engine process, with retries, until a deadline. `clock` gives monotonic seconds."""

    def __init__(self, engine: Engine, traffic: Traffic, policy: WarmPolicy, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._traffic = traffic
        self._policy = policy
        self._clock = clock
        self._deadline = 0.0
        self._identity: str | None = None
        self._looked_at = -math.inf
        self._first = True

    @property
    def lacks(self) -> tuple[str, ...]:
        """Name the fields that this engine refused in the first request, and that are left out since."""
        return self._traffic.lacks

    async def begin(self, deadline: float) -> None:
        """Set when the budget ends, and learn which engine process this is, where its metrics tell."""
        self._deadline = deadline
        self._identity = await self._ask_identity()

    async def send(self, burst: Burst) -> Attempt:
        """Send a burst until it is done, or until trying again makes no sense."""
        tries, waited = 0, 0.0
        while True:
            left = self._deadline - self._clock()
            if left <= 0:
                return Attempt("out_of_time", detail="The budget ended before this could be sent.", reason="budget")
            try:
                if changed := await self._changed(fresh_s=0.0 if tries else FRESH_S):
                    return Attempt("engine_gone", detail=changed, reason="engine_gone", blamed=tries > 0 and not waited)
                sent = await self._send_plainer(burst) if self._first else await self._send(burst)
            except EngineAsleep as error:
                return Attempt("asleep", detail=str(error), reason="engine_asleep")
            worst = _worst(sent.completions)
            if worst is None:
                return Attempt("done", sent, _remarkable(sent))
            if (settled := self._settled(sent, worst)) is not None:
                return settled
            gone = await self._gone(worst)
            if gone:
                blamed = tries > 0 or any(each.error_kind != "refused" for each in sent.completions)
                return Attempt("engine_gone", sent, gone, "engine_gone", blamed)
            pause = self._policy.retry_pause_s * 2 ** min(tries, 3)
            if worst.status in NOT_NOW and waited < self._policy.unavailable_s:
                waited += pause
            elif tries >= self._policy.retries:
                return Attempt("broken", sent, _said(worst), _reason(worst))
            tries += 1
            await asyncio.sleep(min(pause, max(0.0, self._deadline - self._clock())))

    async def _send(self, burst: Burst) -> Sent:
        return await self._traffic.send(burst, self._policy.request_timeout_s, self._deadline)

    async def _send_plainer(self, burst: Burst) -> Sent:
        """Send the first burst, without the fields beyond OpenAI's where the engine, or what stands before it, refuses them."""
        self._first = False
        first = sent = await self._send(burst)
        while _refuses_all(sent) and self._traffic.leave_out_more():
            sent = await self._send(burst)
        if not _refuses_all(sent):
            return sent
        # Whatever it was, it was not these fields.
        self._traffic.leave_out_nothing()
        return first

    def _settled(self, sent: Sent, worst: Completion) -> Attempt | None:
        """Say what a burst has come to that is not sent again; None where trying again may help."""
        if worst.error_kind == "unsupported":
            return Attempt("unsupported", sent, _said(worst), _reason(worst))
        if worst.error_kind == "unauthorized":
            return Attempt("unauthorized", sent, _said(worst), "unauthorized")
        if worst.error_kind == "timed_out" and worst.status not in NOT_NOW:
            return self._late(sent, worst)
        return None

    async def _changed(self, fresh_s: float) -> str:
        """Say that another process answers than at the beginning; raises EngineAsleep where the engine sleeps now.

        What was read less than `fresh_s` ago still counts. Metrics that can't be read say nothing.
        """
        if self._clock() - self._looked_at < fresh_s:
            return ""
        try:
            async with asyncio.timeout(LOOK_S):
                stats = await self._engine.stats()
        except (EngineError, TimeoutError):
            self._looked_at = self._clock() + BLIND_S
            return ""
        self._looked_at = self._clock()
        if stats.asleep:
            raise EngineAsleep(ASLEEP)
        if self._identity is not None and stats.identity not in (None, self._identity):
            return "another engine process answers now"
        return ""

    async def progress_by_rank(self) -> Mapping[str, float]:
        """Give how far each data-parallel rank has come, by the engine's counters; empty where it doesn't tell."""
        try:
            return (await self._engine.stats()).progress_by_rank
        except EngineError:
            return {}

    def _late(self, sent: Sent, worst: Completion) -> Attempt:
        if self._clock() >= self._deadline - CLOCK_SLACK_S:
            return Attempt("out_of_time", sent, "The budget ended while a request was running.", "budget")
        return Attempt("timed_out", sent, _said(worst), "warmup_timed_out")

    async def _gone(self, worst: Completion) -> str:
        """Say how the engine is gone, or nothing when it is still the same one."""
        health: Health = await self._engine.health()
        if health.state in _GONE_STATES:
            return f"{_said(worst)} ({health.detail.rstrip('.') or health.state})"
        if self._identity is not None and worst.error_kind in ("refused", "reset"):
            now = await self._ask_identity()
            if now is not None and now != self._identity:
                return f"{_said(worst)} (another engine process answers now)"
        return ""

    async def _ask_identity(self) -> str | None:
        try:
            return (await self._engine.stats()).identity
        except EngineError:
            return None


def _remarkable(sent: Sent) -> str:
    """Say what was not as planned about a burst that was answered."""
    if sent.put_off:
        return f"not all at once, since the engine, or what stands before it, put off {sent.put_off} (HTTP 429 or 503)"
    return "" if sent.overlapped else "the decodes ended before the prefills came"


def _refuses_all(sent: Sent) -> bool:
    told = sent.completions
    return bool(told) and all(each.error_kind == "unsupported" and each.status in AT_FAULT for each in told)


def _worst(completions: tuple[Completion, ...]) -> Completion | None:
    """Pick the answer that says most about what is wrong; None when all are good."""
    bad = [each for each in completions if not each.ok]
    order = {kind: index for index, kind in enumerate(_WORST_FIRST)}
    return min(bad, key=lambda each: order.get(each.error_kind or "broken", len(order)), default=None)


def _said(completion: Completion) -> str:
    # It becomes part of a sentence that ends by itself.
    return (completion.error or "").strip().rstrip(".") or "no answer"


def _reason(completion: Completion) -> str:
    if completion.error_kind == "not_json":
        return "warmup_bad_answer"
    if completion.status is not None and completion.status != 200:
        return f"warmup_http_{completion.status}"
    return {"refused": "warmup_refused", "reset": "warmup_reset"}.get(
        completion.error_kind or "", "warmup_broken_answer"
    )
