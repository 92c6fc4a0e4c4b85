"""Which GPUs the engine uses, from what the launcher saw in the engine's container; never guessed.

Nothing is asked of a GPU here, and no key depends on it (that is `caches/visible_gpus.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.gpu.reading import Wish

#: What NVIDIA_VISIBLE_DEVICES says without naming a GPU. NVIDIA container toolkit, "Environment variables"; with CDI
#: the device plugin sets `void`, and the container's device files say it all.
_NO_NAMES = frozenset({"", "all", "none", "void", "no-gpu-has-0MiB-to-run"})
_MANY = (
    "Nobody says which GPUs the engine uses, so none is shown unless there is only one: give their UUIDs in WARMUP_GPUS, "
    "or start the engine through the launcher."
)


def wish(facts: Mapping[str, Any], given: Sequence[str] = ()) -> Wish:
    """Name the engine's GPUs: by the setting, by CUDA_VISIBLE_DEVICES, by NVIDIA_VISIBLE_DEVICES, by its device files."""
    if given:
        return Wish(tuple(given))
    environment = facts.get("environment")
    variables: Mapping[str, Any] = environment if isinstance(environment, Mapping) else {}
    there = _uuids(facts)
    narrowed = (
        _by_cuda(str(variables["CUDA_VISIBLE_DEVICES"]), variables, facts, there)
        if ("CUDA_VISIBLE_DEVICES" in variables)
        else None
    )
    if narrowed is not None:
        return narrowed
    toolkit = _words(str(variables.get("NVIDIA_VISIBLE_DEVICES", "")))
    if toolkit and all(word.startswith(("GPU-", "MIG-")) for word in toolkit):
        return Wish(tuple(toolkit))
    return Wish(tuple(there)) if there else Wish(None, _MANY)


def _by_cuda(listed: str, variables: Mapping[str, Any], facts: Mapping[str, Any], there: Sequence[str]) -> Wish | None:
    """Resolve CUDA_VISIBLE_DEVICES; None when it narrows nothing.

    CUDA takes what comes before the first word that it can't use (CUDA programming guide, environment variables). An
    index counts by bus with CUDA_DEVICE_ORDER=PCI_BUS_ID, and among equal GPUs (vllm/platforms/cuda.py takes it so);
    among unlike ones the fastest come first, which can't be told from here.
    """
    words = _words(listed)
    if not words or words[0] in ("-1", "NoDevFiles"):
        return Wish(())
    if all(word.startswith(("GPU-", "MIG-")) for word in words):
        return Wish(tuple(words))
    indices = [int(word) for word in words if word.isdecimal()]
    if len(indices) != len(words) or not there:
        return None if not there else Wish(None, f"CUDA_VISIBLE_DEVICES={listed} can't be resolved. {_MANY}")
    if sorted(set(indices)) == list(range(len(there))):
        return Wish(tuple(there))
    alike = len({str(gpu.get("name")) for gpu in _listed(facts)}) == 1
    if not alike and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return Wish(None, f"CUDA_VISIBLE_DEVICES={listed} names no UUIDs, and the GPUs are not all alike. {_MANY}")
    usable = itertools.takewhile(lambda index: index < len(there), indices)
    return Wish(tuple(there[index] for index in dict.fromkeys(usable)))


def _listed(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = facts.get("gpus")
    return [gpu for gpu in found if isinstance(gpu, Mapping)] if isinstance(found, list) else []


def _uuids(facts: Mapping[str, Any]) -> list[str]:
    """Give the UUIDs of the GPUs that the engine's container has device files for, by bus; empty unless all have one."""
    uuids = [str(gpu.get("uuid") or "") for gpu in _listed(facts)]
    return uuids if all(uuid.startswith("GPU-") and "?" not in uuid for uuid in uuids) else []


def _words(text: str) -> list[str]:
    return [] if text.strip() in _NO_NAMES else [word.strip() for word in text.split(",") if word.strip()]
