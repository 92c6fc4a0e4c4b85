"""The facts of an engine that nobody starts through the launcher: settings, NVML, Pod and Node; nothing is guessed.

How facts become keys is the business of `caches/fingerprint.py`.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.caches import normalise, privacy
from sidecar.config import Settings
from sidecar.engines.outside import Place
from sidecar.gpu.reading import GpuSnapshot
from sidecar.kube.facts import NodeFacts, PodFacts

#: Variables that can change compiled code or where it is looked for: those of launcher/facts.py, which can't be imported;
#: a test holds the two together.
RELEVANT = re.compile(
    r"(VLLM_|TORCH|PYTORCH|TRITON|FLASHINFER|DG_|DEEP_GEMM|CUDA|NVIDIA_|NVCC|NCCL|SGLANG|SGL_|TRTLLM|TLLM|TVM_"
    r"|TILELANG|CUTE_|CUTLASS|FLASH_ATT|QUACK_|HUMMING_|B12X_|NUMBA|KMP_|MKL_|HF_HOME$|HF_MODULES_CACHE$"
    r"|XDG_(CACHE|CONFIG)_HOME$|TMPDIR$|PYTHONPATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|OMP_NUM_THREADS$|MAX_JOBS$"
    r"|(CC|CXX|CFLAGS|CXXFLAGS|CPATH|CUDAHOSTCXX)$)"
)


def image_fact(settings: Settings) -> Mapping[str, Any]:
    """Give the image's digest as a fact; empty when the setting names none."""
    digest = settings.image.partition("@")[2]
    return {"image": {"digest": digest}} if digest else {}


@dataclass(frozen=True)
class Told:
    """What Kubernetes told, as far as the settings ask it; None where it was not asked, or could not be had.

    `group` is the pod's place in a multi-pod engine, as LeaderWorkerSet names it.
    """

    pod: PodFacts | None = None
    node: NodeFacts | None = None
    group: Mapping[str, str] = field(default_factory=dict)


def places(told: Told) -> tuple[Place, ...]:
    """Give what Pod and Node tell of the engine's arguments and GPU, for limits and the SM version; no key depends on it."""
    found = []
    if told.pod is not None:
        found.append(Place("the Pod's spec", argv=told.pod.argv, environment=told.pod.environment))
    if told.node is not None:
        products = (told.node.product,) if told.node.product else ()
        found.append(Place("the Node's labels", sm=told.node.sm, products=products))
    return tuple(found)


@dataclass(frozen=True)
class OwnFacts:
    """The facts, why too little is known to reuse any cache, and why the engine's arguments are not known.

    Both sentences are empty when nothing is lacking; `pod_facts` off is a reason, too.
    """

    facts: Mapping[str, Any]
    lacking: str = ""
    inexact: str = "WARMUP_POD_FACTS is off, so nobody knows the engine's arguments."


def own_facts(settings: Settings, gpus: GpuSnapshot | None, told: Told) -> OwnFacts:
    """Give the facts of an engine without a launcher.

    Each fact has one source, which the settings choose: the image its setting, else the Pod; the GPU its setting, else
    the Node's labels, else NVML. A source that is away makes no other key: without it nothing is reused.
    """
    facts: dict[str, Any] = {"format": 1, "cpu": {"arch": platform.machine()}}
    digest, lacking = _image(settings, told)
    if lacking:
        return OwnFacts(facts, lacking)
    facts["image"] = {"digest": digest}
    if lacking := _add_gpus(facts, settings, gpus, told):
        return OwnFacts(facts, lacking)
    if not settings.pod_facts:
        return OwnFacts(facts)
    if inexact := _add_arguments(facts, told):
        return OwnFacts(facts, inexact=inexact)
    return OwnFacts(facts, inexact="")


