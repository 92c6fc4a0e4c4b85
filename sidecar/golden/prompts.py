"""Prompts: what a file may say of one, and what an engine is sent for it.

Answers are kept in `files.py`; when and with how many others a prompt is sent is decided in `asking.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Field

from sidecar.engines.protocol import EngineFacts
from sidecar.golden.expressions import compiled
from sidecar.warmup.media import data_url, picture
from sidecar.warmup.steps import Strict

#: Pictures are made from this and the prompt's name, the same in every process and release.
PICTURE_SEED = "golden picture"


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class Prompt(Strict):
    """One prompt: a `text` to go on with, or the `messages` of a conversation, which the chat template is applied to.

    `passage` names a text of the file that stands before `text`; prompts with the same one are sent together, so that they
    share a cached prefix. `picture` is the width in pixels of one that goes with the last message. `expect` is a regular
    expression that must be found in the answer. `max_tokens`: length of the answer.
    """

    name: str = Field(min_length=1, max_length=60, pattern=r"^[^\n]*$")
    text: str = ""
    messages: tuple[Message, ...] = ()
    passage: str = ""
    picture: int = Field(0, ge=0, le=4096)
    max_tokens: int = Field(24, ge=1, le=4096)
    expect: Annotated[str, AfterValidator(compiled)] = ""

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Prompt:
        if bool(self.text) == bool(self.messages):
            raise ValueError(f"the prompt '{self.name}' needs either `text` or `messages`")
        if self.messages and self.passage:
            raise ValueError(f"the prompt '{self.name}' has `messages`; a `passage` stands before `text` only")
        if self.picture and not self.messages:
            raise ValueError(f"the prompt '{self.name}' has a `picture`, which only goes with `messages`")
        if self.picture and self.picture < 8:
            raise ValueError("a picture is at least 8 pixels wide")
        return self

    def content(self, passages: Mapping[str, str]) -> tuple[str | None, tuple[Mapping[str, Any], ...] | None]:
        """Give what is sent: a text, or messages."""
        if not self.messages:
            return passages.get(self.passage, "") + self.text, None
        messages: list[Mapping[str, Any]] = [each.model_dump() for each in self.messages]
        if self.picture:
            own = random.Random(f"{PICTURE_SEED} {self.name}")
            url = data_url(picture(self.picture, max(8, self.picture * 3 // 4), own))
            parts = [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": messages[-1]["content"]},
            ]
            messages[-1] = {**messages[-1], "content": parts}
        return None, tuple(messages)


def why_not(prompt: Prompt, facts: EngineFacts) -> str:
    """Say why an engine can't be asked this prompt; empty where it can."""
    if prompt.picture and not facts.images:
        return "the engine takes no pictures"
    if prompt.messages and facts.chat is False:
        return "the engine has no chat template"
    return ""
