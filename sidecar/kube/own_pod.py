"""The daemon's own Pod object as it was last read, shared by everybody who needs it, so that it is read once.

What follows from it is in `pod_checks.py`, `facts.py` and `gate_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from sidecar.kube.api import ApiServer, Call


class OwnPod:
    """One pod by name. `uid` and `latest` are empty until it was read; `seen` hears of every reading."""

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
        """Read the Pod. Raises KubernetesError."""
        pod = await self.api.ask(Call("get pod", "GET", self.path))
        metadata = pod.get("metadata")
        self.uid = str(metadata.get("uid") or "") if isinstance(metadata, dict) else ""
        self.latest = pod
        self.seen(pod)
        return pod

    def forget(self) -> None:
        """Take nothing of the last reading for granted."""
        self.uid = ""

    async def node(self) -> Mapping[str, Any]:
        """Read the node that the pod runs on. Raises KubernetesError."""
        pod = self.latest or await self.read()
        spec = pod.get("spec")
        name = str(spec.get("nodeName") or "") if isinstance(spec, Mapping) else ""
        return await self.api.ask(Call("get node", "GET", f"/api/v1/nodes/{quote(name, safe='')}"))
