"""The supervisor's loop on virtual time: every activity ends in exactly one event, whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sidecar import lifecycle as lc
from sidecar.errors import StoreUnavailable
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot
from sidecar.supervisor import Supervisor

pytestmark = pytest.mark.looptime

Script = dict[str, Callable[[], Awaitable[object]]]


async def for_ever() -> None:
    await asyncio.Event().wait()


class Scripted:
    """Activities that do what a test says; what they are asked for is written down."""

    def __init__(self, **script: Callable[[], Awaitable[object]]) -> None:
        self.script = script
        self.asked: list[str] = []
        self.released: list[str] = []
        self.cancelled: list[str] = []
        self.notes: list[lc.Command] = []
        self.records: list[lc.Command] = []

    async def _do(self, name: str) -> object:
        self.asked.append(name)
        try:
            return await self.script.get(name, for_ever)()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def launch(self) -> lc.Event:
        return lc.ChildExited(int(await self._do("launch")))

    async def restore(self, command: lc.Restore) -> lc.Event:
        return lc.RestoreEnded(command.work, str(await self._do("restore")), "g")

    def release(self, command: lc.Restore, why: str) -> None:
        self.released.append(why)

    async def warm(self, command: lc.Warm) -> lc.Event:
        return lc.WarmEnded(command.work, str(await self._do("warm")))

    async def verify(self, command: lc.Verify) -> lc.Event:
        return lc.VerifyEnded(command.work, str(await self._do("verify")))

    async def publish(self) -> None:
        await self._do("publish")

    async def record(self, command: lc.Quarantine | lc.RecordBoot) -> None:
        self.records.append(command)

    async def note(self, command: lc.Command) -> None:
        self.notes.append(command)


class Told:
    """Remembers phases and failures."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.failures: list[tuple[str, str]] = []
        self.gates: list[bool] = []

    def stepped(self, before: Snapshot, event: lc.Event, after: Snapshot, gate: lc.Gate) -> None:
        if after.phase is not before.phase:
            self.phases.append(after.phase)
        self.gates.append(gate.open)

    def failed(self, activity: str, error: BaseException) -> None:
        self.failures.append((activity, type(error).__name__))


def gives(value: object) -> Callable[[], Awaitable[object]]:
    async def give() -> object:
        return value

    return give


def raises(error: Exception) -> Callable[[], Awaitable[object]]:
    async def fail() -> object:
        raise error

    return fail


async def drive(
    activities: Scripted,
    *events: lc.Event,
    mode: Mode = Mode.LAUNCHER,
    wait_s: float = 1.0,
    policy: Policy | None = None,
) -> tuple[Supervisor, Told, asyncio.Task[int]]:
    told = Told()
    supervisor = Supervisor(
        Snapshot(mode), policy or Policy(), activities, told, {"restore": 10.0, "warm": 100.0, "verify": 50.0}
    )
    running = asyncio.create_task(supervisor.run())
    for event in events:
        supervisor.post(event)
        await asyncio.sleep(0.01)
    await asyncio.sleep(wait_s)
    return supervisor, told, running


async def stop(supervisor: Supervisor, running: asyncio.Task[int]) -> int:
    supervisor.post(lc.StopAsked())
    return await running


START = (lc.Started(), lc.AttemptOpened("a"))
UP = lc.EngineObserved("up", "e1")


async def test_a_whole_start_ends_ready_and_publishes() -> None:
    activities = Scripted(restore=gives("hit"), warm=gives("converged"), verify=gives("passed"))
    supervisor, told, running = await drive(activities, *START, UP)
    assert told.phases[-1] is Phase.READY
    assert activities.asked == ["restore", "warm", "verify", "publish"]
    assert activities.records == [lc.RecordBoot("g", "ready")]
    assert lc.Prove("e1") in activities.notes
    assert await stop(supervisor, running) == 0


async def test_a_restore_that_hangs_is_given_up_after_its_deadline_and_the_launcher_goes_on() -> None:
    activities = Scripted(restore=for_ever)
    supervisor, told, running = await drive(activities, *START, wait_s=9.0)
    assert supervisor.snapshot.phase is Phase.RESTORING
    await asyncio.sleep(2.0)
    assert (supervisor.snapshot.phase, supervisor.snapshot.restore) == (Phase.AWAITING_ENGINE, "failed")
    assert activities.released == ["restore did not end within its cap of 10 s."]
    assert told.failures == [("restore", "TimeoutError")]
    await stop(supervisor, running)


