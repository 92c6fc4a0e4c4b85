"""A proxy before an S3-compatible server that does what networks and overloaded servers do: slow, failing, cut, late.

Requests go on as they are, signatures included; what is done to which of them is said by `faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
from aiohttp import web
from yarl import URL

Fault = Literal["slow", "503", "500", "drop", "cut", "lost answer", "skewed", "silent"]
SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
SKEWED = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"


@dataclass
class ObjectProxy:
    """Faults for requests that `hit` chooses by method and path: the first `times` of them, or all when that is negative.

    `late_s`: a listing is answered as it was so many seconds ago. `seen` has the method and path of every request.
    """

    server: str
    fault: Fault | None = None
    times: int = -1
    hit: Callable[[str, str], bool] = lambda _method, _path: True
    slow_s: float = 0.2
    late_s: float = 0.0
    url: str = ""
    seen: list[tuple[str, str]] = field(default_factory=list)
    _listings: dict[str, list[tuple[float, int, bytes, str]]] = field(default_factory=dict)

    def does(self, fault: Fault | None, times: int = -1, hit: Callable[[str, str], bool] | None = None) -> None:
        """Change what is done from now on."""
        self.times, self.hit = times, hit or (lambda _method, _path: True)
        self.fault = fault

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, or do something to it."""
        method, path = request.method, request.path_qs
        self.seen.append((method, path))
        fault = self._fault_for(method, path)
        if fault == "slow":
            await asyncio.sleep(self.slow_s)
        elif fault == "silent":
            await asyncio.sleep(3600)
        elif fault in ("500", "503", "skewed"):
            code = 403 if fault == "skewed" else int(fault)
            text = {"503": SLOW_DOWN, "skewed": SKEWED}.get(fault, "")
            return web.Response(status=code, text=text, content_type="application/xml")
        elif fault == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, body, kept = await self._asked(request)
        if fault == "lost answer":
            assert request.transport is not None
            request.transport.abort()
        if fault == "cut" and len(body) > 1:
            return await _cut(request, status, body, kept)
        return web.Response(status=status, body=body, headers=kept)

    def _fault_for(self, method: str, path: str) -> Fault | None:
        if self.fault is None or self.times == 0 or not self.hit(method, path):
            return None
        self.times -= 1
        return self.fault

    async def _asked(self, request: web.Request) -> tuple[int, bytes, dict[str, str]]:
        body = await request.read()
        # By the raw path: what was signed must arrive as it was written.
        url = URL(self.server + request.raw_path, encoded=True)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, headers=request.headers.copy(), data=body) as found,
        ):
            data, status = await found.read(), found.status
            left_out = {"transfer-encoding", "connection"} | (set() if request.method == "HEAD" else {"content-length"})
            kept = {name: value for name, value in found.headers.items() if name.lower() not in left_out}
        if self.late_s and request.method == "GET" and "list-type" in request.query:
            status, data = self._as_it_was(request.path_qs, status, data)
        return status, data, kept

    def _as_it_was(self, path: str, status: int, data: bytes) -> tuple[int, bytes]:
        now = time.monotonic()
        past = self._listings.setdefault(path, [])
        past.append((now, status, data, path))
        old = [each for each in past if each[0] <= now - self.late_s]
        chosen = old[-1] if old else past[0]
        return chosen[1], chosen[2]


async def _cut(request: web.Request, status: int, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """Promise a whole body, send half of it, and close."""
    answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(body))})
    await answer.prepare(request)
    await answer.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return answer


@contextlib.contextmanager
def proxied(server: str) -> Iterator[ObjectProxy]:
    """Run a proxy in a thread of its own, so that tests may wait for processes that talk to it."""
    proxy = ObjectProxy(server)
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", proxy.answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="object-proxy")
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
