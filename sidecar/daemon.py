"""Puts the parts together: opens the port, takes the directories, starts the root tasks, waits for the first to end.

The only file beside the command line that reads the environment, the clocks or process-wide state. No decision about
phases is made here.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

import sidecar
from sidecar import lifecycle, logs
from sidecar.caches import families, live_cache
from sidecar.caches.client import CacheClient
from sidecar.config import Loaded, Settings
from sidecar.engines.detect import make_engine
from sidecar.engines.watcher import EngineWatcher, Observation
from sidecar.errors import HandshakeError, ListenFailed, LiveCacheUnusable, NotSo, WarmupError
from sidecar.gpu.nvml import GpuReader
from sidecar.handshake import ControlDirectory, LauncherSettings
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor import Supervisor, restoring, warming
from sidecar.supervisor.activities import PodActivities
from sidecar.supervisor.child import Child
from sidecar.supervisor.observers import AttemptObserver, EngineObserver
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.telling import Teller
from sidecar.web.control import Actions
from sidecar.web.server import Listening, serve, serve_control, stop_all

HEARTBEAT_S = 0.5
#: A loop that has not turned for this long is stuck: /livez answers 503 and the kubelet restarts the sidecar.
STUCK_S = 30.0
#: How long a restarted daemon waits to learn which engine runs before it goes on without adopting it.
FIRST_LOOK_S = 3.0
#: A launcher gives up this long after the cap of a restore.
LAUNCHER_GRACE_S = 15.0
#: Pause between two tries to open a port or directory that is taken or missing.
AGAIN_S = 2.0
#: Whatever happens to a restore, the engine's container may start this long after its cap.
STARTUP_GRACE_S = 30.0

_log = structlog.get_logger("daemon")


def run_daemon(loaded: Loaded, command: tuple[str, ...]) -> int:
    """Run the daemon until it is told to end, or its child has ended; give the exit code."""
    os.umask(0o007)
    settings = _for_child(loaded) if command else loaded.settings
    logs.configure(settings.log_format, settings.log_level)
    return asyncio.run(Daemon(settings, loaded, command).run())


def _for_child(loaded: Loaded) -> Settings:
    """Give a user's own directories where the defaults, made for containers, can't be written by this user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmup-sidecar"
    changes = {
        name: path
        for name, path in (("live_cache", home / "live"), ("control_dir", home / f"control-{os.getpid()}"))
        if name not in loaded.sources and not _writable(getattr(loaded.settings, name))
    }
    return loaded.settings.model_copy(update=changes)


def _writable(path: Path) -> bool:
    while not path.exists():
        path = path.parent
    return os.access(path, os.W_OK | os.X_OK)


