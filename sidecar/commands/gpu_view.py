"""The table of GPUs that `status` prints.

What is said of them is put into words in `web/gpu_facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sidecar.web import gpu_facts, words

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid


def grid(status: Mapping[str, Any]) -> Grid:
    """Make the table of a status; without GPUs it has no rows, and so isn't shown."""
    from sidecar.commands.tables import Grid

    found = status.get("gpu")
    gpus = found.get("gpus") if isinstance(found, Mapping) else None
    rows = [
        (
            gpu_facts.title(gpu),
            words.percent(words.number(gpu.get("utilization_ratio"))),
            gpu_facts.memory(gpu),
            gpu_facts.load(gpu),
            "; ".join(gpu_facts.troubles(gpu)),
        )
        for gpu in (gpus if isinstance(gpus, list) else ())
        if isinstance(gpu, Mapping)
    ]
    return Grid("GPUs of the engine", ("GPU", "busy", "memory", "load", "trouble"), rows, frozenset({"busy"}))
