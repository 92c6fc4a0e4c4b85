"""What the launcher's facts foretell before the engine starts: places it can't write, compilers it lacks.

Nothing is looked at here but facts; whether an engine without a cache is held back is nobody's decision here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.caches import switched_off

#: Below this share of its size left, shared memory is full of what crashed engines left there.
SHARED_MEMORY_LEFT = 0.1
#: The first CUDA whose nvcc compiles for an SM version: release notes of the CUDA toolkit, "new features".
FIRST_CUDA: Mapping[str, tuple[int, int]] = {
    "sm80": (11, 0),
    "sm86": (11, 1),
    "sm87": (11, 4),
    "sm89": (11, 8),
    "sm90": (11, 8),
    "sm100": (12, 8),
    "sm103": (12, 9),
    "sm110": (13, 0),
    "sm120": (12, 8),
    "sm121": (12, 9),
}
# What is said of a place that can't be written, by what it is; cache variables share one sentence.
_ADVICE: Mapping[str, str] = {
    "HOME": "what keeps its state there fails; give the engine's user a HOME it can write.",
    "cache": "what has no variable of its own caches nothing; mount a volume there, or set XDG_CACHE_HOME.",
    "VLLM_CONFIG_ROOT": "vLLM can't keep its usage statistics; set VLLM_NO_USAGE_STATS=1, or VLLM_CONFIG_ROOT to a place "
    "that can be written.",
    "TMPDIR": "compilers work there and fail; mount an emptyDir at /tmp, or set TMPDIR.",
    "flashinfer_cubin": "FlashInfer makes links there at the first use of some FP8 kernels and fails with permission "
    "denied; set FLASHINFER_CUBIN_DIR to a copy that the engine's user can write.",
    "shared memory": "several ranks can't talk to each other; mount a memory-backed emptyDir at /dev/shm.",
}
_CACHE_ADVICE = (
    "that variable is left out, and the engine keeps its own directory; mount the live cache's volume writable."
)


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """Say in sentences what will go wrong, each with what to do; facts of unexpected shape say nothing."""
    return [*_places(facts), *_compilers(facts), *_toolkit(facts), *_unused(facts)]


def _unused(facts: Mapping[str, Any]) -> Iterator[str]:
    for families, why in switched_off.reasons(facts):
        yield f"{why}: what {' and '.join(families)} would hold is compiled anew at each start. Leave that out."


def needs_cache(facts: Mapping[str, Any]) -> str:
    """Say why this engine can't start, or can't serve every request, unless its kernels are restored; else nothing."""
    toolchain = facts.get("toolchain")
    if not isinstance(toolchain, Mapping) or not facts.get("gpus"):
        return ""
    missing = [what for name, what in (("cxx", "C++ compiler"), ("nvcc", "nvcc")) if not toolchain.get(name)]
    if not missing:
        return ""
    return (
        f"The engine's image has no {' and no '.join(missing)}: a kernel that is not restored can't be compiled here. "
        "Publish from an image that has them, or use one."
    )


def _places(facts: Mapping[str, Any]) -> Iterator[str]:
    found = facts.get("places")
    uid = facts.get("uid")
    for place in found if isinstance(found, list) else ():
        if not isinstance(place, Mapping):
            continue
        what, path = str(place.get("what")), place.get("path")
        if network := place.get("network"):
            yield (
                f"{path} ({what}) lies on {network}: engines that share a cache over a network break each other's files and "
                "may wait for locks for ever. Remove the variable, and the sidecar sets it to the live cache."
            )
        size, free = place.get("size"), place.get("free")
        if place.get("writable") is False:
            yield f"{path} ({what}) can't be written by uid {uid}: {_ADVICE.get(what, _CACHE_ADVICE)}"
        elif isinstance(size, int) and isinstance(free, int) and free < size * SHARED_MEMORY_LEFT:
            yield (
                f"{path} has {free // 1_000_000} of {size // 1_000_000} MB left: engines that crashed leave files there. "
                "Delete the pod, or give the volume more room."
            )


def _compilers(facts: Mapping[str, Any]) -> Iterator[str]:
    if said := needs_cache(facts):
        yield said


def _toolkit(facts: Mapping[str, Any]) -> Iterator[str]:
    """Compare nvcc with what each GPU's SM version needs."""
    toolchain, gpus = facts.get("toolchain"), facts.get("gpus")
    nvcc = str(toolchain.get("nvcc") or "") if isinstance(toolchain, Mapping) else ""
    version = re.match(r"(\d+)\.(\d+)", nvcc)
    kinds = {str(gpu.get("sm")) for gpu in gpus if isinstance(gpu, Mapping)} if isinstance(gpus, list) else set()
    for sm in sorted(kinds):
        first = FIRST_CUDA.get(sm)
        if version and first and (int(version[1]), int(version[2])) < first:
            yield (
                f"nvcc {nvcc} can't compile for {sm}, which needs CUDA {first[0]}.{first[1]} or newer: what is not "
                "restored fails at its first use. Use an image with a newer CUDA toolkit."
            )
