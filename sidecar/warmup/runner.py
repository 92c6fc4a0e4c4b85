"""Runs a warm-up: replays what earlier pods compiled, goes round the steps, searches between them, and draws at random.

Sends nothing itself (`journal.py`) and looks at no files (`evidence.py`); each phase has a file of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable

from sidecar.engines.protocol import Engine
from sidecar.warmup import sentences
from sidecar.warmup.attempts import Attempts, WarmPolicy
from sidecar.warmup.bursts import Burst
from sidecar.warmup.coverage import Coverage, Matter, plan_digest
from sidecar.warmup.draws import Draws
from sidecar.warmup.evidence import Witness
from sidecar.warmup.journal import SIZED_KINDS, Ended, Journal
from sidecar.warmup.planner import CALIBRATION, Plan
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.replay import Replayed, replay
from sidecar.warmup.results import WarmOutcome, WarmProgress, WarmResult
from sidecar.warmup.rounds import Rounds
from sidecar.warmup.search import Searcher, search
from sidecar.warmup.search_terms import Search
from sidecar.warmup.traffic import Traffic


class WarmupRunner:
    """One warm-up of one engine.

    `clock` gives monotonic seconds. `rng` must be seeded differently for each run: prompts come from it.
    `asleep` is asked before anything is sent. `killers` are those of earlier results of this pod: what they
    name is left out. `coverage` is what earlier pods left with the kernels: replayed first, and believed when
    it compiles nothing.
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
        coverage: Coverage | None = None,
    ) -> None:
        self._plan = plan
        self._terms: Search = getattr(plan.profile, "search", None) or Search()
        prompts = PromptSource(rng, plan.limits.vocab_size)
        attempts = Attempts(engine, Traffic(engine, prompts, clock, asleep), policy, clock)
        self._journal = Journal(plan, attempts, evidence, policy, clock, killers)
        self._searcher = Searcher(plan, self._terms, self._journal.limits(), self._journal.deadly.leaves_out)
        self._rounds = Rounds(self._journal, self._searcher.learn)
        self._draws = Draws(self._journal, rng, self._follow)
        self._digest = plan_digest(plan)
        self._mix = "recorded" if plan.recorded else "profile"
        self._earlier = coverage
        self._same_plan = coverage is not None and coverage.plan == self._digest
        self._replayed = Replayed()
        self._trusted = False
        self._search_s = 0.0

    async def run(self, on_progress: Callable[[WarmProgress], None] | None = None) -> WarmResult:
        """Warm the engine and say how it ended; never raises for what the engine does. Can be cancelled."""
        journal = self._journal
        journal.report, journal.started = on_progress, journal.clock()
        if journal.budget_s <= 0:
            return self._result("disabled", "disabled", "No warm-up traffic was sent, because the budget is 0.")
        if not journal.steps:
            reason = "no_safe_payload" if self._plan.unwarmed else "no_steps"
            return self._result("unwarmed", reason, sentences.unwarmed(self._plan.unwarmed, self._plan.not_applicable))
        try:
            await journal.begin()
            if not await self._proven_by_replay():
                await self._rounds.until_clean()
                await self._search()
                await self._draws.until_clean()
        except Ended as end:
            return self._result(end.outcome, end.reason, end.sentence)
        return self._finished()

    def in_flight(self) -> tuple[str, ...]:
        """Name the burst that was being sent when `run` was cancelled: what an engine died of that somebody else saw end."""
        return self._journal.in_flight()

    # --- phases

    async def _proven_by_replay(self) -> bool:
        """Replay what earlier pods compiled. Say whether that, and a small proof after it, compiled nothing at all."""
        journal, earlier = self._journal, self._earlier
        if earlier is None or journal.blind or journal.empty:
            return False
        journal.phase = "replay"
        await journal.ranks.begin()
        # An engine that calibrates itself from its first traffic must see text first.
        await self._rounds.once(lambda step: step.name == CALIBRATION)
        self._replayed = await replay(journal, earlier)
        if self._replayed.compiled or not self._same_plan:
            return False
        self._searcher.visited(earlier.sizes)
        self._trusted = True
        if not earlier.converged or journal.left_out():
            return False
        compiled = await self._rounds.once(lambda step: step.kind not in SIZED_KINDS and step.name != CALIBRATION)
        if compiled or not journal.answered or not await self._draws.one_set(self._terms.replay_draws):
            self._trusted = False
            return False
        # What no request reached is not proven by what the others compiled, or did not.
        self._trusted = not await journal.ranks.idle()
        return self._trusted

    async def _search(self) -> None:
        if not self._terms.enabled:
            return
        journal = self._journal
        began = journal.clock()
        share_s = journal.budget_s * self._terms.budget_share - self._search_s
        await search(journal, self._searcher, began + share_s)
        self._search_s += journal.clock() - began

    async def _follow(self, burst: Burst, names: Iterable[str]) -> None:
        """Search around a random draw that compiled."""
        self._searcher.learn(burst, names)
        await self._search()

    # --- the end

    def _finished(self) -> WarmResult:
        journal = self._journal
        if journal.failures:
            reason, first = journal.failures[0]
            return self._result("failed", reason, sentences.broken(first, len(journal.failures)))
        if journal.blind:
            return self._result("exhausted", "blind", sentences.blind(journal.done(), journal.blind))
        if journal.left_out():
            told = sentences.killers_left_out(journal.done(), journal.left_out())
            return self._result("exhausted", "killers_left_out", told)
        if journal.idle_ranks:
            told = sentences.idle_ranks(journal.done(), journal.idle_ranks)
            return self._result("exhausted", "idle_ranks", told)
        if self._open():
            return self._result("exhausted", "coverage", sentences.not_covered(journal.done(), self._open()))
        told = sentences.converged(journal.done(), self._proof(), (*self._unsupported(), *journal.lacks), journal.empty)
        return self._result("converged", "", told)

    def _proof(self) -> sentences.Proof:
        return sentences.Proof(
            draws=self._journal.draws,
            earlier_draws=self._earlier_draws(),
            replayed=self._replayed.bursts if self._trusted else 0,
            rounds=self._journal.round,
            lost=sum(self._replayed.families.values()),
            recorded=self._mix == "recorded",
        )

    def _earlier_draws(self) -> int:
        """Count the draws of earlier pods that still say something: of the same mix, and no kernel was compiled since."""
        earlier = self._earlier
        same = earlier is not None and self._trusted and earlier.mix == self._mix
        return earlier.draws if earlier and same and not self._journal.kernels else 0

    def _open(self) -> tuple[str, ...]:
        return self._searcher.open_points() if self._terms.enabled and not self._by_replay() else ()

    def _by_replay(self) -> bool:
        return self._trusted and self._journal.round == 0

    def _unsupported(self) -> tuple[str, ...]:
        return self._journal.of_state("unsupported")

    def _coverage(self, outcome: WarmOutcome) -> Coverage | None:
        """Give what the next pod can go on from: what mattered before and now, and how far this warm-up came."""
        journal, earlier = self._journal, self._earlier
        if outcome in ("disabled", "unwarmed") or journal.blind or journal.empty:
            return earlier
        sizes = self._searcher.sizes()
        if earlier is not None and self._same_plan and not self._replayed.compiled:
            sizes = {name: tuple(sorted({*earlier.sizes.get(name, ()), *found})) for name, found in sizes.items()}
        matters = {
            (each.name, repr(each.burst)): each
            for each in (earlier.matters if earlier else ())
            if each.name not in journal.killers and not (each.burst and journal.deadly.is_known(each.burst))
        }
        for each in journal.matters.values():
            known = matters.get((each.name, repr(each.burst)))
            names = each.names | known.names if known else each.names
            matters[each.name, repr(each.burst)] = Matter(each.name, each.burst, names)
        return Coverage(
            plan=self._digest,
            profile=self._plan.profile.name,
            converged=outcome == "converged",
            draws=self._earlier_draws() + journal.draws,
            sizes=sizes,
            matters=tuple(matters.values()),
            mix=self._mix,
        )

    def _result(self, outcome: WarmOutcome, reason: str, sentence: str) -> WarmResult:
        journal = self._journal
        for record in journal.steps:
            record.running = False
        draws = journal.draws + self._earlier_draws()
        return WarmResult(
            outcome=outcome,
            sentence=sentence,
            reason=reason,
            profile=self._plan.profile.name,
            rounds=journal.round,
            kernels=dict(journal.kernels),
            steps=tuple(record.result() for record in journal.steps),
            requests=journal.requests,
            seconds=journal.clock() - journal.started,
            unsupported=self._unsupported(),
            killers=tuple(sorted({*journal.known_killers, *journal.killers})),
            draws=journal.draws,
            residual_risk=sentences.rule_of_three(draws) if draws and not journal.blind and not journal.empty else None,
            notes=(*self._plan.notes, *([sentences.plainer(journal.lacks)] if journal.lacks else [])),
            searched=journal.searched,
            idle_ranks=journal.idle_ranks,
            open=self._open() if outcome not in ("disabled", "unwarmed") else (),
            replayed=self._replayed.bursts,
            lost=self._replayed.lost,
            lost_kernels=dict(self._replayed.families),
            coverage=self._coverage(outcome),
        )
