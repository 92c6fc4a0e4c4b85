"""Asks an engine the prompts: alone, together behind a cached prefix, in a batch, and reads recorded answers back.

What answers are worth is decided in `judging.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sidecar.engines.protocol import Completion, CompletionRequest, Engine, EngineFacts
from sidecar.errors import EngineAsleep, EngineError, EngineGone, EngineUnauthorized
from sidecar.golden.files import AnsweredPrompt
from sidecar.golden.manner import MANNERS, SENTENCE, Manner, answer_request, readable, reading_request
from sidecar.golden.prompts import Prompt
from sidecar.golden.report import GoldenProgress, Way

#: Recorded answers are read back so many at a time.
READ_AT_ONCE = 8
#: Prompts behind one passage that are sent without others: where so many requests or more all share a prefix, vLLM may read
#: it in a kernel of its own (use_cascade_attention in v1/attention/backends/flash_attn.py).
CASCADE = 8
GONE = ("refused", "reset")
P = TypeVar("P", bound=Prompt)
ASLEEP = "The engine is asleep, so nothing more was sent to it."


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: to which prompt, and how it was sent."""

    prompt: Prompt
    way: Way
    completion: Completion


@dataclass
class Asker:
    """Sends requests to one engine until `ends`, in seconds of the loop's clock. Salts begin with `salt`.

    Raises EngineGone, EngineAsleep, or another EngineError when it can't go on. `notes` gathers what could not be asked.
    `asleep` is believed only where the engine's metrics can't be read. `late`: no time was left.
    """

    engine: Engine
    facts: EngineFacts
    salt: str
    deadline_s: float
    passages: Mapping[str, str]
    progress: Callable[[GoldenProgress], None] | None = None
    asleep: Callable[[], bool] | None = None
    total: int = 0
    manner: Manner = MANNERS[0]
    notes: list[str] = field(default_factory=list)
    sentence_ids: tuple[int, ...] = ()
    answers: int = 0
    late: bool = False
    _ends: float = 0.0

    def __post_init__(self) -> None:
        self._ends = asyncio.get_running_loop().time() + self.deadline_s

    async def begin(self) -> None:
        """Find out what the engine takes, and how it reads a fixed sentence."""
        await self._awake()
        probe = Prompt(name="tokenizer", text=SENTENCE, max_tokens=1)
        for manner in MANNERS:
            got = await self.engine.complete(answer_request(probe, {}, manner, f"{self.salt}-probe", self._left()))
            if got.ok or got.error_kind not in ("unsupported", "broken"):
                break
        self._must_be_answered(got, "a first sentence")
        self.manner = manner
        self.sentence_ids = got.prompt_token_ids or ()
        if manner.lacks:
            self.notes.append(manner.lacks)

    async def alone(self, prompts: Sequence[Prompt], way: Way = "solo") -> list[Told]:
        """Ask one prompt after another, each with an empty prefix cache."""
        found: list[Told] = []
        for prompt in prompts:
            await self._awake()
            found += await self._together([(prompt, self._own_salt(prompt, way))], way)
        return found

    async def behind_a_prefix(self, prompts: Sequence[Prompt], most: int) -> list[Told]:
        """Ask the prompts of all passages together, once one of each passage has brought it into the cache.

        Those of a passage that has `CASCADE` of them are asked together without others.
        """
        groups = sharing(prompts)
        for group in groups:
            await self._awake()
            await self._fill(group[0], self._passage_salt(group[0]))
        few = [prompt for group in groups if len(group) < CASCADE for prompt in group]
        found: list[Told] = []
        for asked in (few, *(group for group in groups if len(group) >= CASCADE)):
            for start in range(0, len(asked), most):
                await self._awake()
                asks = [(prompt, self._passage_salt(prompt)) for prompt in asked[start : start + most]]
                found += await self._together(asks, "concurrent")
        return found

    async def _fill(self, prompt: Prompt, salt: str) -> None:
        """Bring a passage into the prefix cache, with one token of an answer that nobody looks at."""
        short = prompt.model_copy(update={"max_tokens": 1})
        got = await self.engine.complete(answer_request(short, self.passages, self.manner, salt, self._left()))
        if got.error_kind not in ("unsupported", "broken"):
            self._must_be_answered(got, f"'{prompt.name}'")

    async def in_batches(self, prompts: Sequence[Prompt], size: int) -> list[Told]:
        """Ask so many at once, each with an empty prefix cache; the last batch is filled with prompts of the first."""
        found: list[Told] = []
        for start in range(0, len(prompts), size):
            await self._awake()
            batch = list(prompts[start : start + size])
            filled = batch + [prompts[at % len(prompts)] for at in range(size - len(batch))]
            asks = [(each, f"{self._own_salt(each, 'batch')}-{at}") for at, each in enumerate(filled)]
            found += await self._together(asks, "batch")
        return found

    async def read_back(self, prompts: Sequence[AnsweredPrompt]) -> dict[str, tuple[float, ...]]:
        """Give for each prompt that can be read back the log-probabilities of its recorded answer, in nats."""
        found: dict[str, tuple[float, ...]] = {}
        fit = [each for each in prompts if self._readable(each)]
        for start in range(0, len(fit), READ_AT_ONCE):
            await self._awake()
            group = fit[start : start + READ_AT_ONCE]
            requests = [self._reading(each) for each in group]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self.engine.complete(each)) for each in requests]
            for prompt, task in zip(group, running, strict=True):
                if (values := self._read(prompt, task.result())) is not None:
                    found[prompt.name] = values
            if not found:
                self.notes.append(
                    "The engine can't read recorded answers back (prompt_logprobs), so only what it generates is compared."
                )
                break
        return found

    def _readable(self, prompt: AnsweredPrompt) -> bool:
        answer, longest = prompt.answer, self.facts.max_model_len or math.inf
        tokens = len(answer.prompt_ids) + len(answer.ids)
        fits = tokens < longest and readable(tokens, self.facts.vocab_size)
        return bool(answer.prompt_ids and answer.ids) and not prompt.picture and fits

    def _reading(self, prompt: AnsweredPrompt) -> CompletionRequest:
        whole = (*prompt.answer.prompt_ids, *prompt.answer.ids)
        return reading_request(whole, self.manner, self._own_salt(prompt, "likelihood"), self._left())

    def _read(self, prompt: AnsweredPrompt, got: Completion) -> tuple[float, ...] | None:
        ids = prompt.answer.ids
        self._tell("likelihood")
        if got.error_kind not in ("unsupported", "broken"):
            self._must_be_answered(got, f"'{prompt.name}', read back")
        places = got.prompt_logprobs or ()
        if len(places) != len(prompt.answer.prompt_ids) + len(ids):
            return None
        self.answers += 1
        pairs = zip(places[-len(ids) :], ids, strict=True)
        return tuple(place.get(token, math.nan) for place, token in pairs)

    async def _together(self, asks: Sequence[tuple[Prompt, str]], way: Way) -> list[Told]:
        left = self._left()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._ask(prompt, salt, left)) for prompt, salt in asks]
        found = []
        for (prompt, _), task in zip(asks, running, strict=True):
            got = task.result()
            self._tell(way)
            if got.error_kind == "unsupported":
                note = f"'{prompt.name}' was left out: {(got.error or 'the engine refuses it').rstrip('.')}."
                self.notes += [note] if note not in self.notes else []
                continue
            self._must_be_answered(got, f"'{prompt.name}'")
            self.answers += 1
            found.append(Told(prompt, way, got))
        return found

    async def _ask(self, prompt: Prompt, salt: str, left: float) -> Completion:
        """Ask once; what breaks is asked again without numbers: those that are none can't be written as JSON."""
        request = answer_request(prompt, self.passages, self.manner, salt, left)
        got = await self.engine.complete(request)
        if got.error_kind != "broken" or not self.manner.alternatives:
            return got
        plain = answer_request(prompt, self.passages, replace(self.manner, alternatives=0), salt, left)
        again = await self.engine.complete(plain)
        return again if again.ok else got

    def _passage_salt(self, prompt: Prompt) -> str:
        return f"{self.salt}-passage-{prompt.passage}"

    def _own_salt(self, prompt: Prompt, way: Way) -> str:
        return f"{self.salt}-{way}-{prompt.name}"

    def _left(self) -> float:
        """Give the seconds that are left. Raises EngineError when there are none."""
        left = self._ends - asyncio.get_running_loop().time()
        if left <= 0:
            self.late = True
            raise EngineError(
                f"{self.answers} answers came within {self.deadline_s:.1f} s, which is all the time there was; the engine is "
                "slow or busy."
            )
        return left

    async def fell_asleep(self) -> bool:
        """Say whether the engine sleeps now: what it answers then is no fault of its output."""
        try:
            return bool((await self.engine.stats()).asleep)
        except EngineError:
            return self.asleep is not None and self.asleep()

    async def _awake(self) -> None:
        """Raise EngineAsleep when the engine sleeps now; a request could end it. Others know it seconds later only."""
        try:
            sleeps = (await self.engine.stats()).asleep
        except EngineGone:
            raise
        except EngineError:
            if self.asleep is None:
                raise
            sleeps = self.asleep()
        if sleeps:
            raise EngineAsleep(ASLEEP)

    def _tell(self, way: Way) -> None:
        if self.progress is not None:
            self.progress(GoldenProgress(min(self.answers + 1, self.total), self.total, way))

    def _must_be_answered(self, got: Completion, what: str) -> None:
        if got.ok:
            return
        said = (got.error or "no answer").rstrip(".")
        if got.error_kind in GONE:
            raise EngineGone(f"The engine was gone when it was asked {what} ({said}).")
        if got.error_kind == "unauthorized":
            raise EngineUnauthorized(f"The engine refuses the API key ({said}).")
        if got.error_kind == "timed_out":
            self.late = True
            self._left()
            raise EngineError(f"The engine did not answer {what} in time ({said}).")
        raise EngineError(f"The engine does not answer {what} ({said}).")