class Daemon:
    """One daemon process."""

    def __init__(self, settings: Settings, loaded: Loaded, command: tuple[str, ...]) -> None:
        self._settings = settings
        self._problems = loaded.problems
        self._command = command
        self._mode = Mode.CHILD if command else Mode.LAUNCHER if settings.launcher else Mode.BESIDE
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse = time.monotonic()
        self._listening: Listening | None = None
        self._calls: Listening | None = None
        self._child: Child | None = None

    async def run(self) -> int:
        """Start every part, then wait until the supervisor ends."""
        board = Board(time.time, time.monotonic, sidecar.__version__, self._mode.value)
        board.alive = lambda: time.monotonic() - self._pulse < STUCK_S
        metrics = Metrics(sidecar.__version__, self._mode.value, [family.name for family in families.FAMILIES])
        self._start("heartbeat", self._heartbeat())
        await self._open_port(board, metrics)
        pod = self._make_pod(board, metrics)
        supervisor = self._make_supervisor(pod)
        self._handle_signals(supervisor)
        if pod.control is not None:
            self._start("control socket", self._serve_calls(board, supervisor, pod.control.path))
        try:
            await self._begin(pod, supervisor)
            return await supervisor.run()
        finally:
            await self._end(pod)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _make_pod(self, board: Board, metrics: Metrics) -> Pod:
        settings, boot = self._settings, secrets.token_hex(8)
        pod = Pod(
            settings=settings,
            mode=self._mode,
            boot=boot,
            host_boot=_host_boot(),
            engine=make_engine(settings, _key_reader(settings.api_key_file), time.monotonic),
            caches=CacheClient(clock=time.monotonic),
            board=board,
            metrics=metrics,
            clock=time.monotonic,
            rng=random.Random(secrets.randbits(64)),
            store=settings.store,
        )
        pod.opened_at = time.monotonic()
        board.engine = {"url": settings.engine_url, "state": "unknown", "restarts": 0}
        self._degrade(pod, *[str(problem) for problem in self._problems])
        metrics.notices(len(board.degraded), len(self._problems))
        self._take_live_cache(pod)
        self._take_control(pod)
        if self._mode is Mode.BESIDE:
            pod.facts = pod.own_facts = {"format": 1, "image": settings.image}
        return pod

    def _take_live_cache(self, pod: Pod) -> None:
        path = self._settings.live_cache
        try:
            self._lock = live_cache.lock_live_cache(path)
        except LiveCacheUnusable as error:
            self._degrade(pod, f"{error} Until then the engine uses its own cache directories and nothing is restored.")
            return
        pod.live_cache = str(path)
        if network := live_cache.network_filesystem(path):
            self._degrade(
                pod,
                f"The live cache {path} lies on {network}, a network filesystem: compilers lose files there. "
                "Mount a local disk (emptyDir) and keep the network volume for WARMUP_STORE.",
            )

    def _take_control(self, pod: Pod) -> None:
        control = ControlDirectory(self._settings.control_dir, pod.boot)
        try:
            control.prepare(_launcher_settings(self._settings, pod.live_cache))
        except HandshakeError as error:
            self._degrade(pod, f"{error} Until then the engine starts without the launcher, cold.")
            return
        pod.control = control

    def _make_supervisor(self, pod: Pod) -> Supervisor:
        settings = self._settings
        if self._mode is Mode.CHILD:
            self._child = Child(self._command, pod.control.path if pod.control else None)
        return Supervisor(
            Snapshot(self._mode),
            Policy(settings.on_unwarmed, settings.golden_policies),
            PodActivities(pod, self._child),
            Teller(pod),
            {
                "restore": restoring.deadline(settings.restore_timeout_s),
                "warm": settings.warm_budget_s + warming.GRACE_S,
                "verify": settings.request_timeout_s + warming.GRACE_S,
            },
        )

    async def _begin(self, pod: Pod, supervisor: Supervisor) -> None:
        """Start the observers, look once at what is there, and tell the state machine."""
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
        self._start("engine watcher", watcher.run(report))
        if self._settings.gpu_interval_s > 0:
            self._start("gpu", self._read_gpus(pod))
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await first.wait()
        first.set()
        supervisor.post(self._started(pod))
        if pod.control is not None and self._mode is not Mode.BESIDE:
            self._start("attempts", AttemptObserver(pod, pod.control, supervisor.post).run())
        self._start("startup probe", self._open_startup(pod, supervisor))

    def _started(self, pod: Pod) -> lifecycle.Started:
        seen = pod.observation
        answers = seen is not None and seen.state not in ("gone", "unreachable", "not_an_engine")
        proven = pod.control.read_proven() if pod.control is not None else None
        if proven is not None and seen is not None and seen.state == "up" and seen.identity == proven.identity:
            pod.restored_attempt = proven.attempt
            return lifecycle.Started(adoptable=proven.identity, attempt=proven.attempt, generation=proven.generation)
        if self._mode is Mode.BESIDE and pod.control is not None:
            answers = answers or restoring.beside_released(pod.control.path)
        return lifecycle.Started(engine_runs=answers)

    # --- root tasks -------------------------------------------------------------------------------------------------

    def _start(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await job
            except WarmupError as error:
                _log.error("a part ended", part=name, error=str(error))

        task = asyncio.create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a part ended by a bug; please report it", part=task.get_name(), error=repr(error), exc_info=error
            )

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
            board.degraded = (*board.degraded, str(error))
            self._start("port", self._keep_opening(board, metrics, str(error)))

    async def _keep_opening(self, board: Board, metrics: Metrics, notice: str) -> None:
        while self._listening is None:
            await asyncio.sleep(AGAIN_S)
            with suppress(ListenFailed):
                self._listening = await serve(board, metrics, self._settings.listen_host, self._settings.listen_port)
        board.degraded = tuple(each for each in board.degraded if each != notice)
        board.tell("The port is open now.")

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

        self._calls = await serve_control(board, Actions(drain=drain, rewarm=rewarm), control)

    async def _read_gpus(self, pod: Pod) -> None:
        reader = GpuReader()
        while True:
            try:
                reading = await reader.read()
            except WarmupError as error:
                pod.board.gpu = {"unavailable": str(error)}
                pod.metrics.gpu(None)
            else:
                pod.board.gpu, pod.sm = reading.to_json(), reading.sm
                pod.metrics.gpu(reading.to_json())
            await asyncio.sleep(self._settings.gpu_interval_s)

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
                restoring.note_beside_released(pod.control.path)
        pod.board.startup_open = True
        pod.board.startup_sentence = "The engine's container may start."

    def _degrade(self, pod: Pod, *sentences: str) -> None:
        for sentence in sentences:
            _log.error(sentence)
            pod.board.tell(sentence, "error")
        pod.board.degraded = (*pod.board.degraded, *sentences)
        pod.metrics.notices(len(pod.board.degraded), len(self._problems))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _handle_signals(self, supervisor: Supervisor) -> None:
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            if self._child is not None:
                self._child.stop_with(number)
            supervisor.post(lifecycle.StopAsked())

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._forwarder(number))

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
        await pod.engine.close()
        if pod.control is not None:
            pod.control.close()


def _launcher_settings(settings: Settings, live: str) -> LauncherSettings:
    return LauncherSettings(
        version=sidecar.__version__,
        engine_url=settings.engine_url,
        live_cache=live,
        environment=families.environment(live) if live else {},
        directories=tuple(families.directories(live)) if live else (),
        wait_s=settings.restore_timeout_s + LAUNCHER_GRACE_S,
        drain_s=settings.drain_s,
        settle_s=settings.settle_s,
    )


def _key_reader(path: Path | None) -> Callable[[], str | None]:
    """Read the key anew each time it is needed: Secrets are rotated by replacing the file."""

    def read() -> str | None:
        if path is None:
            return None
        try:
            return path.read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            sys.stderr.write(f"The API key can't be read from {path} ({error}); requests go without one.\n")
            return None

    return read


def _host_boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
