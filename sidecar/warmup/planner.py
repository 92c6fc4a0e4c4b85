"""What a profile becomes on a given engine: bursts within its limits, and a list of what was clipped and why.

Pure: sends nothing, waits for nothing, and makes no prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sidecar.engines.protocol import EngineFacts
from sidecar.engines.server_facts import SMALLEST
from sidecar.warmup.asks import OtherAsk
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.expansion import StepPlanner
from sidecar.warmup.passages import PASSAGES
from sidecar.warmup.profiles import Assume, Profile, Span
from sidecar.warmup.recorded import Distribution, RecordedMix
from sidecar.warmup.roles import for_role, unwarmed
from sidecar.warmup.sizes import Limits, missing_classes, resolve
from sidecar.warmup.task_expansion import TOKENS_PER_SECOND
from sidecar.warmup.widening import widened

#: Share of the KV cache that warm-up may fill: beyond it the engine preempts, and concurrency is not what was
#: asked.
KV_SHARE = 0.9
CALIBRATION = "calibration"
SCALES = (
    "This engine fixes the scales of its KV cache from the first traffic it sees (calculate_kv_scales), for as long as it "
    "runs: natural text is sent first, and the output is checked afterwards. A checkpoint with scales of its own is safer."
)
#: With recorded traffic, this share of sizes is drawn from the profile's mix all the same: users change their minds.
PROFILE_SHARE = 0.1
#: A burst of recorded traffic reads so many full steps of prompts at most, and makes so many tokens: which kernels run
#: depends on what shares a step, not on how long each request has run.
STEPS_READ, SHORT_PROMPT, OUTPUT_AT_MOST = 4, 16, 64


@dataclass(frozen=True)
class PlannedStep:
    """One step as it will be sent: its bursts, small before large."""

    name: str
    kind: str
    bursts: tuple[Burst, ...]

    @property
    def requests(self) -> int:
        """Count the requests of one round."""
        return sum(burst.requests for burst in self.bursts)

    @property
    def tokens(self) -> int:
        """Count the tokens of one round, prompts and outputs."""
        return sum(burst.tokens for burst in self.bursts)


@dataclass(frozen=True)
class Plan:
    """A profile fitted to an engine.

    `clipped` and `dropped` say in sentences what the engine's limits changed, `warnings` what the profile
    lacks, `assumed` which limits the engine didn't tell, `not_applicable` which steps are about something this
    engine doesn't have. `unwarmed` says why nothing may be sent at all; there are no steps then. `role` and `work`
    are what requests beyond the steps must be fitted to, see `fitted`. `recorded` is the traffic of earlier pods that
    random draws follow; None: they follow the profile's mix.
    """

    profile: Profile
    limits: Limits
    steps: tuple[PlannedStep, ...]
    clipped: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    widened: str = ""
    not_applicable: tuple[str, ...] = ()
    unwarmed: str = ""
    role: str | None = None
    work: Literal["embed", "score", "transcription"] | None = None
    recorded: RecordedMix | None = None

    @property
    def users(self) -> RecordedMix | None:
        """Give the traffic that random draws follow: what pods recorded, else what the profile's mix has learned."""
        learned = self.profile.mix.learned
        return self.recorded or (learned.mix if learned else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Give everything worth telling about the plan, a sentence each."""
        learned = self.profile.mix.learned
        told = self.recorded.sentence if self.recorded else learned.sentence if learned else ""
        first = tuple(each for each in (self.unwarmed, self.widened, told) if each)
        return first + self.assumed + self.dropped + self.clipped + self.warnings

    @property
    def requests(self) -> int:
        """Count the requests of one round."""
        return sum(step.requests for step in self.steps)

    @property
    def tokens(self) -> int:
        """Count the tokens of one round, prompts and outputs."""
        return sum(step.tokens for step in self.steps)


def make_plan(profile: Profile, facts: EngineFacts, recorded: RecordedMix | None = None) -> Plan:
    """Fit a profile to what the engine says of itself; `recorded` is the traffic of earlier pods, where it is known."""
    limits, assumed = limits_of(facts, profile.assume)
    refused = unwarmed(facts)
    if refused:
        return Plan(profile, limits, (), assumed=assumed, unwarmed=refused, role=facts.role)
    source = facts.sources.get("skipped_warmups", "a flag")
    profile, widening = widened(profile, facts.skipped_warmups, source)
    planner = StepPlanner(limits, facts, KV_SHARE)
    text = not facts.tasks or "generate" in facts.tasks
    steps = [_calibration(limits, facts.role)] if facts.calculate_kv_scales and text else []
    for step in profile.steps:
        bursts = sorted(planner.bursts_of(step), key=lambda burst: burst.tokens)
        if bursts:
            steps.append(PlannedStep(step.title, step.kind, tuple(bursts)))
    return Plan(
        profile,
        limits,
        tuple(steps),
        planner.clipped,
        tuple(planner.dropped),
        (*_class_warnings(steps, facts), *([SCALES] if facts.calculate_kv_scales and text else [])),
        assumed,
        widening,
        planner.not_applicable,
        role=facts.role,
        work=work_of(facts.tasks),
        recorded=recorded if profile.search.mix == "auto" else None,
    )


def work_of(tasks: Sequence[str]) -> Literal["embed", "score", "transcription"] | None:
    """Say what an engine that generates no text is asked for instead; None where it does."""
    if not tasks or "generate" in tasks:
        return None
    if "embed" in tasks:
        return "embed"
    return "transcription" if "transcription" in tasks and "score" not in tasks else "score"


def fitted(plan: Plan, burst: Burst) -> Burst:
    """Fit a burst that isn't of the plan's steps to the engine's role, and to its task where that isn't text."""
    if plan.work is not None:
        phases = tuple(tuple(_other_work(ask, plan) for ask in phase) for phase in burst.phases)
        return replace(burst, phases=phases)
    return for_role(burst, plan.role)


def _other_work(ask: Ask, plan: Plan) -> Ask:
    if plan.work is None or isinstance(ask, OtherAsk):
        return ask
    # A recording of as many tokens as the prompt would have had, at 50 a second, and of 30 s at most as models take.
    seconds = min(30.0, max(0.1, ask.prompt_tokens / TOKENS_PER_SECOND)) if plan.work == "transcription" else 0.0
    documents = 1 if plan.work == "score" else 0
    length = max(1, ask.prompt_tokens // 4) if plan.work == "score" else ask.prompt_tokens
    return OtherAsk(ask.count, length, 0, work=plan.work, documents=documents, audio_s=seconds)


def profile_warnings(profile: Profile) -> tuple[str, ...]:
    """Say what a profile lacks on any engine: integer classes that no batch or length falls into."""
    return make_plan(profile, EngineFacts(engine="", version=None, model="")).warnings


def limits_of(facts: EngineFacts, assume: Assume) -> tuple[Limits, tuple[str, ...]]:
    """Give the engine's limits, completed by the profile's assumptions, a sentence for each of these."""
    assumed: list[str] = []

    def known(name: str, value: int | None, otherwise: int) -> int:
        # The profile knows which GPU it is for, and so a better default than one for any.
        if value is not None and value > 0 and facts.sources.get(name) != SMALLEST:
            return value
        default = f", not vLLM's smallest default of {value}" if value not in (None, 0, otherwise) else ""
        assumed.append(f"The engine doesn't tell {name}; {otherwise} is assumed, as the profile says{default}.")
        return otherwise

    kv_tokens = facts.kv_tokens
    if kv_tokens is None and facts.kv_blocks and facts.block_size:
        kv_tokens = facts.kv_blocks * facts.block_size
    max_model_len = known("max_model_len", facts.max_model_len, assume.max_model_len)
    limits = Limits(
        max_model_len=max_model_len,
        max_num_batched_tokens=known(
            "max_num_batched_tokens", facts.max_num_batched_tokens, assume.max_num_batched_tokens
        ),
        max_num_seqs=known("max_num_seqs", facts.max_num_seqs, assume.max_num_seqs),
        vocab_size=known("vocab_size", facts.vocab_size, assume.vocab_size),
        kv_tokens=kv_tokens,
    )
    return limits, tuple(assumed)


@dataclass(frozen=True, slots=True)
class DrawLimits:
    """What draws stay below, since an engine died of it: tokens in a burst, in a prompt, requests."""

    tokens: float = math.inf
    prompt: float = math.inf
    concurrency: float = math.inf


NO_LIMITS = DrawLimits()


def draw_burst(plan: Plan, rng: random.Random, number: int, below: DrawLimits = NO_LIMITS) -> Burst:
    """Draw one burst from the traffic mix: how many requests at once, and the lengths of each."""
    mix, limits, users = plan.profile.mix, plan.limits, plan.users
    count = min(_drawn(mix.concurrency, limits, rng, users.concurrency if users else None), limits.max_num_seqs)
    count = int(max(1, min(count, below.concurrency - 1)))
    room = min(below.tokens - 1, math.inf if limits.kv_tokens is None else limits.kv_tokens * KV_SHARE)
    to_read = math.inf if users is None else limits.max_num_batched_tokens * STEPS_READ
    asks: list[Ask] = []
    for _ in range(count):
        output = min(
            _drawn(mix.output_tokens, limits, rng, users.output_tokens if users else None),
            max(1, limits.max_model_len // 2),
        )
        output = output if users is None else min(output, OUTPUT_AT_MOST)
        prompt = _drawn(mix.prompt_tokens, limits, rng, users.prompt_tokens if users else None)
        prompt = min(prompt, max(1, limits.max_model_len - output))
        prompt = int(max(1, min(prompt, below.prompt - 1)))
        if asks and prompt > to_read:
            # What users have running has been read long ago; the batch is filled with prompts that are read at once.
            prompt = min(prompt, SHORT_PROMPT)
        to_read -= prompt
        if prompt + output > room:
            if asks:
                break
            output = 1
            prompt = max(1, min(prompt, int(room) - output))
        room -= prompt + output
        asks.append(Ask(1, prompt, output, temperature=1.0 if rng.random() < mix.sampled else 0.0))
    return fitted(plan, single(f"draw {number}", *asks))


def _drawn(span: Span, limits: Limits, rng: random.Random, users: Distribution | None) -> int:
    """Draw one size with one number of `rng`: from what users sent, and from the profile's span for a share of draws."""
    share = rng.random()
    if users is not None and users.total:
        if share >= PROFILE_SHARE:
            return users.quantile((share - PROFILE_SHARE) / (1 - PROFILE_SHARE))
        share /= PROFILE_SHARE
    low, high = sorted((resolve(span.start, limits), resolve(span.to, limits)))
    return min(high, max(low, round(low * math.pow(high / low, share))))


def _calibration(limits: Limits, role: str | None) -> PlannedStep:
    """Plan natural text as the first traffic: this engine fixes its KV scales from what it sees first."""
    output = min(16, max(1, limits.max_model_len // 4))
    bursts = [
        for_role(single(f"text {index}", Ask(1, 64, output, temperature=1.0, text=text)), role)
        for index, text in enumerate(PASSAGES, start=1)
    ]
    return PlannedStep(CALIBRATION, "text", tuple(bursts))


def _class_warnings(steps: Iterable[PlannedStep], facts: EngineFacts) -> tuple[str, ...]:
    """Check that batches and lengths cover the three classes on which compilers specialise integers."""
    if facts.tasks and "generate" not in facts.tasks:
        return ()
    by_kind = {
        kind: [burst for step in steps if step.kind == kind for burst in step.bursts] for kind in ("prefill", "decode")
    }
    batches = {burst.concurrency for burst in by_kind["decode"]}
    lengths = {burst.longest_prompt for burst in by_kind["prefill"] if burst.concurrency == 1}
    found = []
    checked = [("decode batch sizes", batches), ("prefill lengths of single requests", lengths)]
    for name, values in checked[1:] if facts.role == "prefill" else checked:
        missing = missing_classes(values)
        if missing:
            found.append(
                f"The {name} never fall into the class{'es' if len(missing) > 1 else ''} "
                f"{', '.join(missing)}; "
                "kernels specialised on those are left to live traffic."
            )
    return tuple(found)
