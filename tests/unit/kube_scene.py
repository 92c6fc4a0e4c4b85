"""An API server in memory for tests on virtual time: it keeps one pod, and can be slow, absent or full of refusals.

How a real one behaves is held against the code in `tests/kubernetes/test_apiserver_contract.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from sidecar.errors import KubernetesError
from sidecar.kube.account import Account
from sidecar.kube.api import ApiServer, Call
from sidecar.kube.condition import CONDITION
from tests.fakes.apiserver import merge


class MemoryApiServer(ApiServer):
    """One pod. `errors` are raised by the next calls, one each; `seconds` is how long a call takes.

    `calls` lists what arrived as (time, name, body), the time in seconds of the loop.
    """

    def __init__(self, tmp_path: Any, gates: tuple[str, ...] = (CONDITION,)) -> None:
        super().__init__(Account(tmp_path, "127.0.0.1", "1", "vllm-0", "default"))
        self.pod: dict[str, Any] = {
            "metadata": {"name": "vllm-0", "uid": "uid-1"},
            "spec": {"readinessGates": [{"conditionType": gate} for gate in gates]},
            "status": {"conditions": []},
        }
        self.events: dict[str, dict[str, Any]] = {}
        self.errors: list[KubernetesError | None] = []
        self.seconds = 0.0
        self.calls: list[tuple[float, str, Any]] = []

    async def ask(self, call: Call) -> dict[str, Any]:
        """Answer one call."""
        self.calls.append((asyncio.get_running_loop().time(), call.name, call.body))
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        body: Any = call.body
        if call.name == "patch condition":
            self.pod = merge(self.pod, {"status": body["status"]}, strategic=True)
        if call.name == "create event":
            self.events[body["metadata"]["name"]] = body
        if call.name == "patch event":
            self.events[call.path.rpartition("/")[2]].update(body)
        return self.pod

    async def close(self) -> None:
        """Have nothing to close."""

    @property
    def condition(self) -> dict[str, Any]:
        """Give our condition as it stands; empty when there is none."""
        found: Iterator[dict[str, Any]] = iter(self.pod["status"]["conditions"])
        return next((each for each in found if each["type"] == CONDITION), {})

    def set(self, kind: str, status: str) -> None:
        """Set one of the kubelet's conditions, or ours behind its back."""
        body = {"status": {"conditions": [{"type": kind, "status": status}]}}
        self.pod = merge(self.pod, body, strategic=True)

    def times(self, name: str) -> list[float]:
        """List when calls of this name came."""
        return [at for at, called, _ in self.calls if called == name]
