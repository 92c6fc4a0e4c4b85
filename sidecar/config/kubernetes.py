"""Settings about the API server and the group of pods: what is told to it, what is asked of it, whom a worker follows.

With none of them set the daemon answers probes and never talks to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from sidecar.config.group import Group

#: Kubernetes documentation, "Object Names and IDs": DNS subdomain names, which hold DNS labels, too.
_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"


class KubernetesSettings(Group):
    """The daemon's relation to Kubernetes."""

    readiness_gate: bool = Field(
        False,
        description="Patch the pod condition `warmup-sidecar.io/engine-warm`, for pods whose spec has it among its "
        "readinessGates. Needs the right to patch `pods/status`.",
    )
    events: bool = Field(
        False, description="Write Kubernetes Events about important changes. Needs the right to create them."
    )
    pod_facts: bool = Field(
        False,
        description="Without the launcher: take the engine's image, arguments and environment from the Pod object. "
        "Needs the right to get pods.",
    )
    node_facts: bool = Field(
        False,
        description="Without the launcher: take SM version, GPU name and driver from the Node's labels instead of "
        "NVML. Needs the right to get nodes.",
    )
    pod_name: str = Field(
        "",
        pattern=_NAME,
        max_length=253,
        description="This pod's name, as Kubernetes has it (small letters, digits, `-` and `.`); empty: from its token, else its "
        "host name.",
    )
    pod_namespace: str = Field(
        "",
        pattern=_NAME,
        max_length=63,
        description="This pod's namespace, as Kubernetes has it (small letters, digits and `-`); empty: as the service account "
        "says.",
    )
    service_account: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Directory with `token`, `ca.crt` and `namespace`; `token` is re-read, because it is rotated.",
    )
    group_leader: str = Field(
        "",
        pattern=r"^(([A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?)?$",
        description="For a worker of a multi-pod engine: host of the leader's pod, with the port of its sidecar unless "
        "it is that of `listen`; empty: what LeaderWorkerSet says in LWS_LEADER_ADDRESS.",
    )
    group_startup: Literal["leadercreated", "leaderready"] = Field(
        "leadercreated",
        description="The LeaderWorkerSet's `startupPolicy`. With `leaderready` workers are created when the leader is "
        "ready, and it waits for them to be warm: `check` refuses that, and `run` says so.",
    )
