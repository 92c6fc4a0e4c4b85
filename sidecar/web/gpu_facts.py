"""What a reading of the GPUs says for people: the numbers of each in words, and what is wrong with it.

Shared by the status page and `status`; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.web import words

#: Reasons that are a fault, as the alert WarmupGpuThrottled has them: heat and the board's own brakes. A power cap is how
#: a busy GPU works.
BRAKES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
#: Characters of a UUID that name a GPU among those of a node.
SHORT_UUID = 12


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


def ordered(gpus: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put lost GPUs first, then those with which something is wrong; else as they came."""
    return sorted(gpus, key=lambda gpu: (not gpu.get("lost"), not troubles(gpu)))


def short_uuid(gpu: Mapping[str, Any]) -> str:
    """Give the beginning of the UUID; empty when it isn't known."""
    uuid = str(gpu.get("uuid") or "")
    return uuid if len(uuid) <= SHORT_UUID else uuid[:SHORT_UUID] + "…"


def troubles(gpu: Mapping[str, Any]) -> list[str]:
    """List what is wrong with a GPU, worst first."""
    if gpu.get("lost"):
        return [f"lost: the driver can't reach {gpu.get('uuid') or 'it'}"]
    found = []
    errors = _part(gpu, "ecc_errors")
    if uncorrected := words.number(errors.get("uncorrected_volatile")):
        found.append(f"{uncorrected:.0f} uncorrected memory errors")
    if gpu.get("row_remap_failed"):
        found.append("memory that could not be remapped")
    elif gpu.get("row_remap_pending"):
        found.append("memory to be remapped at the next reset")
    active, down = _links(gpu)
    if active and down:
        found.append(f"{down:.0f} of {active + down:.0f} NVLink links down")
    if held := _held(gpu, brakes=True):
        found.append(f"clocks held down: {', '.join(held)}")
    return found


def remarks(gpu: Mapping[str, Any]) -> list[str]:
    """List what is worth knowing and no fault."""
    found = []
    active, down = _links(gpu)
    # A card without a bridge has its links all the same.
    if down and not active:
        found.append("no NVLink in use")
    if held := _held(gpu, brakes=False):
        found.append(f"clocks limited as usual: {', '.join(held)}")
    return found


def _links(gpu: Mapping[str, Any]) -> tuple[float, float]:
    links = _part(gpu, "nvlink_links")
    return words.number(links.get("active")) or 0.0, words.number(links.get("inactive")) or 0.0


def _held(gpu: Mapping[str, Any], *, brakes: bool) -> list[str]:
    reasons = _part(gpu, "throttled").items()
    return [words.plain(reason) for reason, held in reasons if held and (reason in BRAKES) == brakes]


def notes(found: Mapping[str, Any]) -> list[str]:
    """List what is to be said of the reading as a whole: why it failed, why GPUs are missing, or whose are not shown."""
    said = [str(found["unavailable"])] if found.get("unavailable") else []
    said += [str(each) for each in found.get("troubles") or () if each]
    if found.get("unclear"):
        said.append(str(found["unclear"]))
    return said


def _part(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = gpu.get(name)
    return found if isinstance(found, Mapping) else {}
