"""Settings about warm-up and the check of the output, and what follows when either fails.

The traffic itself is described by profiles, not by settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import pydantic
from pydantic import Field

from sidecar.config.fallbacks import Change, changes
from sidecar.config.group import Group

GoldenPolicy = Literal["retry-cold", "fallback", "hold", "serve"]


class WarmupSettings(Group):
    """Warm-up, golden check, and the policies of both."""

    profile: str = Field("auto", description="Warm-up profile: `auto` (by SM version), a shipped name, or a path.")
    warm_budget_s: float = Field(
        1800,
        ge=0,
        le=86400,
        description="Cap of warm-up; 0: none is done. 30 minutes: a first boot on an empty store compiles so long.",
    )
    request_timeout_s: float = Field(
        900,
        gt=0,
        le=7200,
        description="Cap of one warm-up request. Beyond the 600 s after which NCCL's watchdog ends a stalled engine.",
    )
    kv_release_s: float = Field(
        600,
        ge=0,
        le=86400,
        description="How long KV cache may stay pinned after the warm-up of an engine that hands it on (role prefill), before "
        "that is told and the pod flagged. Beyond the 480 s after which vLLM's connectors let go of what nobody fetched.",
    )
    restart_after_cold: Literal["never", "once"] = Field(
        "never",
        description="`once`: an engine that started cold is restarted before it takes traffic, once its caches are published, "
        "because compiling leaves its KV cache smaller until then. Needs the launcher.",
    )
    golden: Path | None = Field(
        None,
        description="Golden file or directory (`warmup-sidecar golden record` makes one): output is compared with it before "
        "traffic comes. Without it only degenerate output is found.",
    )
    golden_timeout_s: float = Field(
        300,
        gt=0,
        le=7200,
        description="Cap of one comparison with the golden file. 5 minutes: a busy CPU engine answers 32 prompts in one.",
    )
    on_golden_failed: str = Field(
        "retry-cold,hold",
        description="What to do about bad output, tried in order: `retry-cold` (quarantine the generation, start with empty "
        "caches), `fallback` (restart the engine with the next of `WARMUP_FALLBACKS`), `hold`, `serve` (flagged).",
    )
    fallbacks: str = Field(
        "",
        description="Changes of the engine's command, tried in order by the policy `fallback`, separated by `;`: "
        "`--option value` and `NAME=value` set or replace, `!--option`, `!--option *` (with its value) and `!NAME` remove. "
        "Such as `--kv-cache-dtype auto; VLLM_USE_DEEP_GEMM=0`. Needs the launcher.",
    )
    sample_output_s: float = Field(
        0,
        ge=0,
        le=86400,
        description="While the pod serves and its engine has room, one short request looks for degenerate output as often as "
        "this, and for errors where the engine tells its load; twice in a row withdraws traffic and checks all. 0: never.",
    )
    on_unwarmed: Literal["serve", "hold"] = Field(
        "serve", description="Whether a pod whose warm-up failed or ran out of budget takes traffic (flagged) or not."
    )

    @pydantic.field_validator("fallbacks", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        whole = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "; ".join(value) if isinstance(value, list) and whole else value

    @pydantic.field_validator("fallbacks")
    @classmethod
    def _known_changes(cls, value: str) -> str:
        changes(value)
        return value

    @pydantic.field_validator("on_golden_failed")
    @classmethod
    def _known_policies(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",") if word.strip()]
        for word in words:
            if word not in get_args(GoldenPolicy):
                raise ValueError(f"'{word}' is not one of {', '.join(get_args(GoldenPolicy))}")
        if not words:
            raise ValueError("name at least one of " + ", ".join(get_args(GoldenPolicy)))
        last = next((index for index, word in enumerate(words) if word in ("hold", "serve")), len(words))
        if words[last + 1 :]:
            raise ValueError(f"nothing after '{words[last]}' is ever tried: it must be the last")
        return ",".join(words)

    @property
    def golden_policies(self) -> tuple[str, ...]:
        """Give the policies of `on_golden_failed` in the order in which they are tried."""
        return tuple(self.on_golden_failed.split(","))

    @property
    def fallback_changes(self) -> tuple[Change, ...]:
        """Give the changes of `fallbacks` in order; none where no policy asks for them."""
        return changes(self.fallbacks) if "fallback" in self.golden_policies else ()
