"""What every group of settings shares: frozen, unknown keys refused, words of a list in any case.

No setting is declared here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_origin

import pydantic


class Group(pydantic.BaseModel):
    """A frozen group of settings. Durations in seconds, sizes in bytes, the unit at the end of the name."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_nul(cls, value: object) -> object:
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("holds a NUL character")
        return value

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _any_case(cls, value: object, info: pydantic.ValidationInfo) -> object:
        listed = info.field_name and get_origin(cls.model_fields[info.field_name].annotation) is Literal
        return value.lower() if listed and isinstance(value, str) else value
