"""How steps that only some engines have a use for turn into bursts: adapters, drafts, ranks, and work other than text.

What fits the engine by size is decided in `clipping.py`, order and warnings in `planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.asks import OtherAsk
from sidecar.warmup.bursts import Burst, single
from sidecar.warmup.clipping import Clipping, times
from sidecar.warmup.sizes import Limits, resolve_all
from sidecar.warmup.steps import StepBase
from sidecar.warmup.task_steps import (
    AdaptersStep,
    AudioStep,
    DataParallelStep,
    EmbeddingsStep,
    ImageStep,
    RerankStep,
    ScoreStep,
    SpeculativeStep,
    TranscriptionStep,
)

#: Drafted tokens that are assumed where an engine drafts and doesn't tell how many.
ASSUMED_DRAFT = 8
#: Tokens of a picture and of a second of sound: estimates, for the sum of a plan only. About one token for each
#: square of 28 pixels (Qwen-VL), and 50 for a second (Whisper's encoder).
PIXELS_PER_TOKEN_SIDE = 28
TOKENS_PER_SECOND = 50
TEXT_TOKENS = 48


class TaskExpansion:
    """Turns such steps into bursts for one engine; `not_applicable` collects why a step has no bursts here."""

    def __init__(self, limits: Limits, facts: EngineFacts, clipping: Clipping) -> None:
        self._limits = limits
        self._facts = facts
        self._clip = clipping
        self.not_applicable: list[str] = []
        self.kinds: Mapping[type[StepBase], Callable[[Any], list[Burst]]] = {
            AdaptersStep: self._adapters,
            SpeculativeStep: self._speculative,
            DataParallelStep: self._data_parallel,
            EmbeddingsStep: self._embeddings,
            ScoreStep: self._score,
            RerankStep: self._rerank,
            TranscriptionStep: self._transcription,
            ImageStep: self._image,
            AudioStep: self._audio,
        }

    def _none(self, step: StepBase, why: str) -> list[Burst]:
        self.not_applicable.append(f"{step.title}: {why}.")
        return []

    def _adapters(self, step: AdaptersStep) -> list[Burst]:
        if not self._facts.adapters:
            return self._none(step, "the engine lists no adapters")
        chosen = one_of_each_rank(self._facts.adapters, self._facts.adapter_ranks)[: step.at_most]
        left = len(self._facts.adapters) - len(chosen)
        if left:
            why = "one of each rank is enough" if self._facts.adapter_ranks else f"the step has at_most: {step.at_most}"
            self._clip.note(step, f"{left} of {len(self._facts.adapters)} adapters are left out: {why}")
        output = self._clip.output(step.output_tokens)
        found = []
        for length in self._clip.lengths(step, step.prompt_tokens, output):
            for count in self._clip.batches(step, step.concurrency, length + output):
                found += [
                    single(times(count, f"{length} {name}"), OtherAsk(count, length, output, model=name))
                    for name in chosen
                ]
            seats = min(len(chosen), self._limits.max_num_seqs, self._clip.room(length + output))
            if step.together and seats > 1:
                asks = (OtherAsk(1, length, output, model=name) for name in chosen[:seats])
                found.append(single(f"{length} to {seats} adapters at once", *asks))
        return found

    def _speculative(self, step: SpeculativeStep) -> list[Burst]:
        drafted = self._facts.speculative_tokens
        if not drafted:
            return self._none(step, "the engine drafts no tokens, or doesn't tell")
        # Drafting needs a decode step, verifying another one, and the bonus token follows: k + 2 tokens at least.
        output = self._clip.output(max(step.output_tokens, drafted + 2))
        found = []
        for length in self._clip.lengths(step, step.prompt_tokens, output):
            for count in self._clip.batches(step, step.concurrency, length + output):
                ask = OtherAsk(count, length, output)
                found.append(single(times(count, f"{length} random"), ask))
                found.append(single(times(count, f"{length} repetitive"), replace(ask, repetitive=True)))
        return found

    def _data_parallel(self, step: DataParallelStep) -> list[Burst]:
        ranks = self._facts.dp_ranks or 1
        if ranks < 2:
            return self._none(step, "this port has one data-parallel rank, or doesn't tell of more")
        output = self._clip.output(step.output_tokens)
        found = []
        for length in self._clip.lengths(step, step.tokens, output):
            for count in self._clip.batches(step, step.concurrency, length + output):
                asks = [OtherAsk(count, length, output, rank=rank) for rank in range(ranks)]
                found += [single(f"rank {ask.rank} alone: {times(count, str(length))}", ask) for ask in asks]
                found.append(single(f"all {ranks} ranks: {times(count, str(length))}", *asks))
        return found

    def _embeddings(self, step: EmbeddingsStep) -> list[Burst]:
        return [
            single(times(count, str(length)), OtherAsk(count, length, 0, work="embed"))
            for length in self._clip.lengths(step, step.tokens, 0, step.at_most)
            for count in self._clip.batches(step, step.concurrency, length)
        ]

    def _score(self, step: ScoreStep) -> list[Burst]:
        return self._pairs(step, OtherAsk(1, 1, 0, work="score"))

    def _rerank(self, step: RerankStep) -> list[Burst]:
        return self._pairs(step, OtherAsk(1, 1, 0, work="rerank"))

    def _pairs(self, step: ScoreStep | RerankStep, ask: OtherAsk) -> list[Burst]:
        # A cross-encoder reads query and document as one text, in words, some of which are two tokens.
        longest = max(1, self._limits.max_model_len // 4)
        found = []
        for length in sorted({min(each, longest) for each in resolve_all(step.tokens, self._limits)}):
            for documents in resolve_all(step.documents, self._limits):
                each = 2 * length * documents
                for count in self._clip.batches(step, step.concurrency, each):
                    shape = replace(ask, count=count, prompt_tokens=length, documents=documents)
                    found.append(single(f"{times(count, str(length))} with {documents}", shape))
        return found

    def _transcription(self, step: TranscriptionStep) -> list[Burst]:
        return [
            single(
                times(count, f"{seconds:g} s"),
                OtherAsk(
                    count,
                    max(1, int(seconds * TOKENS_PER_SECOND)),
                    0,
                    work="transcription",
                    audio_s=seconds,
                    language=step.language,
                ),
            )
            for seconds in sorted(set(step.seconds))
            for count in self._clip.batches(step, step.concurrency, 1)
        ]

    def _lacks(self, taken: bool | None, what: str) -> str:
        """Say why messages with pictures or recordings can't be sent; empty when they can."""
        if taken is not True:
            return (
                f"the engine takes no {what}" if taken is False else f"the engine doesn't tell whether it takes {what}"
            )
        return "the engine has no chat template" if self._facts.chat is False else ""

    def _image(self, step: ImageStep) -> list[Burst]:
        if why := self._lacks(self._facts.images, "pictures"):
            return self._none(step, why)
        output = self._clip.output(step.output_tokens)
        messages = ({"role": "user", "content": step.text},)
        found = []
        for width in sorted(set(step.pixels)):
            seen = (width // PIXELS_PER_TOKEN_SIDE + 1) * (width * 3 // 4 // PIXELS_PER_TOKEN_SIDE + 1)
            ask = OtherAsk(1, seen + TEXT_TOKENS, output, messages=messages, picture=width)
            for count in self._clip.batches(step, step.concurrency, ask.tokens):
                found.append(single(times(count, f"{width} pixels"), replace(ask, count=count)))
        return found

    def _audio(self, step: AudioStep) -> list[Burst]:
        if why := self._lacks(self._facts.sounds, "recordings"):
            return self._none(step, why)
        output = self._clip.output(step.output_tokens)
        messages = ({"role": "user", "content": step.text},)
        found = []
        for seconds in sorted(set(step.seconds)):
            heard = max(1, int(seconds * TOKENS_PER_SECOND))
            ask = OtherAsk(1, heard + TEXT_TOKENS, output, messages=messages, audio_s=seconds)
            for count in self._clip.batches(step, step.concurrency, ask.tokens):
                found.append(single(times(count, f"{seconds:g} s"), replace(ask, count=count)))
        return found


def one_of_each_rank(adapters: Iterable[str], ranks: Mapping[str, int]) -> list[str]:
    """Take one adapter of each known LoRA rank, and every adapter whose rank isn't known."""
    seen: set[int] = set()
    found = []
    for name in adapters:
        rank = ranks.get(name)
        if rank is None or rank not in seen:
            found.append(name)
        if rank is not None:
            seen.add(rank)
    return found
