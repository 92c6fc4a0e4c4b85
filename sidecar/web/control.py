"""The calls that change state, on a unix socket in the control directory: drain, re-warm, and status beside
them.

Nothing is decided here: each call is handed to what the daemon gave. The network port never sees these paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from sidecar.errors import ControlSocketTaken, ControlSocketUnusable, WarmupError
from sidecar.status import Board
from sidecar.web.app import as_json

SOCKET = "control.sock"
#: Owner and group: sidecar and engine containers share a group, nobody else may drain a pod.
MODE = 0o660
#: `sun_path` holds 108 bytes with its closing zero. Linux, unix(7).
LONGEST_PATH = 107
#: A daemon that lives accepts within microseconds, even with a busy loop: the kernel does it.
CONNECT_S = 1.0

Action = Callable[[], str]


@dataclass(frozen=True)
class Actions:
    """What the calls do. Each gives a sentence that says what happens now, or raises a WarmupError that
    says why not.
    """

    drain: Action
    rewarm: Action
    check: Action


@dataclass(frozen=True)
class Call:
    """One path of the socket."""

    method: str
    path: str
    meaning: str


CALLS: tuple[Call, ...] = (
    Call("POST", "/drain", "Withdraw readiness; requests in flight may end. /rewarm takes it back."),
    Call("POST", "/rewarm", "Warm up and check the output once more; not ready meanwhile."),
    Call("POST", "/check", "Check the output once more, without a warm-up before; not ready meanwhile."),
    Call("GET", "/status", "The same JSON as on the network port."),
)

#: README: the columns of `documented()`.
HEADINGS = ("method", "path", "meaning")


def documented() -> list[tuple[str, str, str]]:
    """List all calls of the control socket for the README: method, path, meaning."""
    return [(call.method, call.path, call.meaning) for call in CALLS]


def make_control_app(board: Board, actions: Actions) -> web.Application:
    """Make the application of the unix socket.

    A call that was taken answers 200 with `{"ok": true, "sentence"}`; one that can't be, 409 with `{"ok":
    false,
    "sentence", "outcome"}`.
    """

    async def status(_: web.Request) -> web.Response:
        return as_json(board.to_json())

    handlers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "/drain": _handing_to(actions.drain),
        "/rewarm": _handing_to(actions.rewarm),
        "/check": _handing_to(actions.check),
        "/status": status,
    }
    app = web.Application(client_max_size=1024)
    for call in CALLS:
        app.router.add_route(call.method, call.path, handlers[call.path])
    return app


def _handing_to(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        try:
            return as_json({"ok": True, "sentence": action()})
        except WarmupError as error:
            return as_json({"ok": False, "sentence": str(error), "outcome": error.outcome}, status=409)

    return handle


async def claim(path: Path) -> tuple[socket.socket, Path]:
    """Bind a socket of mode 0660 under a unique name beside `path`; `put_in_place` gives it its own name.

    What a dead daemon left at `path` doesn't matter. Raises ControlSocketTaken when a living one answers
    there, and
    ControlSocketUnusable when the directory can't hold a socket.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.sock")
    longest = max(len(os.fsencode(name)) for name in (path, temporary))
    if longest > LONGEST_PATH:
        raise ControlSocketUnusable(
            f"The control socket {path} can't be made: its path is longer than the {LONGEST_PATH} bytes "
            "that Linux allows. "
            "Set WARMUP_CONTROL_DIR to a shorter path."
        )
    await _refuse_a_living_one(path)
    return _bind(temporary, path), temporary


def _bind(temporary: Path, path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.setblocking(False)
    try:
        bound.bind(str(temporary))
        temporary.chmod(MODE)
    except OSError as error:
        bound.close()
        raise _unusable(path, error) from error
    return bound


def put_in_place(temporary: Path, path: Path) -> int:
    """Rename a listening socket to its own name, over whatever a dead daemon left; give its inode for
    `remove`.
    """
    try:
        temporary.rename(path)
        return path.lstat().st_ino
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _unusable(path, error) from error


def remove(path: Path, inode: int) -> None:
    """Remove the socket file if it is still the one with this inode: a successor's is left alone."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _refuse_what_is_no_socket(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, error) from error
    if not stat.S_ISSOCK(kind):
        raise ControlSocketUnusable(f"{path} is not a socket; remove it, the control socket belongs there.")


async def _refuse_a_living_one(path: Path) -> None:
    _refuse_what_is_no_socket(path)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        # TimeoutError is an OSError too: a full queue of a daemon that hangs. It isn't dead.
        if isinstance(error, TimeoutError) or error.errno in (errno.EAGAIN, errno.EACCES):
            raise _taken(path) from error
        return
    writer.close()
    raise _taken(path)


def _taken(path: Path) -> ControlSocketTaken:
    return ControlSocketTaken(
        f"Another warmup-sidecar already listens on {path}. Two daemons can't share a control directory: "
        "stop the other one, "
        "or give this one its own WARMUP_CONTROL_DIR."
    )


def _unusable(path: Path, error: OSError) -> ControlSocketUnusable:
    return ControlSocketUnusable(
        f"The control socket {path} can't be made ({error.strerror or error}); the directory must exist "
        "on a local disk and be "
        "writable for this uid. Until then `drain` and `rewarm` don't work."
    )
