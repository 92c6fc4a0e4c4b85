"""The supervisor's loop: take an event, step the state machine, tell everybody, start what it asks for.

What a command does is in `activities.py`; this file knows only how tasks begin, end and are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sidecar import lifecycle
from sidecar.errors import WarmupError
from sidecar.lifecycle import Event, Gate, Policy, Snapshot
from sidecar.logs import get_logger

#: Pause before a pod that can't generate is tried again. Long enough to leave a struggling engine alone.
RETRY_S = 30.0

#: What a bug of ours in an activity is reported as; the engine must not pay for it.
_BUG = "internal error: {error!r}; please report it with the log."


class Activities(Protocol):
    """What commands do. Each ends in one event; errors may be raised and are turned into the failing event."""

    def launch(self) -> Coroutine[Any, Any, Event]:
        """Run the engine's command as a child until it ends; gives ChildExited."""

    def restore(self, command: lifecycle.Restore) -> Coroutine[Any, Any, Event]:
        """Lay the caches down and let the launcher go on; gives RestoreEnded."""

    def warm(self, command: lifecycle.Warm) -> Coroutine[Any, Any, Event]:
        """Send warm-up traffic; gives WarmEnded."""

    def verify(self, command: lifecycle.Verify) -> Coroutine[Any, Any, Event]:
        """Check output; gives VerifyEnded."""

    def publish(self) -> Coroutine[Any, Any, None]:
        """Publish until cancelled."""

    def note(self, command: lifecycle.Command) -> Coroutine[Any, Any, None]:
        """Carry out a short local command that ends in no event: prove, unprove, restart, stop."""

    def record(
        self, command: lifecycle.Quarantine | lifecycle.Acquit | lifecycle.RecordBoot | lifecycle.Remember
    ) -> Coroutine[Any, Any, None]:
        """Write a record into the store."""

    def release(self, command: lifecycle.Restore, why: str) -> None:
        """Let the launcher of this attempt go on with a cold start, whatever happened to the restore."""


class Telling(Protocol):
    """Who is told about changes: board, metrics and log behind one face."""

    def stepped(self, before: Snapshot, event: Event, after: Snapshot, gate: Gate) -> None:
        """Note one step; called for every event."""

    def failed(self, activity: str, error: BaseException) -> None:
        """Note that an activity raised."""


