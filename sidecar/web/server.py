"""Opening and closing: the network port and the control socket.

What is answered there is no business of this file.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from sidecar.errors import ListenFailed
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.web import control
from sidecar.web.app import make_app

#: How long an answer in progress may take at the end. SIGTERM must end the daemon within 2 s (DESIGN §3).
GRACE_S = 0.25
#: Kubelet's probes close their connections; scrapers come back after 10 to 60 s.
KEEPALIVE_S = 75.0


@dataclass
class Listening:
    """An open port or socket. `addresses`: (host, port) of each listening socket; empty for a unix socket."""

    runner: web.AppRunner
    addresses: tuple[tuple[str, int], ...] = ()
    afterwards: Callable[[], None] = lambda: None

    async def stop(self) -> None:
        """Close within GRACE_S and a moment, whoever is connected. May be called twice."""
        try:
            await self.runner.cleanup()
        finally:
            self.afterwards()


async def serve(board: Board, metrics: Metrics, host: str, port: int) -> Listening:
    """Answer probes, status, page and metrics at host and port; host `""` means all addresses, port 0 any
    free one.

    Raises ListenFailed with who is there, if that can be seen.
    """
    return await serve_app(make_app(board, metrics), host, port)


async def serve_app(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> Listening:
    """Answer an application's paths at host and port, over TLS where a context is given. Raises ListenFailed."""
    runner = _runner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port, ssl_context=tls).start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        raise ListenFailed(await _why(host, port, error)) from error
    return Listening(runner, tuple((address[0], address[1]) for address in runner.addresses))


async def serve_control(board: Board, actions: control.Actions, directory: Path) -> Listening:
    """Answer state-changing calls on `control.sock` of the control directory.

    Raises ControlSocketTaken when another daemon lives there, ControlSocketUnusable when no socket can be
    made.
    """
    path = directory / control.SOCKET
    bound, temporary = await control.claim(path)
    runner = _runner(control.make_control_app(board, actions))
    await runner.setup()
    try:
        await web.SockSite(runner, bound).start()
        inode = control.put_in_place(temporary, path)
    except BaseException:
        await runner.cleanup()
        bound.close()
        raise
    return Listening(runner, afterwards=lambda: control.remove(path, inode))


async def stop_all(*listening: Listening | None) -> None:
    """Close all of them at the same time; None is skipped."""
    await asyncio.gather(*(each.stop() for each in listening if each is not None))


def _runner(app: web.Application) -> web.AppRunner:
    return web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=GRACE_S, keepalive_timeout=KEEPALIVE_S
    )


async def _why(host: str, port: int, error: OSError | OverflowError) -> str:
    where = f"{host or '*'}:{port}"
    if isinstance(error, OverflowError):
        return f"Port {port} is out of range: WARMUP_LISTEN needs one from 0 to 65535."
    if error.errno == errno.EADDRINUSE:
        who = await asyncio.to_thread(_holder, port)
        return (
            f"{where} is taken by {who}. Probes can't be answered there: stop it, or set WARMUP_LISTEN "
            "(and the probes of "
            "the pod) to a free port."
        )
    if error.errno == errno.EACCES:
        return f"{where} may not be opened by this user: take a port above 1023 in WARMUP_LISTEN."
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{where} is no address of this machine: set WARMUP_LISTEN to 0.0.0.0:{port} or [::]:{port}."
    return f"{where} can't be opened ({error.strerror or error}): change WARMUP_LISTEN."


def _holder(port: int) -> str:
    """Name the process that listens on the port, as far as this process may see it."""
    import psutil

    unseen = "a process that can't be seen from here, perhaps in another container of the pod"
    try:
        for connection in psutil.net_connections(kind="tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return unseen
    return unseen
