"""The rights that each feature needs at the API server, declared once: Roles in manifests and `check` are held against it.

Whether a right is there is asked in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.config import Settings

RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, `pods/status` for a subresource; `cluster` when no namespace holds the object."""

    group: str
    resource: str
    verb: str
    cluster: bool = False

    @property
    def words(self) -> str:
        """Name the right as people know it from `kubectl auth can-i`."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


@dataclass(frozen=True)
class Feature:
    """One feature that asks the API server for something: the setting that switches it on, and its rights."""

    name: str
    setting: str
    rights: tuple[Right, ...]
    does: str


GET_POD = Right("", "pods", "get")
PATCH_STATUS = Right("", "pods/status", "patch")
CREATE_EVENT = Right("events.k8s.io", "events", "create")
PATCH_EVENT = Right("events.k8s.io", "events", "patch")
GET_NODE = Right("", "nodes", "get", cluster=True)

FEATURES: tuple[Feature, ...] = (
    Feature(
        "readiness gate",
        "readiness_gate",
        (GET_POD, PATCH_STATUS),
        "patches the pod condition `warmup-sidecar.io/engine-warm` and reads it again",
    ),
    Feature("events", "events", (GET_POD, CREATE_EVENT, PATCH_EVENT), "writes Events that belong to the pod"),
    Feature("pod facts", "pod_facts", (GET_POD,), "reads image, arguments and environment of the engine's container"),
    Feature("node facts", "node_facts", (GET_POD, GET_NODE), "reads the GPU labels of the pod's node"),
)


def wanted(settings: Settings) -> tuple[Feature, ...]:
    """List the features that are switched on."""
    return tuple(feature for feature in FEATURES if getattr(settings, feature.setting))


def rules(features: Iterable[Feature], *, cluster: bool = False) -> list[dict[str, Any]]:
    """Give the rules of the Role (or, with `cluster`, of the ClusterRole) that these features need, verbs merged."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for feature in features:
        for right in feature.rights:
            if right.cluster is cluster:
                verbs.setdefault((right.group, right.resource), set()).add(right.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(found)}
        for (group, resource), found in sorted(verbs.items())
    ]


def role(features: Iterable[Feature], name: str, namespace: str = "") -> dict[str, Any]:
    """Give the Role of these features or, without a namespace, their ClusterRole."""
    metadata: Mapping[str, str] = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": dict(metadata),
        "rules": rules(features, cluster=not namespace),
    }


def documented() -> list[tuple[str, str, str, str]]:
    """List the features for the README: name, setting, what it does, its rights."""
    return [
        (
            feature.name,
            feature.setting,
            feature.does,
            ", ".join(f"`{right.words}`" + (" (ClusterRole)" if right.cluster else "") for right in feature.rights),
        )
        for feature in FEATURES
    ]
