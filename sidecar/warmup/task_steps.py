"""The kinds of steps that only some engines have a use for, and the union of all kinds by their `kind`.

What a step turns into on a given engine is decided in `task_expansion.py`; nothing is sent from here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sidecar.warmup.sizes import Sizes
from sidecar.warmup.steps import (
    ChatStep,
    DecodeStep,
    LogprobsStep,
    MixedStep,
    PrefillStep,
    SamplingStep,
    SharedPrefixStep,
    StepBase,
    StructuredStep,
)


class AdaptersStep(StepBase):
    """Requests to one LoRA adapter of each rank, or to each adapter where ranks are unknown.

    `at_most` caps the adapters: an engine that lists hundreds loads them into few places one after another.
    `together`: then one request to each at once, so that a batch holds several adapters.
    """

    kind: Literal["adapters"]
    prompt_tokens: Sizes = (32,)
    concurrency: Sizes = (1,)
    output_tokens: int = Field(8, ge=1, le=4096)
    at_most: int = Field(16, ge=1, le=1024)
    together: bool = True


class SpeculativeStep(StepBase):
    """Generations long enough for drafting and verifying, from random prompts and from repetitive ones.

    Drafts that follow random tokens are mostly rejected, those that follow a repetition mostly accepted.
    `output_tokens` is raised to the number of drafted tokens plus 2.
    """

    kind: Literal["speculative"]
    prompt_tokens: Sizes = (64,)
    concurrency: Sizes = (1,)
    output_tokens: int = Field(24, ge=3, le=4096)


class DataParallelStep(StepBase):
    """Requests to each data-parallel rank alone while the others idle, then to all ranks at once.

    An idle rank joins every step of a busy one with a dummy batch, whose kernels its own requests don't warm.
    """

    kind: Literal["data_parallel"]
    tokens: Sizes
    concurrency: Sizes = (1,)
    output_tokens: int = Field(8, ge=1, le=4096)


class EmbeddingsStep(StepBase):
    """Texts of these lengths to embed, so many requests at once."""

    kind: Literal["embeddings"]
    tokens: Sizes
    concurrency: Sizes = (1,)
    at_most: int | None = Field(None, ge=1)


class ScoreStep(StepBase):
    """Pairs of texts to score; `documents`: so many beside one query in one request."""

    kind: Literal["score"]
    tokens: Sizes = (32,)
    documents: Sizes = (1,)
    concurrency: Sizes = (1,)


class RerankStep(StepBase):
    """A query and so many documents to put in order, each of so many tokens."""

    kind: Literal["rerank"]
    tokens: Sizes = (32,)
    documents: Sizes = (4,)
    concurrency: Sizes = (1,)


class TranscriptionStep(StepBase):
    """Generated recordings of these lengths to transcribe, in seconds."""

    kind: Literal["transcription"]
    seconds: tuple[Annotated[float, Field(gt=0, le=600)], ...] = Field((1.0,), min_length=1)
    concurrency: Sizes = (1,)
    language: str = Field("en", min_length=2, max_length=8)


class ImageStep(StepBase):
    """Chat messages with one generated image of each size, by its width in pixels, 4 to 3."""

    kind: Literal["image"]
    pixels: tuple[Annotated[int, Field(ge=8, le=8192)], ...] = Field((224,), min_length=1)
    concurrency: Sizes = (1,)
    text: str = "Say in one sentence what this picture shows."
    output_tokens: int = Field(8, ge=1, le=4096)


class AudioStep(StepBase):
    """Chat messages with one generated recording of each length, in seconds, for models that listen and answer.

    Models that only write down what was said have `transcription`.
    """

    kind: Literal["audio"]
    seconds: tuple[Annotated[float, Field(gt=0, le=600)], ...] = Field((1.0,), min_length=1)
    concurrency: Sizes = (1,)
    text: str = "Say in one sentence what can be heard."
    output_tokens: int = Field(8, ge=1, le=4096)


AnyStep = Annotated[
    PrefillStep
    | DecodeStep
    | MixedStep
    | SharedPrefixStep
    | SamplingStep
    | LogprobsStep
    | StructuredStep
    | ChatStep
    | AdaptersStep
    | SpeculativeStep
    | DataParallelStep
    | EmbeddingsStep
    | ScoreStep
    | RerankStep
    | TranscriptionStep
    | ImageStep
    | AudioStep,
    Field(discriminator="kind"),
]

#: What each kind needs the engine to be able to do; kinds that aren't named need text generation.
TASK_OF_KIND = {
    "embeddings": "embed",
    "score": "score",
    "rerank": "score",
    "transcription": "transcription",
}
