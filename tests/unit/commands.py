"""Running the command line as people do, as a process of its own, and a daemon's web side for it to talk to.

No test lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.web import control
from sidecar.web.server import serve, serve_control, stop_all

CHECKOUT = Path(__file__).resolve().parents[2]

#: A command that takes longer than this hangs; the slowest here takes about a second.
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment(**variables: str) -> dict[str, str]:
    """Give this process's environment without settings of ours, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200", **variables}


async def start(*words: str, variables: Mapping[str, str] | None = None, code: str = "") -> asyncio.subprocess.Process:
    """Start `python -m sidecar` with these words, or Python with this code and these words."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *(("-c", code) if code else ("-m", "sidecar")),
        *words,
        env=environment(**(variables or {})),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A shell ignores it in what it puts into the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


async def sidecar(*words: str, variables: Mapping[str, str] | None = None, code: str = "") -> Ended:
    """Run a command to its end."""
    process = await start(*words, variables=variables, code=code)
    return await end_of(process)


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    """Wait for a command's end and give what it printed since."""
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@dataclass
class Daemon:
    """The web side of a daemon, with a board to write on and the calls that came through its socket."""

    board: Board
    url: str
    control_dir: Path
    calls: list[str]


@contextlib.asynccontextmanager
async def daemon(control_dir: Path) -> AsyncIterator[Daemon]:
    """Serve a board on a free port and on a control socket."""
    board = Board(wall=lambda: 1_800_000_000.0, monotonic=lambda: 100.0, version="1.2.3", mode="launcher")
    calls: list[str] = []

    def drain() -> str:
        calls.append("drain")
        return "Draining: readiness is withdrawn."

    def rewarm() -> str:
        from sidecar.errors import NotSo

        calls.append("rewarm")
        raise NotSo("The engine sleeps; wake it first.")

    def check() -> str:
        calls.append("check")
        return "Checking the output; the pod is not ready meanwhile."

    port = await serve(board, Metrics("1.2.3", "launcher"), "127.0.0.1", 0)
    socket = await serve_control(board, control.Actions(drain=drain, rewarm=rewarm, check=check), control_dir)
    try:
        yield Daemon(board, f"http://127.0.0.1:{port.addresses[0][1]}", control_dir, calls)
    finally:
        await stop_all(port, socket)
