"""Runs one daemon: opens the port, starts the root tasks, passes signals on, waits for the supervisor to end.

What the parts are made of is in `assembly.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import sidecar
from sidecar import lifecycle, logs
from sidecar.caches import families
from sidecar.config import Loaded, Settings
from sidecar.daemon import assembly
from sidecar.daemon.cluster import Cluster
from sidecar.daemon.ending import END_S, LEFT_S, Ending, take_signals
from sidecar.daemon.own_facts import image_fact, own_facts, places
from sidecar.engines.watcher import EngineWatcher, Observation
from sidecar.errors import EXIT_BUG, EXIT_OK, ListenFailed, NotSo, WarmupError
from sidecar.gpu.reader import GpuReader
from sidecar.lifecycle import Mode, Phase, output
from sidecar.logs import get_logger
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor import Supervisor, addressing, fallbacks, growth, handover, progress, restoring, sampling
from sidecar.supervisor.child import Child
from sidecar.supervisor.gpu_watch import GpuWatch
from sidecar.supervisor.observers import AttemptObserver, EngineObserver
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.usage import UsageWatch
from sidecar.web.control import Actions
from sidecar.web.server import Listening, serve, serve_control, stop_all

HEARTBEAT_S = 1.0
#: A loop that has not turned for this long is stuck: /livez answers 503 and the kubelet restarts the sidecar.
STUCK_S = 30.0
#: How long a restarted daemon waits to learn which engine runs before it goes on without adopting it.
FIRST_LOOK_S = 3.0
#: Pause between two tries to open a port or directory that is taken or missing.
AGAIN_S = 2.0
#: Whatever happens to a restore, the engine's container may start this long after its cap.
STARTUP_GRACE_S = 30.0

_log = get_logger("daemon")


def run_daemon(loaded: Loaded, command: tuple[str, ...], *, once: bool = False) -> int:
    """Run the daemon until it is told to end, or its child has ended; give the exit code.

    With `once` it ends as soon as the engine may start: restored or not, what is left to do is another daemon's.
    """
    os.umask(0o007)
    settings = assembly.settings_for_child(loaded) if command else loaded.settings
    logs.configure(settings.log_format, settings.log_level)
    daemon, ending = Daemon(settings, loaded, command, once=once), Ending()

    async def run() -> int:
        # An init container that fails keeps its engine from starting for ever, so `once` has no code of failure.
        code = EXIT_OK if once else EXIT_BUG
        try:
            code = await daemon.run(ending)
        finally:
            ending.within(LEFT_S, code)
            if settings.control_dir != loaded.settings.control_dir:
                shutil.rmtree(settings.control_dir, ignore_errors=True)
        return code

    try:
        return asyncio.run(run())
    finally:
        ending.gone()


class Daemon:
    """One daemon process."""

    def __init__(self, settings: Settings, loaded: Loaded, command: tuple[str, ...], *, once: bool = False) -> None:
        self._once = once
        self._settings = settings
        self._problems = loaded.problems
        self._command = command
        self._mode = Mode.CHILD if command else Mode.LAUNCHER if settings.launcher else Mode.BESIDE
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse = time.monotonic()
        self._listening: Listening | None = None
        self._calls: Listening | None = None
        self._child: Child | None = None
        self._supervisor: Supervisor | None = None
        self._stopping = False
        self._gpus: GpuWatch | None = None

    async def run(self, ending: Ending) -> int:
        """Start every part, then wait until the supervisor ends; `ending` sees to it that a stop ends the process."""
        self._handle_signals(ending)
        board = Board(time.time, time.monotonic, sidecar.__version__, self._mode.value)
        board.alive = lambda: time.monotonic() - self._pulse < STUCK_S
        metrics = Metrics(sidecar.__version__, self._mode.value, [family.name for family in families.FAMILIES])
        self._start("heartbeat", self._heartbeat)
        if not self._once:
            await self._open_port(board, metrics)
        pod = assembly.make_pod(self._settings, self._mode, board, metrics, len(self._problems))
        self._tell_problems(pod)
        await assembly.take_live_cache(pod)
        control = assembly.ControlTaking(pod)
        trouble = await control.take()
        if self._mode is Mode.CHILD:
            self._child = Child(self._command, pod.control.path if pod.control else None)
        supervisor = assembly.make_supervisor(pod, self._child)
        cluster = assembly.make_cluster(pod)
        if not self._once:
            cluster.ordinary_init = lambda: supervisor.post(lifecycle.StopAsked())
        self._supervisor = supervisor
        if self._stopping:
            supervisor.post(lifecycle.StopAsked())
        try:
            if not self._once:
                for name, job in cluster.jobs():
                    self._start(name, job)
            await self._begin(pod, supervisor, cluster)
            # What was imported stays: without this each full collection walks it again, and probes wait 50 ms for that.
            gc.collect()
            gc.freeze()
            self._start("unmanaged caches", lambda: growth.watch(pod))
            self._start("usage", UsageWatch(pod).run)
            self._start("output samples", lambda: sampling.watch(pod, supervisor.post))
            self._start("progress", lambda: progress.watch(pod, supervisor.post))
            self._start("control", lambda: self._watch_control(pod, supervisor, control, trouble))
            return await supervisor.run()
        finally:
            await cluster.end()
            await self._end(pod)

    async def _begin(self, pod: Pod, supervisor: Supervisor, cluster: Cluster) -> None:
        """Start the engine's observer, look once at what is there, and tell the state machine."""
        engine_observer = EngineObserver(pod, supervisor.post)
        first = asyncio.Event()

        def report(observation: Observation) -> None:
            if first.is_set():
                engine_observer.report(observation)
            elif observation.state != "up" or observation.identity:
                pod.observation = observation
                first.set()

        watcher = EngineWatcher(
            pod.engine, clock=time.monotonic, sleep=asyncio.sleep, stall_s=self._settings.stall_s, boot=pod.boot
        )

        def blind() -> None:
            detail = "the sidecar can't watch the engine; its log says why"
            supervisor.post(lifecycle.EngineObserved("unreachable", detail=detail))

        self._start("engine watcher", lambda: watcher.run(report), blind)
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await first.wait()
        first.set()
        await self._learn_gpus(pod, cluster)
        cluster.use_image(pod.base_facts)
        supervisor.post(self._started(pod))
        self._start("startup probe", lambda: self._open_startup(pod, supervisor))

    async def _learn_gpus(self, pod: Pod, cluster: Cluster) -> None:
        """Read the GPUs in the background; without a launcher the first reading belongs to the facts and is awaited."""
        self._gpus = GpuWatch(pod, GpuReader(release=self._settings.gpu_release))
        if self._mode is Mode.BESIDE:
            first = await self._gpus.read() if self._settings.gpu_interval_s > 0 else None
            told = await cluster.told()
            own = own_facts(self._settings, first, told)
            pod.places = places(told)
            pod.base_facts, pod.arguments_known = own.facts, not own.inexact
            addressing.compare(pod)
            if own.lacking and pod.store:
                pod.store = ""
                pod.degrade(own.lacking)
            if self._settings.pod_facts and own.inexact:
                pod.board.tell(f"Caches that depend on the engine's arguments are left alone: {own.inexact}", "warning")
        else:
            pod.base_facts = image_fact(self._settings)
        pod.facts = pod.base_facts
        if self._settings.gpu_interval_s > 0:
            self._start("gpu", self._gpus.run)

    def _started(self, pod: Pod) -> lifecycle.Started:
        seen = pod.observation
        answers = seen is not None and seen.state not in ("gone", "unreachable", "not_an_engine")
        proven = pod.control.read_proven() if pod.control is not None else None
        if proven is not None and seen is not None and seen.state == "up" and seen.identity == proven.identity:
            pod.restored_attempt = proven.attempt
            number = fallbacks.number_of(pod, proven.fallback)
            return lifecycle.Started(
                adoptable=proven.identity, attempt=proven.attempt, generation=proven.generation, fallback=number
            )
        if self._mode is Mode.BESIDE and pod.control is not None and not self._once:
            if earlier := handover.left(pod.control.path, pod.host_boot):
                restoring.take_over(pod, earlier)
                return lifecycle.Started(engine_runs=True, restore=earlier.outcome, generation=earlier.generation or "")
            answers = answers or handover.released(pod.control.path, pod.host_boot)
        return lifecycle.Started(engine_runs=answers)

    # --- root tasks -------------------------------------------------------------------------------------------------

    def _start(
        self, name: str, job: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[], None] = lambda: None
    ) -> None:
        """Run a root task; one that ends by a bug is told by `failed`, and started anew after a pause."""

        async def guarded() -> None:
            while True:
                try:
                    await job()
                    return
                except WarmupError as error:
                    _log.error("a part ended", part=name, error=str(error))
                    return
                except Exception as error:  # a root task has nobody above it: without it the gate would stand still
                    _log.exception("a part failed by a bug; please report it", part=name, error=repr(error))
                    failed()
                    await asyncio.sleep(AGAIN_S)

        task = asyncio.create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _heartbeat(self) -> None:
        while True:
            self._pulse = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)

    async def _open_port(self, board: Board, metrics: Metrics) -> None:
        """Open the port; where that fails, keep trying in the background, so that the engine is not kept waiting."""
        host, port = self._settings.listen_host, self._settings.listen_port
        try:
            self._listening = await serve(board, metrics, host, port)
        except ListenFailed as error:
            _log.error(str(error))
            board.tell(str(error), "error")
            board.degraded = (*board.degraded, str(error))
            notice = str(error)
            self._start("port", lambda: self._keep_opening(board, metrics, notice))

    async def _keep_opening(self, board: Board, metrics: Metrics, notice: str) -> None:
        while self._listening is None:
            await asyncio.sleep(AGAIN_S)
            with suppress(ListenFailed):
                self._listening = await serve(board, metrics, self._settings.listen_host, self._settings.listen_port)
        board.degraded = tuple(each for each in board.degraded if each != notice)
        board.tell("The port is open now.")

    async def _watch_control(
        self, pod: Pod, supervisor: Supervisor, control: assembly.ControlTaking, trouble: str
    ) -> None:
        """Watch the control directory and answer on its socket; one that can't be used yet is tried again and again."""
        if trouble:
            pod.degrade(trouble)
        while pod.control is None:
            await asyncio.sleep(AGAIN_S)
            if not await control.take():
                pod.mended(trouble, "The control directory can be used now.")
        path = pod.control.path
        self._start("control socket", lambda: self._serve_calls(pod.board, supervisor, path))
        if self._mode is not Mode.BESIDE:
            observer = AttemptObserver(pod, pod.control, supervisor.post)
            pod.on_child_exit = observer.look
            await observer.run()

    async def _serve_calls(self, board: Board, supervisor: Supervisor, control: Path) -> None:
        def drain() -> str:
            supervisor.post(lifecycle.DrainAsked())
            return "Draining: /readyz answers 503 from now on; `warmup-sidecar rewarm` takes it back."

        def rewarm() -> str:
            if supervisor.snapshot.phase not in (Phase.READY, Phase.SUSPENDED, Phase.DRAINING):
                raise NotSo(
                    f"The pod is {supervisor.snapshot.phase.value}; it is warmed anyway. "
                    "Re-warming works when it is ready, suspended or draining."
                )
            supervisor.post(lifecycle.RewarmAsked())
            return "Warming up again; the pod is not ready meanwhile."

        def check() -> str:
            if supervisor.snapshot.phase not in (Phase.READY, Phase.SUSPENDED):
                raise NotSo(
                    f"The pod is {supervisor.snapshot.phase.value}; its output is checked before it is ready anyway, or "
                    "after `warmup-sidecar rewarm`."
                )
            if not output.is_checkable(supervisor.snapshot):
                raise NotSo(f"The output can't be checked now: {board.gate.sentence}")
            supervisor.post(lifecycle.CheckAsked())
            return "Checking the output; the pod is not ready meanwhile."

        self._calls = await serve_control(board, Actions(drain=drain, rewarm=rewarm, check=check), control)

    def _tell_problems(self, pod: Pod) -> None:
        for problem in self._problems:
            pod.degrade(str(problem))
        known = {family.name for family in families.stored_families()}
        for name in self._settings.excluded_families:
            if name not in known:
                pod.degrade(f"WARMUP_EXCLUDE_FAMILIES: {name} is no cache family; `warmup-sidecar check` lists them.")

    async def _open_startup(self, pod: Pod, supervisor: Supervisor) -> None:
        """Let the engine's container start: at once with the launcher, else when restore has settled or is given up."""
        closed = (Phase.STARTING, Phase.RESTORING) if self._mode is Mode.BESIDE else (Phase.STARTING,)
        cap_s = self._settings.restore_timeout_s + STARTUP_GRACE_S
        pod.board.startup_sentence = "Restoring kernel caches; the engine's container may start when this has ended."
        with suppress(TimeoutError):
            async with asyncio.timeout(cap_s):
                await supervisor.reached(lambda snapshot: snapshot.phase not in closed)
        if self._mode is Mode.BESIDE and pod.control is not None:
            with suppress(OSError):
                handover.leave(pod.control.path, pod.host_boot, pod.restored)
        if self._once:
            _log.info(str(pod.board.restore.get("sentence") or "Nothing was restored."))
            supervisor.post(lifecycle.StopAsked())
        pod.board.startup_open = True
        pod.board.startup_sentence = "The engine's container may start."

    # --- the end ----------------------------------------------------------------------------------------------------

    def _handle_signals(self, ending: Ending) -> None:
        def stop(number: signal.Signals) -> None:
            self._stopping = True
            if self._child is not None:
                self._child.stop_with(number)
            if self._supervisor is not None:
                self._supervisor.post(lifecycle.StopAsked())

        def seen(number: int) -> None:
            # A child is drained first, which takes its time.
            if number in stopping and (self._child is None or self._supervisor is None):
                ending.within(END_S, 0)

        stopping = {number: partial(stop, number) for number in (signal.SIGTERM, signal.SIGINT)}
        passed_on = {number: self._forwarder(number) for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)}
        take_signals(asyncio.get_running_loop(), {**stopping, **passed_on}, seen)

    def _forwarder(self, number: signal.Signals) -> Callable[[], None]:
        def forward() -> None:
            if self._child is not None:
                self._child.forward(number)

        return forward

    async def _end(self, pod: Pod) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._child is not None:
            self._child.kill()
        await stop_all(self._listening, self._calls)
        if self._gpus is not None:
            await self._gpus.close()
        await pod.keeper.close()
        await pod.engine.close()
        if pod.control is not None:
            pod.control.close()
