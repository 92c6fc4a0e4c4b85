"""The whole life of one pod under an emulated kubelet: start order, readiness, deletion and its order, the end.

What one container goes through is in `container.py`. Rules come from the Kubernetes documentation, named at each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self

from tests.kubernetes.kubelet.clock import Clock
from tests.kubernetes.kubelet.container import ContainerLife, Turn
from tests.kubernetes.kubelet.runtime import Runtime
from tests.kubernetes.kubelet.spec import PodSpec
from tests.kubernetes.kubelet.story import Story

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]

#: Far beyond what a step takes here, on a machine with other work.
PATIENCE_S = 60.0


class Life:
    """One pod's life. As a context: starts the pod, and kills what is left of it at the end.

    `gate` gives the status of a condition that somebody else sets, None where nobody has.
    """

    def __init__(
        self,
        spec: PodSpec,
        runtime: Runtime,
        clock: Clock | None = None,
        gate: Callable[[str], str | None] | None = None,
    ) -> None:
        self.spec = spec
        self.story = Story()
        self.clock = clock or Clock()
        self.phase: Phase = "Pending"
        self.deleted = False
        self.gates: dict[str, str] = {}
        self._gate = gate or self.gates.get
        self._runtime = runtime
        self._ending = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[int]] = {}
        self._main: asyncio.Task[None] | None = None
        self._killer: asyncio.Task[None] | None = None
        self.containers = {
            container.name: ContainerLife(
                container,
                kind,
                spec.restart_policy,
                spec.termination_grace_period_seconds,
                self.story,
                self.clock,
                self._ending,
            )
            for container, kind in spec.kinds()
        }

    def __getitem__(self, container: str) -> ContainerLife:
        return self.containers[container]

    async def __aenter__(self) -> Self:
        self._main = asyncio.create_task(self._run(), name="pod")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._main is not None
        self.deleted = True
        self._ending.set()
        while not self._main.done():
            for life in self.containers.values():
                life.kill()
            await self._first(self._main, self.story.changed())
        for life in self.containers.values():
            await life.settle()
        if self._killer is not None:
            self._killer.cancel()
            await asyncio.gather(self._killer, return_exceptions=True)
        await self._main

    # --- what others see --------------------------------------------------------------------------------------------

    def conditions(self) -> dict[str, bool]:
        """Give the pod's conditions.

        "Pod Lifecycle", section "Pod readiness": Ready when all containers are and all readiness gates are True; a gate
        that nobody has set counts as False. "Sidecar Containers": a sidecar's readiness probe counts for the pod.
        """
        kept = [life for life in self.containers.values() if life.kind != "init"]
        ready = all(life.ready for life in kept)
        gates = all(self._gate(gate.condition_type) == "True" for gate in self.spec.readiness_gates)
        initialized = all(
            life.exit_code == 0 if life.kind == "init" else life.started.is_set() or life.restarts > 0
            for life in self.containers.values()
            if life.kind != "app"
        )
        return {"Initialized": initialized, "ContainersReady": ready, "Ready": ready and gates}

    @property
    def ready(self) -> bool:
        """Say whether the pod is Ready."""
        return self.conditions()["Ready"]

    @property
    def takes_traffic(self) -> bool:
        """Say whether Services send to it.

        "Pod Lifecycle", section "Pod Termination Flow": endpoints that represent terminating pods are never ready.
        """
        return self.ready and not self.deleted

    def set_gate(self, condition: str, status: str) -> None:
        """Set a condition as a controller does through the API server."""
        self.gates[condition] = status
        self.story.wake()

    async def until(self, holds: Callable[[], bool], what: str, deadline_s: float = PATIENCE_S) -> None:
        """Wait until something holds that an event of this pod brings about."""
        await self.story.until(holds, what, deadline_s)

    async def until_ready(self, deadline_s: float = PATIENCE_S) -> None:
        """Wait until the pod is Ready."""
        await self.until(lambda: self.ready, "the pod is Ready", deadline_s)

    async def until_unready(self, deadline_s: float = PATIENCE_S) -> None:
        """Wait until the pod is not Ready."""
        await self.until(lambda: not self.ready, "the pod is not Ready", deadline_s)

    async def until_started(self, container: str, restarts: int = 0, deadline_s: float = PATIENCE_S) -> None:
        """Wait until an instance of a container runs that so many came before."""
        life = self[container]
        await self.until(lambda: life.state == "running" and life.restarts >= restarts, f"{container} runs", deadline_s)

    async def until_ended(self, deadline_s: float = PATIENCE_S) -> None:
        """Wait until no container runs or will run."""
        assert self._main is not None
        await self.until(lambda: bool(self.story.of("", "ended")), "the pod has ended", deadline_s)

    # --- the pod's life ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if await self._initialized():
                apps = [life for life in self.containers.values() if life.kind == "app"]
                for life in apps:
                    self._begin(life)
                self.phase = "Running"
                codes = await asyncio.gather(*(self._tasks[life.name] for life in apps))
                if not self.deleted:
                    self.phase = "Failed" if any(codes) else "Succeeded"
            elif not self.deleted:
                self.phase = "Failed"
            # "Sidecar Containers", section "Jobs with sidecar containers": they don't keep a pod from completing.
            await self._end_running(self.spec.termination_grace_period_seconds)
        finally:
            self.story.tell("", "ended", self.phase)

    async def _initialized(self) -> bool:
        """Start init containers and sidecars in order; False when the pod has failed or is being deleted.

        "Init Containers": each must complete successfully before the next is started. "Sidecar Containers": after a sidecar
        has `started`, the next one is started.
        """
        for life in self.containers.values():
            if life.kind == "app":
                continue
            if self._ending.is_set():
                return False
            task = self._begin(life)
            if life.kind == "init":
                if await task != 0:
                    return False
            else:
                await self._first(life.started.wait(), self._ending.wait())
        return not self._ending.is_set()

    def _begin(self, life: ContainerLife) -> asyncio.Task[int]:
        task = asyncio.create_task(life.live(self._runtime), name=life.name)
        self._tasks[life.name] = task
        return task

    @staticmethod
    async def _first(*waits: Awaitable[object]) -> None:
        """Wait for the first of these; tasks among them go on, coroutines are given up."""
        tasks = {asyncio.ensure_future(wait): isinstance(wait, asyncio.Task) for wait in waits}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task, goes_on in tasks.items():
                if not goes_on:
                    task.cancel()

    # --- its end ----------------------------------------------------------------------------------------------------

    async def delete(self, grace_s: float | None = None) -> None:
        """Delete the pod and wait until it has ended; 0 s of grace is a forced deletion."""
        self.begin_delete(grace_s)
        assert self._main is not None
        await self._main

    def begin_delete(self, grace_s: float | None = None) -> None:
        """Delete the pod.

        "Pod Lifecycle", section "Pod Termination Flow": traffic stops, nothing is restarted any more, all containers are
        told to end, in the order of `_end_running`.
        """
        if self.deleted:
            return
        self.deleted = True
        self.story.tell("", "deleted")
        grace = self.spec.termination_grace_period_seconds if grace_s is None else grace_s
        self._killer = asyncio.create_task(self._end_running(grace), name="end of the pod")

    async def _end_running(self, grace_s: float) -> None:
        """End what runs: app containers at once and side by side, then the sidecars, the last one first.

        "Pod Lifecycle", section "Pod shutdown and sidecar containers". Hooks of all containers run at once, and a sidecar's
        SIGTERM waits for its turn (kubelet 1.29, kuberuntime, killContainer).
        """
        self._ending.set()
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_s
        while live := [task for task in self._tasks.values() if not task.done()]:
            for life in self.containers.values():
                if life.state == "running":
                    life.stop_probes_that_kill()
                    turn = self._turn_of(life) if life.kind == "sidecar" else None
                    life.end(max(0.0, ends - loop.time()), turn)
            # One that is being started now is ended as soon as it runs.
            await self._first(*live, self.story.changed())

    def _turn_of(self, life: ContainerLife) -> Turn:
        """Give the wait of a sidecar for those that end before it: all app containers, and every later sidecar."""
        names = list(self.containers)
        before = [
            self._tasks[name]
            for name, other in self.containers.items()
            if name in self._tasks
            and (other.kind == "app" or (other.kind == "sidecar" and names.index(name) > names.index(life.name)))
        ]

        async def turn(longest_s: float) -> None:
            if before:
                await asyncio.wait(before, timeout=longest_s)

        return turn
