"""The endpoints of the network port, declared once: probes, status as JSON and as a page, metrics.

All of them only read; whatever changes state lives in `control.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sidecar.metrics import CONTENT_TYPE, Metrics
from sidecar.status import Board
from sidecar.web import page

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Nothing of this port is ever executed, framed, stored or sent on by a browser.
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": page.CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "warmup-sidecar",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Endpoint:
    """One path: what it means, the status codes it answers with, and which method of `Port` answers."""

    path: str
    answers: str
    codes: tuple[int, ...]
    meaning: str


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "/startupz",
        "startup",
        (200, 503),
        "The engine's container may start. Never means warm; has a hard cap and then answers 200 whatever happened.",
    ),
    Endpoint(
        "/readyz",
        "ready",
        (200, 503),
        "Traffic may come. The body of a 503 says why not and what to do; `?verbose` adds where each part stands.",
    ),
    Endpoint("/livez", "live", (200, 503), "The daemon's own heartbeat; the engine's health is not in it."),
    Endpoint("/status", "status", (200,), "Everything the sidecar knows, as JSON."),
    Endpoint("/metrics", "scrape", (200,), "Metrics in Prometheus' text format."),
    Endpoint(
        "/",
        "show",
        (200,),
        "The status page. `?refresh=SECONDS` sets how often it reloads itself, `?refresh=0` stops that.",
    ),
)
METHODS = ("GET", "HEAD")

#: README: the columns of `documented()`.
HEADINGS = ("path", "methods", "codes", "meaning")


def documented() -> list[tuple[str, str, str, str]]:
    """List all endpoints of the port for the README: path, methods, status codes, meaning."""
    return [(e.path, ", ".join(METHODS), ", ".join(map(str, e.codes)), e.meaning) for e in ENDPOINTS]


def make_app(board: Board, metrics: Metrics) -> web.Application:
    """Make the application of the network port. It reads the board at each request and keeps nothing."""
    port = Port(board, metrics)
    app = web.Application(middlewares=[_refuse_plainly], client_max_size=1024)
    for endpoint in ENDPOINTS:
        app.router.add_get(endpoint.path, getattr(port, endpoint.answers))
    app.on_response_prepare.append(_add_headers)
    return app


class Port:
    """The answers of the network port, one method an endpoint."""

    def __init__(self, board: Board, metrics: Metrics) -> None:
        self._board = board
        self._metrics = metrics

    async def startup(self, _: web.Request) -> web.Response:
        """Say whether the engine's container may start."""
        return sentence(self._board.startup_sentence, 200 if self._board.startup_open else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """Say whether traffic may come, and why not."""
        gate = self._board.gate
        body = self._board.reason
        if "verbose" in request.query:
            body = "\n".join([body, "", *_parts(self._board)])
        return sentence(body, 200 if gate.open else 503)

    async def live(self, _: web.Request) -> web.Response:
        """Say whether the daemon's loop still runs."""
        if self._board.alive():
            return sentence("The sidecar is alive.", 200)
        return sentence("The sidecar's heartbeat has stopped: its container should be restarted.", 503)

    async def status(self, _: web.Request) -> web.Response:
        """Give the board as JSON."""
        return as_json(self._board.to_json())

    async def scrape(self, _: web.Request) -> web.Response:
        """Give the metrics."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def show(self, request: web.Request) -> web.Response:
        """Give the status page."""
        status = self._board.to_json()
        asked = request.query.get("refresh", "")
        refresh = min(int(asked), 3600) if asked.isascii() and asked.isdigit() else page.pace(status)
        text = page.render(status, now=self._board.wall(), refresh=refresh)
        # An engine's answer may hold half a surrogate pair, which UTF-8 can't carry.
        return web.Response(body=text.encode("utf-8", "replace"), content_type="text/html", charset="utf-8")


def sentence(text: str, status: int) -> web.Response:
    """Give an answer in plain words."""
    body = (text + "\n").encode("utf-8", "replace")
    return web.Response(body=body, status=status, content_type="text/plain", charset="utf-8")


def as_json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    """Give an answer as JSON that every parser reads: numbers that are not finite become null."""
    body = json.dumps(_finite(value), default=str, allow_nan=False).encode()
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _parts(board: Board) -> list[str]:
    """List where each part stands, a line each, for people who ask a probe by hand."""
    parts: list[tuple[str, str, object]] = [
        ("phase", board.phase.value, f"for {board.timeline()[-1].seconds:.1f} s"),
        ("restore", str(board.restore.get("outcome", "pending")), board.restore.get("sentence")),
        ("engine", str(board.engine.get("state", "unknown")), board.engine.get("detail")),
        ("warm-up", str(board.warmup.get("outcome", "pending")), board.warmup.get("sentence")),
        ("output", str(board.golden.get("outcome", "pending")), board.golden.get("sentence")),
        ("publish", str(board.publish.get("outcome", "pending")), board.publish.get("sentence")),
    ]
    lines = [f"{name}: {state}" + (f" ({more})" if more else "") for name, state, more in parts]
    return lines + [f"degraded: {notice}" for notice in board.degraded]


@web.middleware
async def _refuse_plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer unknown paths and methods with what there is instead."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        paths = "\n".join(f"{endpoint.path:<10} {endpoint.meaning}" for endpoint in ENDPOINTS)
        return sentence(f"There is nothing under this path. There is:\n{paths}", 404)
    except web.HTTPMethodNotAllowed:
        answer = sentence(
            "This port only reads: use GET or HEAD. State is changed through the control socket, "
            "for example by `warmup-sidecar drain`.",
            405,
        )
        answer.headers["Allow"] = ", ".join(METHODS)
        return answer


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
