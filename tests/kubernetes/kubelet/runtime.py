"""What the emulated kubelet asks of a container runtime: start a container, signal it, run things beside it.

How containers run is in `node.py`; unit tests script them.
"""

from __future__ import annotations

from typing import Protocol

from tests.kubernetes.kubelet.spec import Container, Handler


class Running(Protocol):
    """One instance of a container, from its start to its end."""

    async def wait(self) -> int:
        """Wait for the end of its first process; give the exit code, 128 + n after signal n."""

    def signal(self, number: int) -> None:
        """Send its first process a signal; one that has ended gets none."""

    async def ask(self, handler: Handler, timeout_s: float) -> bool:
        """Run a probe's or hook's handler; a slow answer is a failed one."""


class Runtime(Protocol):
    """Makes containers of one pod."""

    async def start(self, container: Container) -> Running:
        """Start an instance of a container: new files, the pod's volumes, the pod's network."""