class Supervisor:
    """Run one pod's lifecycle.

    `post` may be called from anywhere on the loop; `run` returns the exit code. `deadlines` caps activities in seconds
    by name (restore, warm, verify); past it the activity is cancelled and its failing event is posted.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        activities: Activities,
        telling: Telling,
        deadlines: dict[str, float],
        retry_s: float = RETRY_S,
    ) -> None:
        self.snapshot = snapshot
        self._policy = policy
        self._activities = activities
        self._telling = telling
        self._deadlines = deadlines
        self._retry_s = retry_s
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._publisher: asyncio.Task[None] | None = None
        self._notes: asyncio.Queue[lifecycle.Command] = asyncio.Queue()
        self._story: list[str] = []
        self._waiters: list[tuple[Callable[[Snapshot], bool], asyncio.Future[None]]] = []
        self._log = get_logger("supervisor")

    def post(self, event: Event) -> None:
        """Hand in an event; events are taken in the order in which they came."""
        self._events.put_nowait(event)

    async def reached(self, wanted: Callable[[Snapshot], bool]) -> None:
        """Wait until a snapshot is as wanted."""
        if not wanted(self.snapshot):
            there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((wanted, there))
            await there

    def _tell_waiters(self) -> None:
        for wanted, there in self._waiters:
            if not there.done() and wanted(self.snapshot):
                there.set_result(None)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]

    async def run(self) -> int:
        """Step until the state machine says Exit, and give its code. Ends every task it began."""
        notes = asyncio.create_task(self._take_notes(), name="notes")
        try:
            while True:
                code = self._take(await self._events.get())
                if code is not None:
                    await self._finish_notes()
                    return code
        finally:
            notes.cancel()
            await self._cancel_all(notes)

    def _take(self, event: Event) -> int | None:
        before = self.snapshot
        try:
            after, commands = lifecycle.step(before, event, self._policy)
        except lifecycle.ImpossibleTransition as error:
            self._telling.failed("step", error)
            self._log.error("impossible transition", error=str(error), story=self._story)
            return None
        if after != before:
            self._story = [*self._story[-9:], f"{before.phase.value} --{type(event).__name__}--> {after.phase.value}"]
        self.snapshot = after
        self._telling.stepped(before, event, after, lifecycle.gate(after))
        self._tell_waiters()
        code: int | None = None
        for command in commands:
            if isinstance(command, lifecycle.Exit):
                code = command.code
            else:
                self._carry_out(command)
        return code

    def _carry_out(self, command: lifecycle.Command) -> None:
        match command:
            case lifecycle.Cancel():
                self._cancel()
            case lifecycle.Launch():
                self._spawn("launch", self._activities.launch(), lambda _sentence: lifecycle.ChildExited(70))
            case lifecycle.Restore():
                self._begin_restore(command)
            case lifecycle.Warm():
                work = command.work
                self._begin(
                    "warm",
                    self._activities.warm(command),
                    lambda sentence: lifecycle.WarmEnded(work, "failed", sentence),
                )
            case lifecycle.Verify():
                work = command.work
                self._begin(
                    "verify",
                    self._activities.verify(command),
                    lambda sentence: lifecycle.VerifyEnded(work, "failed", sentence),
                )
            case lifecycle.RetryLater():
                self._begin("retry", self._retry(command.work), lambda _sentence: lifecycle.RetryDue(command.work))
            case lifecycle.Publish():
                self._stop_publisher()
                self._publisher = asyncio.create_task(
                    self._background_job("publish", self._activities.publish()), name="publish"
                )
            case lifecycle.Quarantine() | lifecycle.Acquit() | lifecycle.RecordBoot() | lifecycle.Remember():
                task = asyncio.create_task(
                    self._background_job("record", self._activities.record(command)), name="record"
                )
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            case _:
                self._notes.put_nowait(command)

    def _begin_restore(self, command: lifecycle.Restore) -> None:
        def failing(sentence: str) -> Event:
            self._activities.release(command, sentence)
            return lifecycle.RestoreEnded(command.work, "failed", detail=sentence)

        self._begin("restore", self._activities.restore(command), failing)

    def _begin(self, name: str, activity: Coroutine[Any, Any, Event], failing: Callable[[str], Event]) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work = self._spawn(name, activity, failing)

    def _spawn(
        self, name: str, activity: Coroutine[Any, Any, Event], failing: Callable[[str], Event]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._to_one_event(name, activity, failing), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _to_one_event(
        self, name: str, activity: Coroutine[Any, Any, Event], failing: Callable[[str], Event]
    ) -> None:
        """Await an activity and post exactly one event for it; a cancelled one posts none, its number is stale."""
        deadline = self._deadlines.get(name)
        try:
            async with asyncio.timeout(deadline):
                event = await activity
        except TimeoutError as error:
            self._telling.failed(name, error)
            event = failing(
                f"{name} did not end within its cap of {deadline:.0f} s." if deadline else f"{name} timed out."
            )
        except WarmupError as error:
            self._telling.failed(name, error)
            event = failing(str(error))
        except Exception as error:  # the one broad except: an activity's bug must cost warmth, not the engine
            self._telling.failed(name, error)
            self._log.exception("activity failed", activity=name)
            event = failing(_BUG.format(error=error))
        self.post(event)

    async def _background_job(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception as error:  # as above: publishing must never take a serving pod down
            self._telling.failed(name, error)
            self._log.exception("activity failed", activity=name)

    async def _retry(self, work: int) -> Event:
        await asyncio.sleep(self._retry_s)
        return lifecycle.RetryDue(work)

    async def _take_notes(self) -> None:
        """Carry short commands out one after the other, in the order in which they were asked for."""
        while True:
            command = await self._notes.get()
            try:
                await self._background_job(type(command).__name__, self._activities.note(command))
            finally:
                self._notes.task_done()

    async def _finish_notes(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._notes.join()
        except TimeoutError:
            self._log.warning("some notes were not written before the end")

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None
        self._stop_publisher()

    def _stop_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.cancel()
            self._background.add(self._publisher)
            self._publisher.add_done_callback(self._background.discard)
            self._publisher = None

    async def _cancel_all(self, *more: asyncio.Task[None]) -> None:
        self._cancel()
        tasks = [*self._background, *more]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
