"""Calls to a running daemon: probes and status on its port, drain and re-warm on its socket.

Nothing is shown or decided here. Commands and the demo use it; the daemon itself never does.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from sidecar.errors import DaemonUnreachable, NotSo
from sidecar.web.control import SOCKET

#: A daemon answers its port within milliseconds; what takes longer than this is no living daemon.
TIMEOUT_S = 5.0
#: The largest status seen is under 100 kB (48 steps, 100 events); more than this is not a status.
LARGEST_BYTES = 8 << 20


@dataclass(frozen=True)
class Probe:
    """One answer of a probe: its status code and the sentence in its body."""

    status: int
    sentence: str

    @property
    def open(self) -> bool:
        """Say whether the probe succeeded."""
        return self.status == 200


def local_url(listen: str) -> str:
    """Give the address under which a daemon that listens on `host:port` is reached from the same machine."""
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


class DaemonClient:
    """A client of one daemon; use it with `async with`. Either `url` of its port or its control directory.

    Raises DaemonUnreachable when nothing answers and NotSo when something else does, each with what to do.
    """

    def __init__(self, url: str = "", control_dir: Path | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = control_dir / SOCKET if control_dir else None
        self._base = "http://warmup-sidecar" if self._socket else url.rstrip("/")
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(str(self._socket)) if self._socket else aiohttp.TCPConnector()
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def probe(self, path: str) -> Probe:
        """Ask /startupz, /readyz or /livez."""
        status, body = await self._ask("GET", path)
        if status not in (200, 503):
            raise NotSo(self._not_ours(f"HTTP {status} to {path}"))
        lines = body.decode("utf-8", "replace").strip().splitlines() or [""]
        return Probe(status, lines[0])

    async def status(self) -> dict[str, Any]:
        """Give /status."""
        status, body = await self._ask("GET", "/status")
        found = _json(body)
        if status != 200 or found is None or not isinstance(found.get("phase"), str) or "ready" not in found:
            raise NotSo(self._not_ours(f"HTTP {status} to /status" if status != 200 else "something else to /status"))
        return found

    async def call(self, path: str) -> str:
        """Make a call that changes state; give the daemon's sentence, or raise NotSo with it on refusal."""
        status, body = await self._ask("POST", path)
        found = _json(body) or {}
        if not isinstance(sentence := found.get("sentence"), str):
            raise NotSo(self._not_ours(f"HTTP {status} to {path}"))
        if status != 200:
            raise NotSo(sentence)
        return sentence

    async def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        assert self._session is not None, "DaemonClient is used with `async with`"
        try:
            async with self._session.request(method, self._base + path, allow_redirects=False) as answer:
                return answer.status, await answer.content.read(LARGEST_BYTES)
        except TimeoutError as error:
            raise DaemonUnreachable(
                f"{self._where()} did not answer within {self._timeout_s:g} s. {self._advice()}"
            ) from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise DaemonUnreachable(f"{self._base} is not an address such as http://127.0.0.1:9797.") from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise DaemonUnreachable(
                f"No sidecar answers at {self._where()} ({_short(error)}). {self._advice()}"
            ) from error

    def _where(self) -> str:
        return str(self._socket or self._base)

    def _not_ours(self, what: str) -> str:
        return f"{self._where()} answers {what}, so it is not a warmup-sidecar. {self._advice()}"

    def _advice(self) -> str:
        if self._socket:
            return "Name the daemon's own control directory with --control-dir or WARMUP_CONTROL_DIR."
        return "Name the daemon's address with --url, --listen or WARMUP_LISTEN."


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(error: BaseException) -> str:
    cause = getattr(error, "os_error", None) or error
    number = getattr(cause, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(cause) or type(error).__name__
