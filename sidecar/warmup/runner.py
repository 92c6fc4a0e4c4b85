"""Runs a warm-up: rounds over the plan until one compiles nothing and latency is flat, then random draws.

Sends nothing itself (`attempts.py`, `traffic.py`) and looks at no files (`evidence.py`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from typing import Never

from sidecar.engines.protocol import Engine
from sidecar.warmup import sentences
from sidecar.warmup.attempts import Attempt, Attempts, WarmPolicy
from sidecar.warmup.evidence import Evidence, Witness
from sidecar.warmup.planner import DrawLimits, Plan, draw_burst
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.records import BurstRecord, StepRecord, burst_id
from sidecar.warmup.results import WarmOutcome, WarmProgress, WarmResult
from sidecar.warmup.traffic import Traffic

#: Bursts of a round without kernels that were slow are measured again so many times before the round counts
#: as not flat.
SETTLING_PASSES = 3
#: Without a view of compiling, flat latency is the only sign, and one round has nothing to be compared with.
BLIND_ROUNDS = 2
#: Kinds of steps that are about how much is sent; the others are about features.
SIZED_KINDS = ("prefill", "decode", "mixed", "shared_prefix")


def _nobody_listens(_: WarmProgress) -> None:
    pass


class _Ended(Exception):
    """A way out of the loops, not an error."""

    def __init__(self, outcome: WarmOutcome, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.outcome, self.reason, self.sentence = outcome, reason, sentence


class WarmupRunner:
    """One warm-up of one engine.

    `clock` gives monotonic seconds. `rng` must be seeded differently for each run: prompts come from it.
    `asleep` is asked before anything is sent. `killers` are those of earlier results of this pod: what they
    name is left out.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        evidence: Witness,
        policy: WarmPolicy,
        clock: Callable[[], float],
        rng: random.Random,
        asleep: Callable[[], bool] = lambda: False,
        killers: Collection[str] = (),
    ) -> None:
        self._plan = plan
        self._converge = plan.profile.converge
        self._evidence = evidence
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._started = 0.0
        self._budget_s = min(policy.budget_s, plan.profile.budget.seconds or policy.budget_s)
        prompts = PromptSource(rng, plan.limits.vocab_size)
        traffic = Traffic(engine, prompts, clock, asleep)
        self._attempts = Attempts(engine, traffic, policy, clock)
        self._steps = [StepRecord.of(step, frozenset(killers)) for step in plan.steps]
        self._known_killers = tuple(sorted(killers))
        self._report: Callable[[WarmProgress], None] = _nobody_listens
        self._kernels: Counter[str] = Counter()
        self._requests = 0
        self._answered = 0
        self._round = 0
        self._draws = 0
        self._last_kernel = ""
        self._blind = ""
        self._empty = False
        self._rounds_done = False
        self._failures: list[tuple[str, str]] = []
        self._killers: list[str] = []

    async def run(self, on_progress: Callable[[WarmProgress], None] = _nobody_listens) -> WarmResult:
        """Warm the engine and say how it ended; never raises for what the engine does. Can be cancelled."""
        self._report, self._started = on_progress, self._clock()
        if self._budget_s <= 0 or not self._steps:
            why = "the budget is 0" if self._steps else "no step of the profile fits this engine"
            return self._result("disabled", "disabled", f"No warm-up traffic was sent, because {why}.")
        try:
            await self._attempts.begin(self._started + self._budget_s)
            self._seen(await self._evidence.baseline(), "the start")
            await self._rounds_until_clean()
            await self._draws_until_clean()
        except _Ended as end:
            return self._result(end.outcome, end.reason, end.sentence)
        return self._finished()

    # --- rounds
    # -------------------------------------------------------------------------------------------------

    async def _rounds_until_clean(self) -> None:
        clean = 0
        while True:
            self._round += 1
            compiled = await self._one_round()
            slow, late = ([], 0) if compiled else await self._settle()
            compiled += late
            wanted = max(self._converge.clean_rounds, BLIND_ROUNDS if self._blind or self._empty else 1)
            clean = 0 if compiled or slow else clean + 1
            if clean >= wanted:
                self._rounds_done = True
                return
            if self._round >= self._converge.max_rounds:
                point = f"{_listed(slow)} not flat yet." if slow else self._last_compiled()
                self._end("exhausted", "max_rounds", sentences.exhausted_by_rounds(self._done(), point))

    async def _one_round(self) -> int:
        """Send every open burst once. Give the number of kernels that were compiled meanwhile."""
        compiled = 0
        for record in self._steps:
            for each in record.bursts:
                if each.open:
                    compiled += await self._one_burst(record, each, f"round {self._round}")
            record.rounds += 1
        # A kernel file may appear a moment after the answer that needed it.
        compiled += self._seen(await self._evidence.collect(), "the round")
        if not self._answered:
            first = next((each.detail for record in self._steps for each in record.bursts if each.detail), "no answer")
            self._end("failed", "unsupported", sentences.all_unsupported(first))
        return compiled

    async def _settle(self) -> tuple[list[str], int]:
        """Measure slow bursts again: noise passes, a slow engine stays.

        Give the names of those that stay slow, and the number of kernels that were compiled meanwhile.
        """
        slow, compiled = self._slow(), 0
        for _ in range(SETTLING_PASSES):
            if not slow:
                break
            for record, each in slow:
                compiled += await self._one_burst(record, each, f"round {self._round}, measuring again")
            slow = self._slow()
        return [burst_id(record.step, each.burst) for record, each in slow], compiled

    def _slow(self) -> list[tuple[StepRecord, BurstRecord]]:
        return [
            (record, each)
            for record in self._steps
            for each in record.bursts
            if each.open and not each.flat(self._converge)
        ]

    async def _one_burst(self, record: StepRecord, each: BurstRecord, when: str) -> int:
        name = burst_id(record.step, each.burst)
        record.running = True
        self._progress(f"{when}: {name}")
        attempt = await self._attempts.send(each.burst)
        evidence = await self._evidence.collect()
        record.enter(attempt.sent, evidence)
        record.running = False
        self._count(attempt)
        if attempt.verdict == "done":
            each.passed(attempt.sent)
            # What was loaded just now is sent again before the round counts as clean; a whole round need not be.
            each.loaded = evidence.loaded
            each.detail = attempt.detail
        else:
            self._went_wrong(record, each, attempt)
        compiled = self._seen(evidence, name)
        self._progress(f"{when}: {name}")
        return compiled

    def _went_wrong(self, record: StepRecord, each: BurstRecord, attempt: Attempt) -> None:
        name = burst_id(record.step, each.burst)
        each.detail = attempt.detail
        if attempt.verdict == "unsupported":
            each.state = "unsupported"
        elif attempt.verdict == "broken":
            each.state = "failed"
            self._failures.append((attempt.reason, f"{name}: {attempt.detail}"))
            if not self._answered or len(self._failures) >= self._policy.failures:
                self._end_broken()
        else:
            each.state = "killer" if attempt.blamed else "failed" if attempt.verdict == "timed_out" else each.state
            if attempt.blamed:
                self._killers.append(name)
            self._stop(attempt, name)

    # --- draws
    # --------------------------------------------------------------------------------------------------

    async def _draws_until_clean(self) -> None:
        """Draw from the traffic mix until `random_draws` in a row compile nothing.

        A draw that compiles starts the count anew: what it compiled is warm now, and says that there may be
        more.
        """
        wanted, number = self._converge.random_draws, 0
        below = self._below_killers()
        while self._draws < wanted:
            if number >= wanted * self._converge.max_rounds:
                point = f"Of {number} random draws, the last {self._draws} compiled nothing, not {wanted}."
                self._end("exhausted", "random_draws", sentences.exhausted_by_rounds(self._done(), point))
            number += 1
            name = f"random draw {number}"
            attempt = await self._attempts.send(draw_burst(self._plan, self._rng, number, below))
            self._count(attempt)
            if attempt.verdict in ("broken", "unsupported"):
                self._failures.append((attempt.reason, f"{name}: {attempt.detail}"))
                if len(self._failures) >= self._policy.failures:
                    self._end_broken()
            elif attempt.verdict != "done":
                self._stop(attempt, name)
            evidence = await self._evidence.collect()
            self._draws = 0 if self._seen(evidence, name) or evidence.loaded else self._draws + 1
            self._progress(f"random draws: {self._draws} of {wanted} in a row compiled nothing")

    def _below_killers(self) -> DrawLimits:
        """Keep draws below any burst of which an engine died; those about features don't limit sizes."""
        deadly = [
            (record.step.kind, each.burst)
            for record in self._steps
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

    # --- books
    # --------------------------------------------------------------------------------------------------

    def _count(self, attempt: Attempt) -> None:
        self._requests += len(attempt.sent.completions)
        self._answered += sum(each.ok for each in attempt.sent.completions)

    def _seen(self, evidence: Evidence, where: str) -> int:
        self._blind, self._empty = evidence.blind, evidence.empty
        self._kernels.update(evidence.kernels)
        if evidence:
            self._last_kernel = where
        return evidence.compiled

    def _progress(self, activity: str) -> None:
        self._report(
            WarmProgress(
                self._plan.profile.name,
                self._round,
                activity,
                tuple(record.result() for record in self._steps),
                dict(self._kernels),
                self._requests,
                self._clock() - self._started,
            )
        )

    # --- endings
    # ------------------------------------------------------------------------------------------------

    def _stop(self, attempt: Attempt, where: str) -> Never:
        """End the warm-up for something after which nothing more can be sent."""
        if attempt.verdict == "engine_gone":
            told = sentences.engine_gone(where, attempt.detail, attempt.blamed)
            self._end("engine_gone", attempt.reason, told)
        if attempt.verdict == "out_of_time":
            told = sentences.exhausted_by_budget(self._done(), self._budget_s, self._last_compiled())
            self._end("exhausted", attempt.reason, told)
        if attempt.verdict == "unauthorized":
            self._end("failed", attempt.reason, sentences.unauthorized(attempt.detail))
        if attempt.verdict == "timed_out":
            self._end("failed", attempt.reason, sentences.timed_out(where, attempt.detail))
        self._end("failed", attempt.reason, attempt.detail)

    def _end_broken(self) -> Never:
        reason, first = self._failures[0]
        self._end("failed", reason, sentences.broken(first, len(self._failures)))

    def _end(self, outcome: WarmOutcome, reason: str, sentence: str) -> Never:
        raise _Ended(outcome, reason, sentence)

    def _finished(self) -> WarmResult:
        if self._failures:
            reason, first = self._failures[0]
            return self._result("failed", reason, sentences.broken(first, len(self._failures)))
        if self._blind:
            return self._result("exhausted", "blind", sentences.blind(self._done(), self._blind))
        left_out = [burst_id(record.step, each.burst) for record in self._steps for each in record.of_state("skipped")]
        if left_out:
            return self._result("exhausted", "killers_left_out", sentences.killers_left_out(self._done(), left_out))
        told = sentences.converged(self._done(), self._draws, self._unsupported(), self._empty)
        return self._result("converged", "", told)

    def _result(self, outcome: WarmOutcome, reason: str, sentence: str) -> WarmResult:
        for record in self._steps:
            record.running = False
        return WarmResult(
            outcome=outcome,
            sentence=sentence,
            reason=reason,
            profile=self._plan.profile.name,
            rounds=self._round,
            kernels=dict(self._kernels),
            steps=tuple(record.result() for record in self._steps),
            requests=self._requests,
            seconds=self._clock() - self._started,
            unsupported=self._unsupported(),
            killers=tuple(sorted({*self._known_killers, *self._killers})),
            draws=self._draws,
            residual_risk=sentences.rule_of_three(self._draws)
            if self._draws and not self._blind and not self._empty
            else None,
            notes=self._plan.notes,
        )

    def _unsupported(self) -> tuple[str, ...]:
        return tuple(
            burst_id(record.step, each.burst) for record in self._steps for each in record.of_state("unsupported")
        )

    def _done(self) -> str:
        return sentences.work_done(self._round, self._requests, self._clock() - self._started, self._kernels)

    def _last_compiled(self) -> str:
        if self._last_kernel:
            return f"The last kernel was compiled during {self._last_kernel}, so more may follow."
        if self._rounds_done:
            return "No kernel was compiled, but the random draws were not finished."
        return "No kernel was compiled, but not all of the profile was sent."


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
