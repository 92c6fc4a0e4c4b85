"""One container under an emulated kubelet: its instances one after another, their probes, how one is brought to its end.

In which order containers start and end is decided in `life.py`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from tests.kubernetes.kubelet.clock import Backoff, Clock
from tests.kubernetes.kubelet.probes import ProbeKind, run_probe
from tests.kubernetes.kubelet.runtime import Running, Runtime
from tests.kubernetes.kubelet.spec import Container, Kind
from tests.kubernetes.kubelet.story import Story

#: kubelet (Kubernetes 1.29, pkg/kubelet/kuberuntime, minimumGracePeriodInSeconds): however little of the grace period is
#: left, a container has so long between SIGTERM and SIGKILL. "Pod Lifecycle", section "Pod Termination Flow", tells of the
#: same 2 s for a preStop hook that outlasts the grace period.
LEAST_GRACE_S = 2.0

#: Waits for a container's turn to end, for at most so many seconds.
Turn = Callable[[float], Awaitable[None]]


@dataclass
class ContainerLife:
    """A container's status as a kubelet reports it, and the instance that runs.

    "Pod Lifecycle", sections "Container states" and "Container restart policy".
    """

    spec: Container
    kind: Kind
    policy: str
    grace_s: float
    story: Story
    clock: Clock
    ending: asyncio.Event
    state: str = "waiting"
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    ready: bool = False
    running: Running | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    _ran_s: float = 0.0
    _killing: asyncio.Task[None] | None = None
    _probes: dict[ProbeKind, asyncio.Task[None]] = field(default_factory=dict)
    _backoff: Backoff = field(default_factory=Backoff)

    @property
    def name(self) -> str:
        """Give its name."""
        return self.spec.name

    async def live(self, runtime: Runtime) -> int:
        """Run instance after instance as the restart policy says; give the last one's exit code."""
        while True:
            code = await self._one(runtime)
            if self.ending.is_set() or not self._again(code):
                return code
            pause = self._backoff.pause_after(self._ran_s)
            if pause:
                self.state, self.reason = "waiting", "CrashLoopBackOff"
                self.story.tell(self.name, "backs off", f"{pause:g}")
            if await self._ends_during(pause):
                return code
            self.restarts += 1

    def _again(self, code: int) -> bool:
        """Tell whether another instance follows.

        "Sidecar Containers": a sidecar's own restartPolicy counts, not the pod's. "Init Containers", section "Detailed
        behavior": an init container that succeeded is done; one that failed is tried again unless the policy is Never.
        """
        if self.kind == "sidecar":
            return True
        if self.kind == "init":
            return code != 0 and self.policy != "Never"
        return self.policy == "Always" or (self.policy == "OnFailure" and code != 0)

    async def _ends_during(self, pause: float) -> bool:
        waiting = asyncio.ensure_future(self.clock.back_off(pause))
        ended = asyncio.ensure_future(self.ending.wait())
        try:
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            ended.cancel()
        return self.ending.is_set()

    async def _one(self, runtime: Runtime) -> int:
        self._killing = None
        self.running = await runtime.start(self.spec)
        began = self.clock.now()
        self.state, self.reason, self.exit_code = "running", "", None
        self.story.tell(self.name, "started", f"restarts: {self.restarts}")
        self._begin_probes()
        try:
            code = await self.running.wait()
        finally:
            for task in self._probes.values():
                task.cancel()
            self._probes = {}
        self._ran_s = self.clock.now() - began
        self.started.clear()
        self.state, self.exit_code = "terminated", code
        self.reason = "Error" if code else "Completed"
        self._set_ready(False)
        self.story.tell(self.name, "exited", str(code))
        return code

    # --- probes -----------------------------------------------------------------------------------------------------

    def _begin_probes(self) -> None:
        spec = self.spec
        results: dict[ProbeKind, Callable[[bool], None]] = {
            "startup": self._startup_told,
            "readiness": self._readiness_told,
            "liveness": self._liveness_told,
        }
        probes = {"startup": spec.startup_probe, "readiness": spec.readiness_probe, "liveness": spec.liveness_probe}
        for kind, told in results.items():
            probe = probes[kind]
            if probe is not None:
                assert self.running is not None
                ask = partial(self.running.ask, probe, probe.timeout_seconds)
                job = run_probe(kind, probe, ask, told, self.started, self.clock)
                self._probes[kind] = asyncio.create_task(job, name=f"{kind} probe of {self.name}")
        if spec.startup_probe is None:
            self._has_started()

    def _has_started(self) -> None:
        self.started.set()
        # "Pod Lifecycle", "Types of probe": without a readiness probe the state is Success, with one Failure until it passed.
        self._set_ready(self.spec.readiness_probe is None and self.kind != "init")
        self.story.wake()

    def _startup_told(self, good: bool) -> None:
        if good:
            self.story.tell(self.name, "startup passed")
            self._has_started()
        else:
            self._failed("startup")

    def _readiness_told(self, good: bool) -> None:
        self._set_ready(good)

    def _liveness_told(self, good: bool) -> None:
        if not good:
            self._failed("liveness")

    def _failed(self, kind: ProbeKind) -> None:
        """Kill the instance. "Configure Probes", "Probe-level terminationGracePeriodSeconds": else the pod's counts."""
        probe = self.spec.startup_probe if kind == "startup" else self.spec.liveness_probe
        assert probe is not None
        own = probe.termination_grace_period_seconds
        self.story.tell(self.name, "probe failed", kind)
        self.end(self.grace_s if own is None else own)

    def _set_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self.story.tell(self.name, "ready" if ready else "unready")

    def stop_probes_that_kill(self) -> None:
        """Stop liveness and startup probes, as a kubelet does when it ends a pod; readiness is still asked."""
        for kind in ("liveness", "startup"):
            if task := self._probes.get(kind):
                task.cancel()

    # --- the end of an instance -------------------------------------------------------------------------------------

    def end(self, grace_s: float, turn: Turn | None = None) -> asyncio.Task[None] | None:
        """Begin to end the instance that runs, within the grace period; None when none runs."""
        if self.running is None or self.state != "running":
            return None
        if self._killing is None:
            self._killing = asyncio.create_task(self._end(self.running, grace_s, turn), name=f"end of {self.name}")
        return self._killing

    def kill(self) -> None:
        """Kill the instance that runs, without a word to anybody: the end of a test, not of a pod."""
        if self.running is not None and self.state == "running":
            self.running.signal(signal.SIGKILL)

    async def settle(self) -> None:
        """Wait until nothing is at work on this container any more."""
        if self._killing is not None:
            self._killing.cancel()
            await asyncio.gather(self._killing, return_exceptions=True)

    async def _end(self, running: Running, grace_s: float, turn: Turn | None) -> None:
        """Hook, turn, SIGTERM, SIGKILL.

        "Container Lifecycle Hooks", section "Hook handler execution": the hook must complete before TERM is sent, and the
        grace period counts from before the hook. "Pod Lifecycle", section "Pod Termination Flow".
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_s
        hook = self.spec.lifecycle.pre_stop
        if hook is not None and grace_s > 0:
            # The one-off extension of 2 s for a hook that outlasts the grace period is the least grace below.
            good = await running.ask(hook, grace_s)
            self.story.tell(self.name, "hook", "done" if good else "failed")
        if turn is not None and ends > loop.time():
            await turn(ends - loop.time())
        gone = asyncio.ensure_future(running.wait())
        try:
            self.story.tell(self.name, "SIGTERM")
            running.signal(signal.SIGTERM)
            done, _ = await asyncio.wait({gone}, timeout=max(LEAST_GRACE_S, ends - loop.time()))
            if not done:
                self.story.tell(self.name, "SIGKILL")
                running.signal(signal.SIGKILL)
                await gone
        finally:
            gone.cancel()
