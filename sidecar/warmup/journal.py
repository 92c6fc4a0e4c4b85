"""The books of a whole warm-up: sends one burst after another, and keeps what each cost, compiled and ended like.

Which burst comes next is decided by the phases: `replay.py`, `rounds.py`, `search.py`, `draws.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Never

from sidecar.warmup import sentences
from sidecar.warmup.attempts import Attempt, Attempts, WarmPolicy
from sidecar.warmup.bursts import Burst
from sidecar.warmup.coverage import Matter
from sidecar.warmup.deadly import Deadly, Extent
from sidecar.warmup.evidence import Evidence, Witness
from sidecar.warmup.planner import DrawLimits, Plan
from sidecar.warmup.ranks import RankWatch
from sidecar.warmup.records import StepRecord, burst_id
from sidecar.warmup.results import WarmOutcome, WarmProgress

#: Kinds of steps that are about how much is sent; the others are about features.
SIZED_KINDS = ("prefill", "decode", "mixed", "shared_prefix")


class Ended(Exception):
    """A way out of the loops, not an error."""

    def __init__(self, outcome: WarmOutcome, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.outcome, self.reason, self.sentence = outcome, reason, sentence


class Journal:
    """What is known so far of one warm-up of one engine. `clock` gives monotonic seconds.

    `matters` are the bursts that compiled something, by name: what the next pod replays. `idle_ranks` made no progress
    in the last round, although requests were sent to each.
    """

    def __init__(
        self,
        plan: Plan,
        attempts: Attempts,
        witness: Witness,
        policy: WarmPolicy,
        clock: Callable[[], float],
        killers: Collection[str],
    ) -> None:
        self.plan, self.policy, self.clock = plan, policy, clock
        self.budget_s = min(policy.budget_s, plan.profile.budget.seconds or policy.budget_s)
        self.report: Callable[[WarmProgress], None] | None = None
        self.started = 0.0
        self.steps = [StepRecord.of(step, plan.profile.converge, frozenset(killers)) for step in plan.steps]
        self.known_killers = tuple(sorted(killers))
        self.deadly = Deadly(killers)
        self.killers: list[str] = []
        self.kernels: Counter[str] = Counter()
        self.matters: dict[str, Matter] = {}
        self.failures: list[tuple[str, str]] = []
        self.phase = ""
        self.requests = self.answered = self.round = self.draws = self.searched = 0
        self.blind, self.empty = "", False
        self.rounds_done = False
        self.ranks = RankWatch(attempts.progress_by_rank)
        self.idle_ranks: tuple[str, ...] = ()
        self._attempts = attempts
        self._witness = witness
        self._last_kernel = ""
        self._last: tuple[str, Burst] | None = None
        self._in_flight: Burst | None = None
        self._planned = frozenset(burst_id(record.step, each.burst) for record in self.steps for each in record.bursts)

    # --- sending

    async def begin(self) -> None:
        """Start the clock of the budget, and take what is compiled already as known."""
        self.started = self.clock()
        await self._attempts.begin(self.started + self.budget_s)
        self._see(await self._witness.baseline(), "the start")

    async def send(self, burst: Burst, name: str, when: str = "") -> tuple[Attempt, Evidence]:
        """Send a burst and look at what it compiled; the burst then matters to the next pod."""
        attempt = await self.send_blindly(burst, f"{when}: {name}" if when else name)
        if attempt.blamed:
            # What it compiled before it killed the engine is no reason to have the next pod send it.
            self._last = None
            return attempt, await self.look(name)
        return attempt, await self.look(name, burst)

    async def send_blindly(self, burst: Burst, activity: str) -> Attempt:
        """Send a burst without looking: somebody looks later, for several at once."""
        self.show(activity)
        self._witness.mark()
        self._in_flight = burst
        attempt = await self._attempts.send(burst)
        self._in_flight = None
        self.requests += len(attempt.sent.completions)
        self.answered += sum(each.ok for each in attempt.sent.completions)
        if attempt.verdict == "done":
            self.deadly.answered(burst)
        return attempt

    async def look(self, name: str, burst: Burst | None = None, *, thorough: bool = False) -> Evidence:
        """See what was compiled since the last look.

        Kernels written before this burst began, or found when none was sent, are those of the burst before.
        """
        evidence = await self._witness.collect(thorough=thorough)
        self._see(evidence, name)
        late = frozenset(evidence.names if burst is None else evidence.late)
        if late and self._last is not None:
            self._matter(*self._last, late)
        own = frozenset(evidence.names) - late
        if burst is not None:
            if own or (evidence.compiled and not late):
                self._matter(name, burst, own)
            self._last = (name, burst)
        return evidence

    @property
    def lacks(self) -> tuple[str, ...]:
        """Name the fields that no server but some takes, and that this one was not sent since it refused them."""
        return self._attempts.lacks

    def in_flight(self) -> tuple[str, ...]:
        """Name the burst that was being sent when the warm-up was cancelled, as a killer is named; empty: none was."""
        burst = self._in_flight
        if burst is None:
            return ()
        planned = (
            burst_id(record.step, each.burst) for record in self.steps for each in record.bursts if each.burst is burst
        )
        return (next(planned, None) or Extent.of(burst).name_of(self.phase),)

    def _matter(self, name: str, burst: Burst, names: frozenset[str]) -> None:
        known = self.matters.get(name)
        self.matters[name] = Matter(name, burst, names | known.names if known else names)

    def _see(self, evidence: Evidence, where: str) -> None:
        self.blind, self.empty = evidence.blind, evidence.empty
        self.kernels.update(evidence.kernels)
        if evidence:
            self._last_kernel = where

    def show(self, activity: str) -> None:
        """Tell whoever listens what runs now."""
        if self.report is None:
            return
        self.report(
            WarmProgress(
                self.plan.profile.name,
                self.round,
                activity,
                tuple(record.result() for record in self.steps),
                dict(self.kernels),
                self.requests,
                self.clock() - self.started,
                self.phase,
            )
        )

    # --- what is left out

    def limits(self) -> DrawLimits:
        """Keep what isn't of a step below any burst of which an engine died; those about features don't limit sizes."""
        deadly = [
            (record.step.kind, each.burst)
            for record in self.steps
            if record.step.kind in SIZED_KINDS
            for each in record.of_state("skipped")
        ]
        return DrawLimits(
            tokens=min((burst.tokens for _, burst in deadly), default=math.inf),
            prompt=min((burst.longest_prompt for kind, burst in deadly if kind == "prefill"), default=math.inf),
            # Whatever died of prefills beside decodes dies of any two requests that don't start together.
            concurrency=min(
                (2 if kind == "mixed" else burst.concurrency for kind, burst in deadly if burst.concurrency > 1),
                default=math.inf,
            ),
        )

    def left_out(self) -> tuple[str, ...]:
        """Name what is not sent because an engine died of it: bursts of steps, and what was sent beyond them."""
        return (*self.of_state("skipped"), *self.deadly.names)

    # --- endings

    def judge(self, attempt: Attempt, name: str, burst: Burst) -> None:
        """Note a burst outside the steps that went wrong; ends the warm-up when nothing more can be sent."""
        if attempt.verdict in ("broken", "unsupported"):
            self.fail(attempt, name)
        elif attempt.verdict != "done":
            if attempt.blamed:
                self.killers.append(name if name in self._planned else self.deadly.add(burst, self.phase))
            self.stop(attempt, name)

    def fail(self, attempt: Attempt, name: str) -> None:
        """Note that the engine failed on a burst; too many of these end the warm-up."""
        self.failures.append((attempt.reason, f"{name}: {attempt.detail}"))
        if not self.answered or len(self.failures) >= self.policy.failures:
            reason, first = self.failures[0]
            self.end("failed", reason, sentences.broken(first, len(self.failures)))

    def stop(self, attempt: Attempt, where: str) -> Never:
        """End the warm-up for something after which nothing more can be sent."""
        if attempt.verdict == "engine_gone":
            told = sentences.engine_gone(where, attempt.detail, attempt.blamed, of_step=where in self._planned)
            self.end("engine_gone", attempt.reason, told)
        if attempt.verdict == "out_of_time":
            told = sentences.exhausted_by_budget(self.done(), self.budget_s, self.last_compiled())
            self.end("exhausted", attempt.reason, told)
        if attempt.verdict == "unauthorized":
            self.end("failed", attempt.reason, sentences.unauthorized(attempt.detail))
        if attempt.verdict == "timed_out":
            self.end("failed", attempt.reason, sentences.timed_out(where, attempt.detail))
        self.end("failed", attempt.reason, attempt.detail)

    def end(self, outcome: WarmOutcome, reason: str, sentence: str) -> Never:
        """Leave all phases with this outcome."""
        raise Ended(outcome, reason, sentence)

    # --- words

    def done(self) -> str:
        """Say what was sent and what it compiled."""
        return sentences.work_done(self.round, self.requests, self.clock() - self.started, self.kernels)

    def last_compiled(self) -> str:
        """Say what keeps this warm-up from being proven when it ends now."""
        if self._last_kernel:
            return f"The last kernel was compiled during {self._last_kernel}, so more may follow."
        if self.rounds_done:
            return "No kernel was compiled, but the random draws were not finished."
        return "No kernel was compiled, but not all of the profile was sent."

    def of_state(self, state: str) -> tuple[str, ...]:
        """Name the bursts of all steps that are in a state."""
        return tuple(
            burst_id(record.step, each.burst) for record in self.steps for each in record.bursts if each.state == state
        )
