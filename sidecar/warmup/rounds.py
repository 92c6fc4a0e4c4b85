"""Rounds over the steps of a plan, until one compiles nothing and latency is flat.

What is sent beyond the steps is the business of `search.py` and `draws.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sidecar.warmup import sentences
from sidecar.warmup.attempts import Attempt
from sidecar.warmup.bursts import Burst
from sidecar.warmup.evidence import Evidence
from sidecar.warmup.journal import Journal
from sidecar.warmup.planner import PlannedStep
from sidecar.warmup.records import BurstRecord, StepRecord, burst_id

#: Bursts of a round without kernels that were slow are measured again so many times before the round counts
#: as not flat.
SETTLING_PASSES = 3
#: Without a view of compiling, flat latency is the only sign, and one round has nothing to be compared with.
BLIND_ROUNDS = 2


class Rounds:
    """Sends the steps in turn. `learn` is told of every burst and what it compiled."""

    def __init__(self, journal: Journal, learn: Callable[[Burst, Iterable[str]], None]) -> None:
        self._journal = journal
        self._converge = journal.plan.profile.converge
        self._learn = learn

    async def until_clean(self) -> None:
        """Go round until enough rounds in a row compiled nothing and were flat; ends the warm-up after too many."""
        journal, clean = self._journal, 0
        journal.phase = "rounds"
        while True:
            journal.round += 1
            await journal.ranks.begin()
            compiled = await self._one_round()
            slow, late = ([], 0) if compiled else await self._settle()
            compiled += late
            journal.idle_ranks = await journal.ranks.idle()
            wanted = max(self._converge.clean_rounds, BLIND_ROUNDS if journal.blind or journal.empty else 1)
            clean = 0 if compiled or slow else clean + 1
            if clean >= wanted:
                journal.rounds_done = True
                return
            if journal.round >= self._converge.max_rounds:
                point = sentences.not_flat(slow) if slow else journal.last_compiled()
                journal.end("exhausted", "max_rounds", sentences.exhausted_by_rounds(journal.done(), point))

    async def once(self, wanted: Callable[[PlannedStep], bool]) -> int:
        """Send the bursts of some steps once, with one look for each step; give how many kernels they compiled."""
        journal, compiled = self._journal, 0
        for record in journal.steps:
            if not wanted(record.step):
                continue
            for each in record.bursts:
                if each.open:
                    name = burst_id(record.step, each.burst)
                    attempt = await journal.send_blindly(each.burst, f"{journal.phase}: {name}")
                    self._enter(record, each, attempt, Evidence())
            evidence = await journal.look(record.step.name)
            record.kernels += evidence.compiled
            compiled += evidence.compiled
            record.rounds += 1
        return compiled

    async def _one_round(self) -> int:
        """Send every open burst once. Give the number of kernels that were compiled meanwhile."""
        journal, compiled = self._journal, 0
        for record in journal.steps:
            for each in record.bursts:
                if each.open:
                    compiled += await self._one_burst(record, each, f"round {journal.round}")
            record.rounds += 1
        # A kernel file may appear a moment after the answer that needed it.
        compiled += (await journal.look("the round", thorough=True)).compiled
        if not journal.answered:
            first = next(
                (each.detail for record in journal.steps for each in record.bursts if each.detail), "no answer"
            )
            journal.end("failed", "unsupported", sentences.all_unsupported(first))
        return compiled

    async def _settle(self) -> tuple[list[str], int]:
        """Measure slow bursts again: noise passes, a slow engine stays.

        Tell of those that stay slow, and give the number of kernels that were compiled meanwhile.
        """
        slow, compiled = self._slow(), 0
        for _ in range(SETTLING_PASSES):
            if not slow:
                break
            for record, each in slow:
                compiled += await self._one_burst(record, each, f"round {self._journal.round}, measuring again")
            slow = self._slow()
        return [f"{burst_id(record.step, each.burst)} is not flat yet{each.stall}" for record, each in slow], compiled

    def _slow(self) -> list[tuple[StepRecord, BurstRecord]]:
        return [
            (record, each)
            for record in self._journal.steps
            for each in record.bursts
            if each.open and not each.flat(self._converge)
        ]

    async def _one_burst(self, record: StepRecord, each: BurstRecord, when: str) -> int:
        journal, name = self._journal, burst_id(record.step, each.burst)
        record.running = True
        attempt, evidence = await journal.send(each.burst, name, when)
        record.running = False
        self._enter(record, each, attempt, evidence)
        journal.show(f"{when}: {name}")
        return evidence.compiled

    def _enter(self, record: StepRecord, each: BurstRecord, attempt: Attempt, evidence: Evidence) -> None:
        record.enter(attempt.sent, evidence)
        if attempt.verdict != "done":
            self._went_wrong(record, each, attempt)
            return
        each.passed(attempt.sent)
        # What was loaded just now is sent again before the round counts as clean; a whole round need not be.
        each.loaded = evidence.loaded
        each.detail = attempt.detail
        self._learn(each.burst, evidence.identity)

    def _went_wrong(self, record: StepRecord, each: BurstRecord, attempt: Attempt) -> None:
        name = burst_id(record.step, each.burst)
        each.detail = attempt.detail
        if attempt.verdict == "unsupported":
            each.state = "unsupported"
        elif attempt.verdict == "broken":
            each.state = "failed"
            self._journal.fail(attempt, name)
        else:
            each.state = "killer" if attempt.blamed else "failed" if attempt.verdict == "timed_out" else each.state
            if attempt.blamed:
                self._journal.killers.append(name)
            self._journal.stop(attempt, name)
