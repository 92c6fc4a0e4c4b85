"""Facts about an engine that the Pod and the Node tell: image, arguments, environment, GPUs, driver.

Whether they are asked is decided by the settings, what they mean for keys by `caches/fingerprint.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.kube.pod_object import Container, find, gpus, mapping, status_of, words

_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
#: $(NAME) in command, args and values of env; $$(NAME) stays. Kubernetes documentation, "Define Dependent Environment
#: Variables".
_REFERENCE = re.compile(r"\$\$\(|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")

#: Labels of NVIDIA's GPU feature discovery (k8s-device-plugin, docs/gpu-feature-discovery, "Generated Labels").
PRODUCT = "nvidia.com/gpu.product"
MAJOR, MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
DRIVER = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")


@dataclass(frozen=True)
class PodFacts:
    """What a Pod's spec says of its engine.

    `digest` is empty for an image that is not pinned. In `argv` what can't be told is left empty.
    `unknown` names variables whose value the spec does not hold;
    `open_ended` says why there may be more of them, or arguments that can't be told; empty: it is all there.
    `gpus` is the number that the container is limited to.
    """

    image: str = ""
    digest: str = ""
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    open_ended: str = ""
    gpus: int = 0


@dataclass(frozen=True)
class NodeFacts:
    """What a Node's labels say of its GPUs; empty where a label is missing."""

    sm: str = ""
    product: str = ""
    driver: str = ""


def pod_facts(pod: Mapping[str, Any]) -> PodFacts | None:
    """Read the facts of the engine's container; None when it can't be told from the others."""
    engine = find(pod).engine
    if engine is None:
        return None
    image = str(engine.get("image") or "")
    digest = _DIGEST.search(image)
    environment, unknown = _environment(engine)
    expanded = [(word, _expanded(word, environment)) for word in words(engine)]
    open_ended = ""
    if engine.get("envFrom"):
        open_ended = "its envFrom takes variables from elsewhere"
    elif any(known is None for _, known in expanded):
        open_ended = "its arguments refer to variables whose values are not in the spec"
    return PodFacts(
        image=image,
        digest=digest[1] if digest else "",
        argv=tuple(_blanked(word, environment) if known is None else known for word, known in expanded),
        environment=environment,
        unknown=tuple(unknown),
        open_ended=open_ended,
        gpus=gpus(engine),
    )


def node_facts(node: Mapping[str, Any]) -> NodeFacts:
    """Read the facts of a Node's labels."""
    labels = mapping(mapping(node.get("metadata")).get("labels"))
    major, minor = str(labels.get(MAJOR) or ""), str(labels.get(MINOR) or "0")
    driver = str(labels.get(DRIVER[0]) or "")
    if not driver:
        driver = ".".join(str(labels[name]) for name in _DRIVER_PARTS if labels.get(name))
    return NodeFacts(
        sm=f"sm{major}{minor}" if major.isdecimal() and minor.isdecimal() else "",
        product=str(labels.get(PRODUCT) or ""),
        driver=driver,
    )


def image_that_runs(pod: Mapping[str, Any]) -> str:
    """Give the digest of the image that the engine's container really runs; empty while it is not known.

    Only a digest of a repository counts: an ID of another kind can't be compared (CRI, ContainerStatus.image_ref).
    """
    engine = find(pod).engine
    found = _DIGEST.search(str(status_of(pod, engine).get("imageID") or ""))
    return found[1] if found else ""


def veto(pod: Mapping[str, Any], digest: str) -> str:
    """Say why nothing may be published under an image's digest; empty: nothing speaks against it."""
    runs = image_that_runs(pod)
    if not digest or not runs or runs == digest:
        return ""
    return (
        f"The engine's container runs the image {runs} and the cache's key says {digest}: nothing is published, "
        "because it would be another image's. Correct WARMUP_IMAGE, or pin the image in the pod."
    )


def _environment(container: Container) -> tuple[dict[str, str], list[str]]:
    """Give the variables with their values, and the names of those that the spec has no value of."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    listed = container.get("env")
    for entry in listed if isinstance(listed, list) else ():
        name = str(mapping(entry).get("name") or "")
        value = None if mapping(entry).get("valueFrom") else _expanded(str(mapping(entry).get("value") or ""), known)
        known.pop(name, None)
        if value is None:
            unknown.append(name)
        else:
            known[name] = value
    return known, [name for name in dict.fromkeys(unknown) if name not in known]


def _blanked(text: str, known: Mapping[str, str]) -> str:
    """Put known variables into a text and nothing in place of others, so that a flag is seen although its value is not."""
    return _REFERENCE.sub(lambda found: known.get(found[1], "") if found[1] else "$(", text)


def _expanded(text: str, known: Mapping[str, str]) -> str | None:
    """Put known variables into a text as the kubelet does; None when one is not known."""
    if any(name and name not in known for name in _REFERENCE.findall(text)):
        return None
    return _REFERENCE.sub(lambda found: known[found[1]] if found[1] else "$(", text)
