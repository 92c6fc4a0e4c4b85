"""Settings about the engine: where it answers, what it is, and what is shared with its container.

What is done with its caches and its traffic is declared beside this file.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

import pydantic
from pydantic import Field

from sidecar.config.group import Group

#: The words of WARMUP_ENGINE: one for each file of an engine, so that whoever adds one lists it nowhere.
ENGINES = (
    "auto",
    *sorted(file.stem for file in (Path(__file__).parents[1] / "engines" / "adapters").glob("[a-z]*.py")),
)

#: Major and minor version. `12` is no 1.2 and `90.0` no 90.0: a part is missing there, or a float was made of 90.
_SM_FORMS = re.compile(r"(?:sm_?)?([2-9]|1[0-9])\.?([0-9])[af]?")


class EngineSettings(Group):
    """The engine, its image and its container."""

    engine_url: str = Field(
        "http://127.0.0.1:8000",
        pattern=r"^https?://[^/\s]+$",
        description="Where the engine answers: scheme, host and port, no path.",
    )
    engine: str = Field(
        "auto",
        description="Which engine it is; `auto` goes by its command line, then by what the port answers.",
        json_schema_extra={"enum": list(ENGINES)},
    )
    consume_metrics: bool = Field(
        False,
        description="Read TensorRT-LLM's JSON `/metrics` where it has no Prometheus metrics; what is read there is gone for "
        "every other reader.",
    )
    api_key_file: Path | None = Field(None, description="File with the engine's API key; re-read when it changes.")
    model: str = Field("", description="Served model name to send traffic to; empty: the first that /v1/models lists.")
    image: str = Field(
        "",
        pattern=r"^(\S+@sha256:[0-9a-f]{64})?$",
        description="Reference of the engine's image pinned by digest (`NAME@sha256:…`); enters the key of exact caches when set.",
    )
    sm: str = Field(
        "",
        pattern=r"^(sm\d{2,3}|cpu)?$",
        description="SM version such as `sm90`, or `cpu`; empty: asked from NVML, then from the launcher's facts.",
    )
    control_dir: Path = Field(
        Path("/run/warmup"), description="Directory shared with the engine container: launcher, handshake, socket."
    )
    launcher: bool = Field(
        True, description="The engine's command is prefixed by the launcher; `false`: the sidecar only sees its port."
    )

    @pydantic.field_validator("engine_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        found = urllib.parse.urlsplit(value)
        if found.username or found.password:
            raise ValueError("must not hold a user or password: it is shown on the status page")
        try:
            _ = found.port
        except ValueError:
            raise ValueError("the port must be a number up to 65535") from None
        return value

    @pydantic.field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value.lower() not in ENGINES:
            raise ValueError(f"must be one of {', '.join(ENGINES)}")
        return value.lower()

    @pydantic.field_validator("sm", mode="before")
    @classmethod
    def _as_one_word(cls, value: object) -> object:
        """Take what tools print for an SM version too: `9.0` and `90` (nvidia-smi, CUDA), `sm_90a` (nvcc)."""
        word = str(value).strip().lower()
        if found := _SM_FORMS.fullmatch(word):
            return f"sm{found[1]}{found[2]}"
        return word if word == "cpu" else value

    @pydantic.field_validator("control_dir")
    @classmethod
    def _absolute_directory(cls, value: Path) -> Path:
        return absolute(value)


def absolute(value: Path) -> Path:
    """Give the path, or raise ValueError when it is relative."""
    if not value.is_absolute():
        raise ValueError("must be an absolute path, because engine and sidecar must mean the same directory")
    return value
