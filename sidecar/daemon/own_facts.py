"""The facts of an engine that nobody starts through the launcher: settings and NVML, and nothing that is guessed.

How facts become keys is the business of `caches/fingerprint.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from sidecar.config import Settings
from sidecar.gpu.nvml import GpuSnapshot


def image_fact(settings: Settings) -> Mapping[str, Any]:
    """Give the image's digest as a fact; empty when the setting names none."""
    digest = settings.image.partition("@")[2]
    return {"image": {"digest": digest}} if digest else {}


def own_facts(settings: Settings, gpus: GpuSnapshot | None) -> tuple[Mapping[str, Any], str]:
    """Give the facts, and a sentence when too little is known to reuse any cache.

    The SM version has one source: the setting where it is given, else NVML. A source that is away must not make
    another key, so without both nothing is reused.
    """
    facts: dict[str, Any] = {"format": 1, "cpu": {"arch": platform.machine()}, **image_fact(settings)}
    if "image" not in facts:
        return facts, (
            "Without the launcher only the image tells whether a cache fits: set WARMUP_IMAGE to the engine's image "
            "with its digest (name@sha256:…). Until then nothing is restored or published."
        )
    if settings.sm:
        facts["gpus"] = [{"sm": settings.sm}] if settings.sm != "cpu" else []
        return facts, ""
    if gpus is None:
        return facts, (
            "Without the launcher, and with NVML away, the GPU is unknown: set WARMUP_SM (such as sm90, or cpu), or "
            "give the sidecar NVML. Until then nothing is restored or published."
        )
    facts["gpus"] = [{"sm": gpu.sm, "name": gpu.name, "index": gpu.index} for gpu in gpus.gpus]
    facts["driver"] = {"version": gpus.driver}
    return facts, ""
