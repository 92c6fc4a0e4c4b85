"""What each command of the state machine does for a real pod; the supervisor's loop starts and ends them.

The work itself is in the files beside this one and in the rooms below.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from sidecar import lifecycle
from sidecar.caches.client import RecordRequest
from sidecar.handshake import Proven
from sidecar.kube.events import QUARANTINED
from sidecar.lifecycle import Mode
from sidecar.supervisor import fallbacks, following, history, restoring, serving, warming
from sidecar.supervisor.child import Child
from sidecar.supervisor.pod import Pod

_Recorded = lifecycle.Quarantine | lifecycle.Acquit | lifecycle.RecordBoot | lifecycle.Remember

#: Writing one small file into the store; a store that takes longer hangs.
RECORD_S = 30.0


class PodActivities:
    """The activities of one pod; `child` is there when the daemon starts the engine itself."""

    def __init__(self, pod: Pod, child: Child | None) -> None:
        self._pod = pod
        self._child = child
        # Where this pod quarantined what: by the time that turns out wrong, another restore has ended.
        self._quarantined: dict[str, list[tuple[str, str]]] = {}

    async def launch(self) -> lifecycle.Event:
        """Run the engine's command until it ends. How it ended is told first, because what follows depends on it."""
        if self._child is None:
            return lifecycle.ChildExited(127)
        ended = await self._child.run()
        self._pod.on_child_exit()
        return ended

    def restore(self, command: lifecycle.Restore) -> Coroutine[Any, Any, lifecycle.Event]:
        """Restore and let the launcher go on."""
        return restoring.restore(self._pod, command)

    def release(self, command: lifecycle.Restore, why: str) -> None:
        """Let the launcher go on without a restore."""
        restoring.release(self._pod, command, why)

    def warm(self, command: lifecycle.Warm) -> Coroutine[Any, Any, lifecycle.Event]:
        """Send warm-up traffic; a worker of a multi-pod engine lets its leader do that."""
        if self._pod.follows:
            return following.warm(self._pod, command)
        return warming.warm(self._pod, command)

    def verify(self, command: lifecycle.Verify) -> Coroutine[Any, Any, lifecycle.Event]:
        """Check output; a worker takes its leader's word."""
        if self._pod.follows:
            return following.verify(self._pod, command)
        return warming.verify(self._pod, command)

    def publish(self) -> Coroutine[Any, Any, None]:
        """Publish until cancelled."""
        return serving.publish_while_serving(self._pod)

    async def note(self, command: lifecycle.Command) -> None:
        """Carry out a short command on the control directory, or on the child."""
        pod, control = self._pod, self._pod.control
        match command:
            case lifecycle.StopEngine() if self._child is not None:
                self._child.stop()
            case lifecycle.Prove(identity) if control is not None:
                generation = (pod.restored.generation if pod.restored else None) or ""
                attempt = pod.restored_attempt or self._attempt()
                control.write_proven(Proven(attempt, identity, generation, pod.fallback_text))
            case lifecycle.Unprove() if control is not None:
                control.clear_proven()
            case lifecycle.RestartEngine(attempt, reason) if control is not None:
                control.request_restart(attempt, reason)
            case _:
                pass

    async def record(self, command: _Recorded) -> None:
        """Write a quarantine, the end of a boot or a fallback into the store, in the worker, because the store may hang.

        A boot counts for every generation it was restored from; a quarantine for the one that is named.
        """
        try:
            if isinstance(command, lifecycle.Remember):
                await fallbacks.remember(self._pod, command)
            elif isinstance(command, lifecycle.Acquit):
                await self._acquit(command)
            else:
                await self._record(command)
        finally:
            if isinstance(command, lifecycle.RecordBoot):
                self._pod.keeper.tried()

    async def _record(self, command: lifecycle.Quarantine | lifecycle.RecordBoot) -> None:
        pod, result = self._pod, self._pod.restored
        if not pod.store or result is None or pod.settings.store_mode == "read-only":
            return
        if isinstance(command, lifecycle.Quarantine):
            pod.metrics.count_quarantine()
            pod.board.tell(f"Generation {command.generation} is quarantined: {command.reason}", "error")
            pod.announce(QUARANTINED, f"Generation {command.generation} is quarantined: {command.reason}")
        for scope, key in (("exact", result.exact_key), ("toolchain", result.toolchain_key)):
            generation = result.generations.get(scope, "")
            if not key or not generation:
                continue
            if isinstance(command, lifecycle.RecordBoot):
                room = pod.room.to_record() if pod.room else {}
                told = {"outcome": command.outcome, **history.fields(pod), **room}
                await self._write("boot", scope, key, generation, told)
            elif generation == command.generation:
                self._quarantined.setdefault(generation, []).append((scope, key))
                await self._write("quarantine", scope, key, generation, {"reason": command.reason})

    async def _acquit(self, command: lifecycle.Acquit) -> None:
        """Take the quarantine back that this pod wrote; that of another pod or of a person stays."""
        for scope, key in self._quarantined.pop(command.generation, ()):
            self._pod.board.tell(
                f"Generation {command.generation} is not quarantined any more, it was not to blame: {command.reason}"
            )
            await self._write("acquittal", scope, key, command.generation, {})

    async def _write(self, kind: Any, scope: Any, key: str, generation: str, record: dict[str, Any]) -> None:
        pod = self._pod
        known = {"generation": generation, "attempt": pod.restored_attempt, "boot": pod.boot}
        request = RecordRequest(
            store=pod.store,
            scope=scope,
            key=key,
            generation=generation,
            kind=kind,
            # Listing the names tells how the boots of each generation ended.
            name=f"{generation}.{record.get('outcome', kind)}.{pod.restored_attempt or 'beside'}-{pod.boot[:8]}",
            record={**record, **known},
        )
        if trouble := await pod.caches.record(request, RECORD_S):
            pod.board.tell(f"The store could not take a {kind} record: {trouble}", "warning")

    def _attempt(self) -> str:
        if self._pod.mode is Mode.BESIDE or self._pod.control is None:
            return ""
        current = self._pod.control.current()
        return current.attempt if current else ""
