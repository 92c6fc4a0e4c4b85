"""The table of GPUs that `status` prints.

What is said of them is put into words in `web/gpu_facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sidecar.web import gpu_facts, words

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid

#: Why NVML can't be used on a node without GPUs, which is an ordinary thing.
ABSENT = ("no_library", "no_driver", "no_gpu")


def grid(status: Mapping[str, Any]) -> Grid:
    """Make the table of a status; without GPUs it has no rows, and so isn't shown."""
    from sidecar.commands.tables import Grid

    section = status.get("gpu")
    found: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    gpus = found.get("gpus")
    rows = [
        (
            gpu_facts.title(gpu),
            words.percent(words.number(gpu.get("utilization_ratio"))),
            gpu_facts.memory(gpu),
            gpu_facts.load(gpu),
            "; ".join([*gpu_facts.troubles(gpu), *gpu_facts.remarks(gpu)]),
        )
        for gpu in gpu_facts.ordered(
            each for each in (gpus if isinstance(gpus, list) else ()) if isinstance(each, Mapping)
        )
    ]
    if found.get("kind") not in ABSENT:
        rows += [("NVML", "", "", "", note) for note in gpu_facts.notes(found)]
    headings = ("GPU", "busy", "memory", "load", "remarks")
    return Grid("GPUs of the engine", headings, rows, frozenset({"busy"}), frozenset({"remarks"}))