@pytest.mark.parametrize("error", [StoreUnavailable("The store is away; mount it."), ValueError("a bug of ours")])
async def test_a_restore_that_raises_costs_warmth_and_not_the_engine(error: Exception) -> None:
    activities = Scripted(restore=raises(error))
    supervisor, _, running = await drive(activities, *START)
    assert supervisor.snapshot.phase is Phase.AWAITING_ENGINE
    assert len(activities.released) == 1
    assert str(error) in activities.released[0]
    await stop(supervisor, running)


async def test_a_warm_up_that_raises_is_a_failed_warm_up_with_its_sentence() -> None:
    activities = Scripted(
        restore=gives("miss"),
        warm=raises(StoreUnavailable("Give the key in WARMUP_API_KEY_FILE.")),
        verify=gives("passed"),
    )
    supervisor, _, running = await drive(activities, *START, UP)
    assert supervisor.snapshot.phase is Phase.READY
    assert lc.gate(supervisor.snapshot).flagged
    assert "WARMUP_API_KEY_FILE" in lc.gate(supervisor.snapshot).sentence
    await stop(supervisor, running)


async def test_an_engine_that_goes_while_warming_cancels_the_warm_up() -> None:
    activities = Scripted(restore=gives("miss"))
    supervisor, _, running = await drive(activities, *START, UP, lc.EngineObserved("gone"))
    assert activities.cancelled == ["warm"]
    assert supervisor.snapshot.phase is Phase.AWAITING_ENGINE
    await stop(supervisor, running)


async def test_an_ending_of_cancelled_work_is_stale() -> None:
    first = asyncio.Event()

    async def stubborn() -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            first.set()
            return "converged"  # an activity that ends by itself just when it is cancelled
        return None

    activities = Scripted(restore=gives("miss"), warm=stubborn)
    supervisor, _, running = await drive(activities, *START, UP, lc.EngineObserved("up", "e2"))
    assert first.is_set()
    assert (supervisor.snapshot.phase, supervisor.snapshot.identity) == (Phase.WARMING, "e2")
    await stop(supervisor, running)


async def test_a_publish_that_raises_leaves_the_pod_ready() -> None:
    activities = Scripted(
        restore=gives("miss"), warm=gives("converged"), verify=gives("passed"), publish=raises(OSError("disk"))
    )
    supervisor, told, running = await drive(activities, *START, UP)
    assert supervisor.snapshot.phase is Phase.READY
    assert told.failures == [("publish", "OSError")]
    await stop(supervisor, running)


async def test_an_engine_that_cannot_generate_is_tried_again_after_a_pause() -> None:
    answers = iter(["failed", "passed"])

    async def verify() -> object:
        return next(answers)

    activities = Scripted(restore=gives("miss"), warm=gives("converged"), verify=verify)
    supervisor, _, running = await drive(activities, *START, UP, wait_s=29.0)
    assert supervisor.snapshot.phase is Phase.SUSPENDED
    await asyncio.sleep(2.0)
    assert supervisor.snapshot.phase is Phase.READY
    await stop(supervisor, running)


async def test_notes_are_carried_out_in_the_order_in_which_they_were_asked_for() -> None:
    activities = Scripted(restore=gives("hit"), warm=gives("converged"), verify=gives("passed"))
    supervisor, _, running = await drive(activities, *START, UP, lc.EngineObserved("gone"))
    kinds = [type(note) for note in activities.notes]
    assert kinds == [lc.Unprove, lc.Prove, lc.Unprove]
    await stop(supervisor, running)


async def test_the_childs_exit_code_is_the_daemons() -> None:
    async def engine() -> object:
        await asyncio.sleep(5)
        return 7

    _, _, running = await drive(Scripted(launch=engine), lc.Started(), mode=Mode.CHILD)
    assert await running == 7


async def test_a_stop_ends_every_task_the_supervisor_began() -> None:
    activities = Scripted(restore=gives("hit"), warm=gives("converged"), verify=gives("passed"))
    supervisor, _, running = await drive(activities, *START, UP)
    await stop(supervisor, running)
    assert activities.cancelled == ["publish"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_impossible_event_is_told_and_changes_nothing() -> None:
    supervisor, told, running = await drive(Scripted(), lc.Started(), lc.Started())
    assert told.failures == [("step", "ImpossibleTransition")]
    assert supervisor.snapshot.phase is Phase.AWAITING_LAUNCHER
    await stop(supervisor, running)
