"""What a reading of the GPUs says for people: the numbers of each in words, and what is wrong with it.

Shared by the status page and `status`; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.web import words


def title(gpu: Mapping[str, Any]) -> str:
    """Name a GPU: its number, its product and, for a MIG instance, its profile."""
    mig = f" MIG {gpu['mig']}" if gpu.get("mig") else ""
    number = gpu.get("index")
    return f"{'' if number is None else number}: {gpu.get('name') or 'GPU'}{mig}".lstrip(": ")


def load(gpu: Mapping[str, Any]) -> str:
    """Say what it draws, how warm and how fast it is; what isn't known is left out."""
    watts, limit = words.number(gpu.get("power_watts")), words.number(gpu.get("power_limit_watts"))
    celsius = words.number(gpu.get("temperature_celsius"))
    clock = words.number(_part(gpu, "clock_hertz").get("sm"))
    said = [
        f"{watts:.0f} W" + (f" of {limit:.0f}" if limit is not None else "") if watts is not None else "",
        f"{celsius:.0f} °C" if celsius is not None else "",
        f"{clock / 1e6:.0f} MHz" if clock is not None else "",
        str(gpu.get("sm") or ""),
    ]
    return " · ".join(part for part in said if part)


def memory(gpu: Mapping[str, Any]) -> str:
    """Say how much memory is used, and whose it is."""
    used, whole = words.number(gpu.get("memory_used_bytes")), words.number(gpu.get("memory_size_bytes"))
    if used is None or not whole:
        return ""
    shared = " of the machine, which it shares" if gpu.get("memory") == "unified" else ""
    return f"{words.size(used)} of {words.size(whole)}{shared}"


def troubles(gpu: Mapping[str, Any]) -> list[str]:
    """List what is wrong with a GPU, worst first."""
    if gpu.get("lost"):
        return ["lost: the driver can't reach it"]
    found = []
    errors = _part(gpu, "ecc_errors")
    if uncorrected := words.number(errors.get("uncorrected_volatile")):
        found.append(f"{uncorrected:.0f} uncorrected memory errors")
    if gpu.get("row_remap_failed"):
        found.append("memory that could not be remapped")
    elif gpu.get("row_remap_pending"):
        found.append("memory to be remapped at the next reset")
    if down := words.number(_part(gpu, "nvlink_links").get("inactive")):
        found.append(f"{down:.0f} NVLink links down")
    reasons = [words.plain(reason) for reason, held in _part(gpu, "throttled").items() if held]
    if reasons:
        found.append(f"clocks held down: {', '.join(reasons)}")
    return found


def notes(found: Mapping[str, Any]) -> list[str]:
    """List what is to be said of the reading as a whole: why GPUs are missing, or whose are not shown."""
    said = [str(each) for each in found.get("troubles") or () if each]
    if found.get("unclear"):
        said.append(str(found["unclear"]))
    return said


def _part(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = gpu.get(name)
    return found if isinstance(found, Mapping) else {}
