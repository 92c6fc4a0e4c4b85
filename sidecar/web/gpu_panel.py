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
    gpus, notes = gpu_facts.ordered(parts.mappings(found, "gpus")), gpu_facts.notes(found)
    if not gpus:
        reason = " ".join(notes) or "NVML lists no GPU."
        return parts.card(
            "GPU",
            "gpu",
            element("p", reason, class_="soft"),
            tag=parts.tag("unavailable" if found.get("unavailable") else "none"),
        )
    seen, lost = len(parts.listed(found, "seen")), len(lost_of(status))
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
        tag=element("span", f"{lost} lost" if len(gpus) > 1 else "lost", class_="tag bad") if lost else None,
    )


def lost_of(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Give the lost GPUs of a status."""
    return [each for each in parts.mappings(parts.section(status, "gpu"), "gpus") if each.get("lost")]


def _one_gpu(found: Mapping[str, Any]) -> Element:
    busy = words.number(found.get("utilization_ratio"))
    used, whole = words.number(found.get("memory_used_bytes")), words.number(found.get("memory_size_bytes"))
    wrong, usual = gpu_facts.troubles(found), [gpu_facts.load(found), *gpu_facts.remarks(found)]
    return element(
        "div",
        element("h3", gpu_facts.title(found)),
        element("ul", [element("li", each) for each in wrong], class_="alarm small") if wrong else None,
        parts.gauge("Busy", busy, words.percent(busy)) if busy is not None else None,
        parts.gauge("Memory", used / whole, gpu_facts.memory(found)) if used is not None and whole else None,
        [element("p", each, class_="soft small") for each in usual if each],
        _uuid(found),
        class_="one-gpu lost" if found.get("lost") else "one-gpu",
    )


def _uuid(found: Mapping[str, Any]) -> Element | None:
    """Show the UUID, by which alerts name a GPU: short, and whole when unfolded, to be copied with one click."""
    if not found.get("uuid"):
        return None
    return element(
        "details",
        element("summary", "UUID ", element("code", gpu_facts.short_uuid(found))),
        element("code", found["uuid"], class_="whole"),
    )
