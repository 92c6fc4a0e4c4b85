"""Which sizes to try beyond the steps: between those that behaved differently, around what compiled, and in gaps.

Sends nothing itself: `Searcher` names the next burst, and `search` has the journal send it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.journal import Journal
from sidecar.warmup.planner import KV_SHARE, DrawLimits, Plan, fitted
from sidecar.warmup.search_terms import Search
from sidecar.warmup.sizes import resolve
from sidecar.warmup.stretches import Scale

TOKENS, BATCHES, TOGETHER = "token counts", "batch sizes", "token counts of {} at once"
#: Steps that read several prompts have kernels by both tokens and sequences. Their plane is walked in half octaves of
#: sequences and in tenths of the tokens' range, and in twentieths where something compiled: most of it is unlikely.
TOGETHER_GAP, TOGETHER_BOUND = 0.1, 0.05
#: A prefill and the decode step after it: the kernels of a token count are all needed by then.
PROBE_OUTPUT = 2
#: Prompts of a batch probe: short, so that all are read within a step or two.
BATCH_PROMPT = 16
#: Requests of one burst reach the engine over many of its steps; the first must still run when the last comes.
ARRIVAL_STEPS = 8
#: Lengths around one that compiled, as factors: half an octave to either side.
AROUND = (0.7, 1.4)


@dataclass(frozen=True, slots=True)
class Probe:
    """A burst to try: either `size` on a scale, or one around what compiled, `generation` steps away from it."""

    name: str
    burst: Burst
    generation: int = 0
    scale: Scale | None = None
    size: int = 0


class Searcher:
    """Knows which sizes were visited and what they compiled, and names the burst that tells most next.

    `below` and `leaves_out`: what an engine died of is not tried again.
    """

    def __init__(
        self,
        plan: Plan,
        terms: Search,
        below: DrawLimits,
        leaves_out: Callable[[Burst], bool] = lambda _: False,
    ) -> None:
        self.terms = terms
        self.leaves_out = leaves_out
        self._plan = plan
        self._limits = plan.limits
        self._below = below
        self._room = min(
            below.tokens - 1, math.inf if plan.limits.kv_tokens is None else plan.limits.kv_tokens * KV_SHARE
        )
        self._longest = int(max(1, min(plan.limits.max_model_len - PROBE_OUTPUT, below.prompt - 1)))
        self._most = int(max(1, min(plan.limits.max_num_seqs, below.concurrency - 1)))
        mix = plan.profile.mix
        prompts = sorted((resolve(mix.prompt_tokens.start, plan.limits), resolve(mix.prompt_tokens.to, plan.limits)))
        crowds = sorted((resolve(mix.concurrency.start, plan.limits), resolve(mix.concurrency.to, plan.limits)))
        # Several requests at once fill a step, however short each of them is.
        fullest = min(plan.limits.max_num_batched_tokens, prompts[1] * max(1, min(crowds[1], self._most)))
        fullest = int(max(1, min(fullest, self._room - PROBE_OUTPUT * self._most, self._longest * self._most)))
        self.tokens = Scale(TOKENS, min(prompts[0], fullest), fullest, terms.gap, terms.bound)
        crowd = self._crowd(crowds[1])
        # Only an engine that generates text has steps of decodes alone.
        decodes = crowd if plan.work is None and plan.role != "prefill" else 1
        self.batches = Scale(BATCHES, min(crowds[0], decodes), decodes, terms.gap, terms.bound)
        self.together = {count: self._of_together(count, fullest) for count in _half_octaves(2, crowd)}
        self._around: deque[tuple[int, Burst]] = deque()
        self._tried: set[tuple[object, ...]] = set()
        self._passed_over: dict[str, set[int]] = {}

    def _of_together(self, count: int, fullest: int) -> Scale:
        """Give the scale of so many prompts, which hold no more than they can where the model is short."""
        most = min(fullest, count * self._longest)
        return Scale(TOGETHER.format(count), min(count, fullest), most, TOGETHER_GAP, TOGETHER_BOUND)

    def _crowd(self, wanted: int) -> int:
        """Clip a batch to the engine's sequences and to what the KV cache holds of short requests."""
        each = BATCH_PROMPT + PROBE_OUTPUT + ARRIVAL_STEPS
        return int(max(1, min(wanted, self._most, self._room // each)))

    def _batch(self, size: int) -> Probe:
        """Meet all batches by one staircase; where the engine has no room for one, this batch alone."""
        stairs = _staircase(self.batches.low, self.batches.high)
        if self._fits(stairs) and not self.leaves_out(stairs):
            return Probe(BATCHES, fitted(self._plan, stairs), scale=self.batches)
        output = max(1, min(PROBE_OUTPUT + ARRIVAL_STEPS, self._limits.max_model_len // 2))
        ask = Ask(size, min(BATCH_PROMPT, max(1, self._limits.max_model_len - output)), output)
        burst = fitted(self._plan, single(f"{size} at once", ask))
        return Probe(f"{BATCHES}: {size}", burst, 0, self.batches, size)

    def _fits(self, burst: Burst) -> bool:
        longest = max(ask.prompt_tokens + ask.output_tokens for phase in burst.phases for ask in phase)
        return burst.concurrency <= self._most and burst.tokens <= self._room and longest <= self._limits.max_model_len

    def learn(self, burst: Burst, names: Iterable[str], generation: int = 0) -> None:
        """Note a burst that was sent, and what it compiled; its surroundings are tried when it compiled something."""
        names = frozenset(names)
        ask, sized = burst.phases[0][0], self._is_plain(burst)
        if sized and ask.count == 1:
            self.tokens.visit(ask.prompt_tokens, names)
        elif sized:
            self.batches.visit(ask.count, names)
            if ask.count in self.together:
                self.together[ask.count].visit(ask.count * ask.prompt_tokens, names)
        if names and not (sized and ask.count == 1) and generation < self.terms.rounds:
            self._around.extend((generation + 1, each) for each in self._surroundings(burst))

    def visited(self, sizes: Mapping[str, Iterable[int]]) -> None:
        """Take the sizes that earlier pods visited as visited, with kernels that are all there."""
        for scale in self._scales():
            for size in sizes.get(scale.name, ()):
                scale.visit(size)

    def next(self) -> Probe | None:
        """Give what to send next; None when everything is covered."""
        while self._around:
            generation, burst = self._around.popleft()
            shape = _shape(burst)
            if shape not in self._tried:
                self._tried.add(shape)
                return Probe(f"around what compiled: {burst.key}", burst, generation)
        size = self.batches.next()
        if size is not None:
            return self._batch(size)
        for count, scale in ((1, self.tokens), *self.together.items()):
            size = scale.next()
            if size is not None:
                burst = fitted(self._plan, self._probe(size, count))
                return Probe(f"{scale.name}: {size}", burst, 0, scale, size)
        return None

    def sent(self, probe: Probe, names: Iterable[str]) -> None:
        """Note the outcome of what `next` gave, so that it is not given again."""
        if probe.scale is None:
            self.learn(probe.burst, names, probe.generation)
        elif not probe.size:
            for size in range(probe.scale.low, probe.scale.high + 1):
                probe.scale.visit(size)
        else:
            probe.scale.visit(probe.size, names)

    def leave_out(self, probe: Probe) -> None:
        """Pass over what `next` gave without sending it, so that it is not given again and not told as visited."""
        if probe.scale is not None:
            self._passed_over.setdefault(probe.scale.name, set()).add(probe.size)
            probe.scale.visit(probe.size)

    def put_back(self, probe: Probe) -> None:
        """Take back what was not sent after all; what lies on a scale is open as long as it isn't visited."""
        if probe.scale is None:
            self._tried.discard(_shape(probe.burst))
            self._around.appendleft((probe.generation, probe.burst))

    def open_points(self) -> tuple[str, ...]:
        """Name the ranges that are not covered, widest first."""
        found = []
        for scale in self._scales():
            ranges = sorted(scale.open(), key=lambda each: each[0] / each[1])
            if ranges:
                more = f" and {len(ranges) - 3} more" if len(ranges) > 3 else ""
                told = ", ".join(f"{low} to {high}" if high > low else f"{low}" for low, high in ranges[:3])
                found.append(f"{scale.name} {told}{more}")
        if self._around:
            found.append(f"the surroundings of what compiled ({len(self._around)} bursts)")
        return tuple(found)

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """List the visited sizes by scale, for the next pod."""
        return {
            scale.name: tuple(size for size in scale.visited if size not in self._passed_over.get(scale.name, ()))
            for scale in self._scales()
        }

    @staticmethod
    def _is_plain(burst: Burst) -> bool:
        """Say whether a burst is so many equal requests about nothing but their number and length."""
        ask = burst.phases[0][0]
        alone = len(burst.phases) == 1 and len(burst.phases[0]) == 1 and type(ask) is Ask
        return alone and not (ask.fields or ask.prefix_tokens or ask.text or ask.messages)

    def _scales(self) -> list[Scale]:
        return [self.tokens, self.batches, *self.together.values()]

    def _probe(self, tokens: int, count: int = 1) -> Burst:
        """Make a step of exactly so many tokens: one request; several when asked, or where none may be that long."""
        count = max(count, math.ceil(tokens / self._longest))
        each, extra = divmod(tokens, count)
        asks = [Ask(count - extra, each, PROBE_OUTPUT)]
        if extra:
            asks.append(Ask(extra, each + 1, PROBE_OUTPUT))
        return single(f"{tokens} tokens", *asks)

    def _surroundings(self, burst: Burst) -> list[Burst]:
        """Vary lengths and number of the last requests of a burst, one at a time."""
        # What is sent plainly and together, long or short, has scales of its own.
        factors = () if self._is_plain(burst) else AROUND
        found = [self._varied(burst, factor, 0) for factor in factors]
        found += [self._varied(burst, 1.0, more) for more in (-1, 1)]
        return [each for each in found if each is not None and _shape(each) != _shape(burst)]

    def _varied(self, burst: Burst, factor: float, more: int) -> Burst | None:
        last = burst.phases[-1]
        if any(type(ask) is not Ask or ask.messages or ask.text or ask.prefix_tokens for ask in last):
            return None
        asks = [replace(ask, prompt_tokens=self._length(ask, factor)) for ask in last]
        most = max(range(len(asks)), key=lambda index: asks[index].count)
        asks[most] = replace(asks[most], count=asks[most].count + more)
        asks = [ask for ask in asks if ask.count > 0]
        if not asks:
            return None
        shape = f"{sum(ask.count for ask in asks)} x up to {max(ask.prompt_tokens for ask in asks)}"
        varied = Burst(shape, (*burst.phases[:-1], tuple(asks)), burst.then)
        return varied if self._fits(varied) else None

    def _length(self, ask: Ask, factor: float) -> int:
        room = min(self._limits.max_model_len - ask.output_tokens, self._below.prompt - 1)
        return int(max(1, min(round(ask.prompt_tokens * factor), room)))


async def search(journal: Journal, searcher: Searcher, until: float) -> bool:
    """Send what the searcher names until everything is covered or `until` (monotonic seconds). Say whether it is."""
    journal.phase = "search"
    while (probe := searcher.next()) is not None:
        if journal.clock() >= until or journal.searched + probe.burst.requests > searcher.terms.max_requests:
            searcher.put_back(probe)
            return False
        if searcher.leaves_out(probe.burst):
            searcher.leave_out(probe)
            continue
        name = f"search, {probe.name}"
        attempt, evidence = await journal.send(probe.burst, name)
        journal.searched += probe.burst.requests
        journal.judge(attempt, name, probe.burst)
        searcher.sent(probe, evidence.identity)
    return True


def _staircase(low: int, high: int) -> Burst:
    """Make requests that end one after another, so that every batch from the largest to the smallest is met.

    The last to come ends last, and a step lies between two ends: some reach the engine a step later than others.
    """
    first = PROBE_OUTPUT + ARRIVAL_STEPS + high // 8
    stairs = [Ask(1, BATCH_PROMPT, first + 2 * step) for step in range(high - low)]
    return single(f"{low} to {high} at once", *stairs, Ask(low, BATCH_PROMPT, first + 2 * (high - low)))


def _half_octaves(low: int, high: int) -> list[int]:
    """List the sizes 2, 3, 4, 6, 8, 12, 16 ... within limits, ending with the upper one."""
    found = {
        size for power in range(high.bit_length()) for size in (1 << power, 3 << power >> 1) if low <= size <= high
    }
    return sorted(found | ({high} if high >= low else set()))


def _shape(burst: Burst) -> tuple[object, ...]:
    asks = (ask for phase in burst.phases for ask in phase)
    return (burst.then, *((ask.count, ask.prompt_tokens, ask.output_tokens, repr(ask.fields)) for ask in asks))