def _image(settings: Settings, told: Told) -> tuple[str, str]:
    if settings.image:
        return settings.image.partition("@")[2], ""
    if not settings.pod_facts:
        return "", (
            "Without the launcher only the image tells whether a cache fits: set WARMUP_IMAGE to the engine's image "
            "with its digest (name@sha256:…), or WARMUP_POD_FACTS=true. Until then nothing is restored or published."
        )
    if told.pod is None:
        return "", (
            "WARMUP_POD_FACTS is on and the engine's container can't be read from the Pod: nothing is restored or "
            "published by this pod. The log says why; WARMUP_IMAGE names the image without asking anybody."
        )
    if not told.pod.digest:
        return "", (
            f"The engine's image {told.pod.image or 'without a name'} is not pinned by digest, so it may be another "
            "tomorrow: nothing is restored or published. Write it as name@sha256:… in the pod."
        )
    return told.pod.digest, ""


def _add_gpus(facts: dict[str, Any], settings: Settings, gpus: GpuSnapshot | None, told: Told) -> str:
    """Add GPUs and driver from the one source that the settings choose; say what is lacking."""
    if settings.sm:
        facts["gpus"] = [{"sm": settings.sm}] if settings.sm != "cpu" else []
        return ""
    if settings.node_facts:
        node = told.node
        if node is None or not node.sm:
            return (
                "WARMUP_NODE_FACTS is on and the node's labels don't tell the GPU (nvidia.com/gpu.compute.major, from "
                "NVIDIA's GPU feature discovery): nothing is restored or published. Set WARMUP_SM instead."
            )
        count = max(told.pod.gpus if told.pod else 1, 1)
        facts["gpus"] = [{"sm": node.sm, "name": node.product, "index": index} for index in range(count)]
        facts["driver"] = {"version": node.driver}
        return ""
    if gpus is None:
        return (
            "Without the launcher, and with NVML away, the GPU is unknown: set WARMUP_SM (such as sm90, or cpu), or "
            "give the sidecar NVML, or WARMUP_NODE_FACTS=true. Until then nothing is restored or published."
        )
    # Those that are visible here, whichever the engine takes of them: unlike ones make a key of their own.
    facts["gpus"] = [{"sm": seen.sm, "name": seen.name, "index": seen.index} for seen in gpus.seen]
    facts["driver"] = {"version": gpus.driver}
    return ""


def _add_arguments(facts: dict[str, Any], told: Told) -> str:
    """Add what decides about exact caches: arguments, environment, CPU, place in a group; say why it is not all known."""
    pod = told.pod
    if pod is None:
        return "The engine's container can't be read from the Pod."
    facts["environment"] = {
        name: privacy.hidden(name, value) for name, value in sorted(pod.environment.items()) if RELEVANT.match(name)
    }
    if pod.open_ended:
        return f"The engine's container is not described by its spec alone: {pod.open_ended}."
    # Whatever its value is: a variable that no kernel depends on may stay unknown.
    asked = [name for name in pod.unknown if RELEVANT.match(name)]
    if unknown := list(normalise.environment(dict.fromkeys(asked, "?"))):
        return f"The spec has no value of {', '.join(unknown[:5])} (valueFrom), which the engine may compile by."
    if any(not gpu.get("name") for gpu in facts["gpus"]):
        return "The name of the GPU is not known, because WARMUP_SM tells the version alone."
    facts["argv"] = list(pod.argv)
    facts["cpu"] = cpu_facts()
    if told.group:
        facts["world"] = dict(told.group)
    return ""


def cpu_facts() -> dict[str, str]:
    """Describe the node's processor as the launcher does: host code is compiled for exactly this one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        text = ""
    rows = {key.strip(): value.strip() for key, value in re.findall(r"^([^:\n]+):(.*)$", text, re.MULTILINE)}
    flags = " ".join(sorted((rows.get("flags") or rows.get("Features") or "").split()))
    model = rows.get("model name") or f"{rows.get('CPU implementer', '')} {rows.get('CPU part', '')}".strip()
    digested = hashlib.sha256(flags.encode()).hexdigest()[:16]
    return {"arch": platform.machine(), "model": model, "flags": digested}
