"""Reads a Pod object: which container is ours, which the engine's, and single fields of both.

Nothing is concluded here; shapes that are not as expected count as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.config.names import LAUNCHER_PREFIX, PREFIX
from sidecar.config.routers import router_of

#: Paths by which our container is known among the others, whatever it is called; see `web/app.py`.
PROBES = ("/startupz", "/readyz", "/livez")
#: The file that the engine's command is prefixed with.
LAUNCHER = "launcher.py"
GPU = "nvidia.com/gpu"
PROBE_FIELDS = ("startupProbe", "readinessProbe", "livenessProbe")
_HOST = re.compile(r"--host(?:=|\s+)[\"']?([^\s\"';|&]+)")
_PORT = re.compile(r"--port(?:=|\s+)[\"']?(\d{1,5})\b")
_LOOPBACK = re.compile(r"^(127(\.\d+){3}|localhost|\[?::1\]?)$")

Container = Mapping[str, Any]


@dataclass(frozen=True)
class Containers:
    """The two containers that matter; None where none can be told from the others.

    Of ours: `native`, or `ordinary_init` when it is an init container that must end before the engine starts, and runs.
    """

    sidecar: Container | None
    engine: Container | None
    native: bool = False
    ordinary_init: bool = False


def find(pod: Mapping[str, Any]) -> Containers:
    """Find our container by its probes, else by its settings; the engine's by launcher, GPU, or as the only other one."""
    spec = mapping(pod.get("spec"))
    first, then = list(_listed(spec, "initContainers")), list(_listed(spec, "containers"))
    sidecar = next((each for each in (*first, *then) if _has_our_probes(each)), None)
    # One that only lays the launcher down has our settings, too, and is over when the daemon beside the engine runs.
    sidecar = sidecar or next((each for each in (*then, *first) if _has_our_settings(each)), None)
    others = [each for each in then if each is not sidecar and not router(each)]
    engine = next((each for each in others if any(LAUNCHER in word for word in words(each))), None)
    engine = engine or next((each for each in others if gpus(each)), None)
    engine = engine or (others[0] if len(others) == 1 else None)
    in_init = any(each is sidecar for each in first)
    native = sidecar is not None and in_init and sidecar.get("restartPolicy") == "Always"
    runs = "running" in mapping(status_of(pod, sidecar).get("state"))
    return Containers(sidecar, engine, native, in_init and not native and runs)


def words(container: Container) -> tuple[str, ...]:
    """Give command and arguments of a container as they stand in its spec."""
    found: list[str] = []
    for key in ("command", "args"):
        given = container.get(key)
        found += map(str, given) if isinstance(given, list) else ()
    return tuple(found)


def router(container: Container) -> str:
    """Name the router or proxy that a container is; empty for anything else, and for one with our launcher or with GPUs."""
    if any(LAUNCHER in word for word in words(container)) or gpus(container):
        return ""
    return router_of(" ".join(words(container)), str(container.get("image") or ""))


def port(container: Container) -> int | None:
    """Give the port a container listens on: the last that `--port` names, else the first that is declared."""
    told = _PORT.findall(" ".join(words(container)))
    declared = [each.get("containerPort") for each in _listed(container, "ports")]
    return int(told[-1]) if told else next((each for each in declared if isinstance(each, int)), None)


def everyone(pod: Mapping[str, Any]) -> Iterator[Container]:
    """Give all containers of a pod, those of init first."""
    spec = mapping(pod.get("spec"))
    yield from _listed(spec, "initContainers")
    yield from _listed(spec, "containers")


def loopback(container: Container) -> str:
    """Give the address that `--host` names where it answers inside the pod only; empty for any other."""
    found = _HOST.findall(" ".join(words(container)))
    return found[-1] if found and _LOOPBACK.match(found[-1]) else ""


def asked_from_outside(container: Container) -> tuple[str, ...]:
    """Name the probes that the kubelet asks over the network at the pod's address, where nothing else is named.

    Kubernetes documentation, "Configure Liveness, Readiness and Startup Probes": `host` defaults to the pod's IP.
    """
    return tuple(
        probe
        for probe in PROBE_FIELDS
        for kind in ("httpGet", "tcpSocket", "grpc")
        if (handler := mapping(mapping(container.get(probe)).get(kind))) and not handler.get("host")
    )


def unanswered(container: Container) -> str:
    """Say which probes of an engine can never pass because it answers inside the pod only; empty: none."""
    host, probes = loopback(container), asked_from_outside(container)
    if not host or not probes:
        return ""
    return (
        f"The engine answers at {host} alone (--host), and the kubelet asks its {' and '.join(probes)} at the pod's address: "
        "that never passes. Take --host out, or set it to 0.0.0.0."
    )


def gpus(container: Container) -> int:
    """Give the number of GPUs that a container is limited to; 0 for none or for a number that can't be read."""
    limits = mapping(mapping(container.get("resources")).get("limits"))
    try:
        return int(str(limits.get(GPU, 0)))
    except ValueError:
        return 0


def status_of(pod: Mapping[str, Any], container: Container | None) -> Mapping[str, Any]:
    """Give the status of a container; empty while the kubelet has not reported one."""
    status = mapping(pod.get("status"))
    for key in ("containerStatuses", "initContainerStatuses"):
        for each in _listed(status, key):
            if container is not None and each.get("name") == container.get("name"):
                return each
    return {}


def probe_budget_s(container: Container, probe: str) -> float | None:
    """Give how long a probe may fail before the container is killed; None without that probe.

    Kubernetes documentation, "Configure Liveness, Readiness and Startup Probes": defaults 0, 10 s and 3.
    """
    found = mapping(container.get(probe))
    if not found:
        return None
    try:
        return float(found.get("initialDelaySeconds") or 0) + float(found.get("periodSeconds") or 10) * float(
            found.get("failureThreshold") or 3
        )
    except (TypeError, ValueError):
        return None


def mapping(value: object) -> Mapping[str, Any]:
    """Give a mapping, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def _listed(around: Mapping[str, Any], key: str) -> Iterator[Container]:
    found = around.get(key)
    yield from (each for each in found if isinstance(each, Mapping)) if isinstance(found, list) else ()


def _has_our_settings(container: Container) -> bool:
    names = [str(mapping(each).get("name")) for each in _listed(container, "env")]
    launched = any(LAUNCHER in word for word in words(container))
    return not launched and any(name.startswith(PREFIX) and not name.startswith(LAUNCHER_PREFIX) for name in names)


def _has_our_probes(container: Container) -> bool:
    return any(mapping(mapping(container.get(probe)).get("httpGet")).get("path") in PROBES for probe in PROBE_FIELDS)
