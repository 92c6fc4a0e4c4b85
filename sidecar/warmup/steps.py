"""The kinds of warm-up steps about text on any engine, as frozen models that say what is wrong with a file.

Kinds for tasks, adapters, ranks and drafts are in `task_steps.py`; what a step turns into is decided in `planner.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field
from pydantic_core import PydanticCustomError

from sidecar.warmup.features import SamplingFeature
from sidecar.warmup.sizes import Size, Sizes

#: Of this type are the errors for unknown keys; the context names the key, so that its line can be shown.
UNKNOWN_KEY = "unknown_key"


def known_version(newest: int) -> Callable[[Any], Any]:
    """Make a check that refuses a file of a newer form with advice, before its value is compared."""

    def check(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and value > newest:
            raise ValueError(
                f"this file is of version {value}, and this program knows versions up to {newest}; install a newer one"
            )
        return value

    return check


class Strict(pydantic.BaseModel):
    """A frozen model that refuses unknown keys and says which one was probably meant."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_by_alias=True)

    #: Keys that a file may have and that are gone when it is checked; for suggestions.
    OTHER_KEYS: ClassVar[tuple[str, ...]] = ()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = [info.alias or name for name, info in cls.model_fields.items()]
        for key in data:
            if key not in known:
                close = difflib.get_close_matches(str(key), [*known, *cls.OTHER_KEYS], n=1)
                hint = f"did you mean `{close[0]}`?" if close else "known are " + ", ".join(known) + "."
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key `{key}`; {hint}", {"key": str(key), "hint": hint})
        return data


class StepBase(Strict):
    """What every step has. `name` is shown in status and logs; left out, it is the kind."""

    name: str = Field("", max_length=60, pattern=r"^[^/\n]*$")

    @property
    def title(self) -> str:
        """Give the name, or the kind where none was given."""
        return self.name or str(getattr(self, "kind", "step")).replace("_", " ")


class PrefillStep(StepBase):
    """Prompts of these lengths, each length with each concurrency, with a few output tokens.

    `at_most` caps the lengths, in tokens: a model of a million tokens need not be filled in every round.
    """

    kind: Literal["prefill"]
    tokens: Sizes
    concurrency: Sizes = (1,)
    output_tokens: int = Field(3, ge=1, le=4096)
    at_most: int | None = Field(None, ge=1)


class DecodeStep(StepBase):
    """So many short prompts at once, which then generate together."""

    kind: Literal["decode"]
    batch: Sizes
    prompt_tokens: Sizes = (32,)
    output_tokens: int = Field(16, ge=2, le=4096)


class MixedStep(StepBase):
    """Long generations run, and prefills arrive while they do: the batches live traffic consists of."""

    kind: Literal["mixed"]
    decodes: Size = 4
    decode_prompt_tokens: Size = 32
    decode_output_tokens: int = Field(64, ge=8, le=8192)
    prefill_tokens: Sizes
    prefills: Size = 1
    output_tokens: int = Field(4, ge=1, le=4096)


class SharedPrefixStep(StepBase):
    """One request fills the prefix cache, then so many at once hit it, each with its own suffix.

    `whole`: so many at once repeat the whole prompt too, which is a full hit.
    """

    kind: Literal["shared_prefix"]
    prefix_tokens: Sizes
    suffix_tokens: Sizes = (1, 64)
    whole: bool = True
    concurrency: Sizes = (1,)
    output_tokens: int = Field(4, ge=1, le=4096)


class SamplingStep(StepBase):
    """One burst for each named sampling feature."""

    kind: Literal["sampling"]
    features: tuple[SamplingFeature, ...] = Field(min_length=1)
    concurrency: Sizes = (1,)
    prompt_tokens: Size = 32
    output_tokens: int = Field(8, ge=2, le=4096)


class LogprobsStep(StepBase):
    """Log-probabilities of output (`values`: how many alternatives) and prompt (`prompt_values`)."""

    kind: Literal["logprobs"]
    values: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = Field(min_length=1)
    prompt_values: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = ()
    concurrency: Sizes = (1,)
    prompt_tokens: Size = 32
    output_tokens: int = Field(8, ge=2, le=4096)


class StructuredStep(StepBase):
    """Output that must follow a JSON schema, a regular expression, or both in turn."""

    kind: Literal["structured"]
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    concurrency: Sizes = (1,)
    prompt_tokens: Size = 32
    output_tokens: int = Field(32, ge=2, le=4096)

    @pydantic.model_validator(mode="after")
    def _something_to_follow(self) -> StructuredStep:
        if self.json_schema is None and self.regex is None:
            raise ValueError("give `json_schema`, `regex` or both")
        return self


class ChatStep(StepBase):
    """A conversation of a system and a user message, through the chat template."""

    kind: Literal["chat"]
    system: str = "You are a helpful assistant."
    user: str = "Say in one sentence why the sky is blue."
    concurrency: Sizes = (1,)
    output_tokens: int = Field(8, ge=1, le=4096)
