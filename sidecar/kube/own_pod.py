"""The daemon's own Pod object as it was last read, shared by everybody who needs it, so that it is read once.

What follows from it is in `pod_checks.py`, `facts.py` and `gate_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from sidecar.errors import KubernetesConflict
from sidecar.kube.api import ApiServer, Call


class OwnPod:
    """One pod by name. `uid` and `latest` are empty until it was read; `seen` hears of every reading.

    A pod of a StatefulSet has a successor of the same name, and a node that was cut off may run it still when that one is
    there: the successor is never taken for it.
    """

    def __init__(self, api: ApiServer, seen: Callable[[Mapping[str, Any]], None] = lambda _pod: None) -> None:
        self.api = api
        self.seen = seen
        self.uid = ""
        self.latest: Mapping[str, Any] = {}

    @property
    def path(self) -> str:
        """Give the path of the Pod. Raises NotInKubernetes."""
        account = self.api.account
        return f"/api/v1/namespaces/{quote(account.namespace, safe='')}/pods/{quote(account.name, safe='')}"

    async def read(self) -> Mapping[str, Any]:
        """Read the Pod. Raises KubernetesError; KubernetesConflict when another one has its name by now."""
        pod = await self.api.ask(Call("get pod", "GET", self.path))
        metadata = pod.get("metadata")
        found = str(metadata.get("uid") or "") if isinstance(metadata, dict) else ""
        if found and self.bound and found != self.bound:
            raise KubernetesConflict(
                f"Pod {self.api.account.name} is another one by now (uid {found}, this one's was {self.bound}): nothing is "
                "written to it, and the kubelet ends this one as soon as it reaches the API server again."
            )
        self.uid = found
        self.latest = pod
        self.seen(pod)
        return pod

    @property
    def bound(self) -> str:
        """Give the uid that the pod's token is bound to, which needs no right to read the pod; empty where it says none."""
        return self.api.account.uid

    def forget(self) -> None:
        """Take nothing of the last reading for granted."""
        self.uid = ""

    async def node(self) -> Mapping[str, Any]:
        """Read the node that the pod runs on. Raises KubernetesError."""
        pod = self.latest or await self.read()
        spec = pod.get("spec")
        name = str(spec.get("nodeName") or "") if isinstance(spec, Mapping) else ""
        return await self.api.ask(Call("get node", "GET", f"/api/v1/nodes/{quote(name, safe='')}"))
