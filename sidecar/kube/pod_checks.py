"""What is wrong with the pod's own spec, in sentences: gates nobody opens, container kinds that stop the engine, budgets.

Nothing is changed here, and nothing is asked: the Pod object comes in.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.config import Settings
from sidecar.kube.condition import CONDITION, gates_of, read
from sidecar.kube.pod_object import (
    Containers,
    everyone,
    find,
    loopback,
    mapping,
    port,
    probe_budget_s,
    router,
    status_of,
    unanswered,
)

Level = Literal["note", "problem"]

#: From process start to /health on empty caches: 552 s to the end of graph capture alone (vLLM 0.25.1, one H200).
COLD_START_S = 600.0
#: What a launcher waits beyond the cap of a restore.
LAUNCHER_GRACE_S = 15.0
#: Kubernetes documentation, "Sidecar containers": on by default from 1.29.
NATIVE_SINCE = (1, 29)


@dataclass(frozen=True)
class Concern:
    """One thing that is wrong with the pod. `fatal`: the engine can't start while this container runs."""

    level: Level
    sentence: str
    fatal: bool = False


def concerns(pod: Mapping[str, Any], settings: Settings, version: str = "") -> list[Concern]:
    """List what is wrong. `version` is the API server's or the kubelet's, such as `v1.28.3`; empty: unknown."""
    found = find(pod)
    return [each for check in _CHECKS for each in check(pod, found, settings, version)]


def _gate(pod: Mapping[str, Any], _found: Containers, settings: Settings, _version: str) -> Iterator[Concern]:
    listed = CONDITION in gates_of(pod)
    if listed and not settings.readiness_gate:
        yield Concern(
            "problem",
            f"The pod has the readinessGate {CONDITION} and WARMUP_READINESS_GATE is off: nobody opens it and the pod "
            "stays unready for ever. Set WARMUP_READINESS_GATE=true, or take it out of spec.readinessGates.",
        )
    if settings.readiness_gate and not listed:
        yield Concern(
            "note",
            f"WARMUP_READINESS_GATE is on and the pod's spec.readinessGates lacks {CONDITION}: the condition is "
            "written and nothing waits for it. Add it to the pod template.",
        )


def _kind(_pod: Mapping[str, Any], found: Containers, _settings: Settings, version: str) -> Iterator[Concern]:
    if found.ordinary_init:
        old = f" (this Kubernetes is {version})" if version else ""
        yield Concern(
            "problem",
            "The sidecar runs as an ordinary init container, without restartPolicy: Always, so no engine starts while "
            f"it runs. Clusters before 1.29 drop that field{old}: use the manifests for plain sidecars there.",
            fatal=True,
        )
    elif found.native and (number := _number(version)) and number < NATIVE_SINCE:
        yield Concern(
            "note",
            f"This Kubernetes is {version}; native sidecars are on by default from 1.29. An older kubelet may treat "
            "the sidecar as an ordinary init container.",
        )


def _restart_policy(pod: Mapping[str, Any], found: Containers, _settings: Settings, _v: str) -> Iterator[Concern]:
    policy = mapping(pod.get("spec")).get("restartPolicy") or "Always"
    if not found.native or policy == "Always":
        return
    yield Concern(
        "note",
        f"The pod's restartPolicy is {policy}: a startup probe of the sidecar that fails once can keep the engine's "
        "container from ever starting, and some kubelets ignore the sidecar's readiness. Use Always, or the "
        f"readiness gate {CONDITION}.",
    )


def _ignored(pod: Mapping[str, Any], found: Containers, settings: Settings, _version: str) -> Iterator[Concern]:
    ours = status_of(pod, found.sidecar)
    ready = read(pod, "ContainersReady").get("status") == "True"
    if found.native and ready and ours.get("ready") is False and not settings.readiness_gate:
        yield Concern(
            "problem",
            "The kubelet calls the pod's containers ready although the sidecar is not: this kubelet ignores the "
            "readiness of sidecars, and traffic comes too early. Use the readiness gate, or a newer kubelet.",
        )


def _budgets(pod: Mapping[str, Any], found: Containers, settings: Settings, _version: str) -> Iterator[Concern]:
    engine = found.engine
    if engine is None:
        return
    waits = settings.restore_timeout_s + settings.single_flight_s + LAUNCHER_GRACE_S if settings.launcher else 0.0
    needed = waits + COLD_START_S
    budget = probe_budget_s(engine, "startupProbe")
    killer = "startup"
    if budget is None:
        budget, killer = probe_budget_s(engine, "livenessProbe"), "liveness"
    if budget is not None and budget < needed:
        yield Concern(
            "note",
            f"The engine's {killer} probe kills it after {budget:.0f} s; a cold start may take {needed:.0f} s, of which "
            f"{waits:.0f} s wait for the restore. Raise failureThreshold of its startupProbe, or a cold start never ends.",
        )
    grace = mapping(pod.get("spec")).get("terminationGracePeriodSeconds")
    if settings.launcher and isinstance(grace, int) and grace < settings.drain_s + 2:
        yield Concern(
            "note",
            f"terminationGracePeriodSeconds is {grace} and WARMUP_DRAIN_S {settings.drain_s:g}: requests in flight are "
            f"cut off. Make it at least {settings.drain_s + 5:.0f}.",
        )


def _address(pod: Mapping[str, Any], found: Containers, _settings: Settings, _version: str) -> Iterator[Concern]:
    if found.engine is None:
        return
    if sentence := unanswered(found.engine):
        yield Concern("problem", sentence)
        return
    beside = mapping(pod.get("spec")).get("containers")
    alone = isinstance(beside, list) and all(each is found.sidecar or each is found.engine for each in beside)
    if alone and (host := loopback(found.engine)):
        yield Concern(
            "note",
            f"The engine answers at {host} alone (--host) and no other container of the pod could hand requests on: no "
            "Service reaches it. Take --host out, or set it to 0.0.0.0.",
        )


def _routed(pod: Mapping[str, Any], found: Containers, settings: Settings, _version: str) -> Iterator[Concern]:
    url = urllib.parse.urlsplit(settings.engine_url)
    asked = url.port or (443 if url.scheme == "https" else 80)
    if url.hostname not in ("127.0.0.1", "::1", "localhost"):
        return
    for each in everyone(pod):
        if each is found.engine or not (title := router(each)) or port(each) != asked:
            continue
        own = port(found.engine) if found.engine is not None else None
        right = f"{url.scheme}://{url.netloc.removesuffix(f':{url.port}')}:{own}" if own and own != asked else ""
        yield Concern(
            "problem",
            f"WARMUP_ENGINE_URL is {settings.engine_url}, and port {asked} is that of container {each.get('name')}, which is "
            f"{title}: what is sent there may be worked on by an engine of another pod. Set WARMUP_ENGINE_URL"
            f"{f'={right}' if right else ' to the own port of the engine in this pod'}.",
        )


Check = Callable[[Mapping[str, Any], Containers, Settings, str], Iterator[Concern]]
_CHECKS: tuple[Check, ...] = (_gate, _kind, _restart_policy, _ignored, _budgets, _address, _routed)


def _number(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    # A build of one's own may be called v0.0.0, which says nothing.
    return (int(found[1]), int(found[2])) if found and int(found[1]) else None
