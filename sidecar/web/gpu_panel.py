"""The card of the status page about the engine's GPUs.

What is said of them is put into words in `gpu_facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.web import gpu_facts, parts, words
from sidecar.web.markup import Element, element


def gpu(status: Mapping[str, Any]) -> Element | None:
    """Show each GPU, or why none is seen; nothing when NVML isn't used at all."""
    found = parts.section(status, "gpu")
    if not found:
        return None
    gpus, notes = parts.mappings(found, "gpus"), gpu_facts.notes(found)
    if not gpus:
        reason = found.get("unavailable") or " ".join(notes) or "NVML lists no GPU."
        return parts.card(
            "GPU",
            "gpu",
            element("p", reason, class_="soft"),
            tag=parts.tag("unavailable" if found.get("unavailable") else "none"),
        )
    seen = len(parts.listed(found, "seen"))
    return parts.card(
        "GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs",
        "gpu",
        [element("p", note, class_="alarm small") for note in notes],
        [_one_gpu(each) for each in gpus],
        parts.facts(
            [
                ("Driver", found.get("driver"), None),
                ("CUDA of the driver", found.get("cuda"), None),
                ("Visible here", f"{seen} GPUs; the engine's are shown" if seen > len(gpus) else None, None),
            ]
        ),
        tag=parts.tag("lost") if any(each.get("lost") for each in gpus) else None,
    )


def _one_gpu(found: Mapping[str, Any]) -> Element:
    busy = words.number(found.get("utilization_ratio"))
    used, whole = words.number(found.get("memory_used_bytes")), words.number(found.get("memory_size_bytes"))
    wrong = gpu_facts.troubles(found)
    return element(
        "div",
        element("h3", gpu_facts.title(found)),
        parts.gauge("Busy", busy, words.percent(busy)) if busy is not None else None,
        parts.gauge("Memory", used / whole, gpu_facts.memory(found)) if used is not None and whole else None,
        element("p", gpu_facts.load(found), class_="soft small"),
        element("ul", [element("li", each) for each in wrong], class_="alarm small") if wrong else None,
        title=found.get("uuid"),
    )