def sharing(prompts: Sequence[P]) -> list[list[P]]:
    """Give the prompts of each passage that more than one stands behind: what can be sent together behind a cached prefix."""
    passages = dict.fromkeys(prompt.passage for prompt in prompts if prompt.passage)
    groups = [[prompt for prompt in prompts if prompt.passage == passage] for passage in passages]
    return [group for group in groups if len(group) > 1]


def batch_size(facts: EngineFacts, most: int, prompts: Sequence[AnsweredPrompt] | Sequence[Prompt]) -> int:
    """Give how many prompts to send at once: a batch size that a CUDA graph is captured for, where the engine tells.

    No more than the engine works on at once, than twice the prompts there are, and than its KV cache holds. Of the larger
    sizes it is the one that leaves the fewest places in the last batch to be filled.
    """
    room = min(most, facts.max_num_seqs or most, max(2, 2 * len(prompts)))
    longest = max((_tokens(each) for each in prompts), default=1)
    if facts.kv_tokens:
        room = min(room, max(1, facts.kv_tokens // (2 * longest)))
    captured = [size for size in facts.cudagraph_sizes if 1 < size <= room]
    # What vLLM captures by default: 1, 2, 4, then multiples of 8 (vllm/config/vllm.py).
    sizes = captured or list(range(8, room + 1, 8)) or [max(1, room)]
    large = [size for size in sizes if 2 * size > max(sizes)]
    return min(large, key=lambda size: (-(-len(prompts) // size) * size, -size))


def _tokens(prompt: Prompt) -> int:
    answer = getattr(prompt, "answer", None)
    return (len(answer.prompt_ids) if answer is not None else 0) + prompt.max_tokens
