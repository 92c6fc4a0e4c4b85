"""A headless Chromium driven through its DevTools protocol, for tests of the status page.

No page is judged here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
#: Seconds Chromium has for starting, and for one answer; test machines are busy.
START_S, ANSWER_S = 60.0, 30.0


def executable() -> str | None:
    """Find Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Tab:
    """One page. `requests` are the addresses it asked for, `complaints` what the browser logged about it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_S):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == number:
                    assert "error" not in message, message
                    result: dict[str, Any] = message["result"]
                    return result
                self._events.append(message)

    async def until(self, method: str) -> None:
        """Wait for an event of the DevTools protocol."""
        async with asyncio.timeout(ANSWER_S):
            while method not in [event.get("method") for event in self._events]:
                self._events.append(await self._socket.receive_json())

    async def open(self, address: str, width: int = 1280, height: int = 1600, dark: bool = False) -> None:
        """Load a page at a size, in one of the two colour schemes; what was noted about an earlier one is
        forgotten.
        """
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        await self.call("Page.navigate", url=address)
        await self.until("Page.loadEventFired")

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript in the page, from outside of its security policy."""
        result = (await self.call("Runtime.evaluate", expression=expression, returnByValue=True))["result"]
        assert result.get("subtype") != "error", result
        return result.get("value")

    async def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        taken = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(taken["data"]))

    @property
    def requests(self) -> list[str]:
        """List the addresses the page asked for, data URLs aside."""
        asked = [
            event["params"]["request"]["url"]
            for event in self._events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith("data:")]

    @property
    def complaints(self) -> list[str]:
        """List what the browser logged: violations of the security policy, failed requests, errors."""
        return [event["params"]["entry"]["text"] for event in self._events if event.get("method") == "Log.entryAdded"]


@contextlib.asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Tab]:
    """Start Chromium with a profile of its own, give its first tab, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Chromium leaves directories of its own in the temporary directory when it is killed.
            env={**os.environ, "TMPDIR": profile},
        )
        try:
            port = await _debugging_port(process)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                async with client.get("/json/list") as answer:
                    pages = [page for page in await answer.json(content_type=None) if page["type"] == "page"]
                async with client.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def _debugging_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(START_S):
        async for line in process.stderr:
            if b"DevTools listening on ws://127.0.0.1:" in line:
                return int(line.split(b"127.0.0.1:")[1].split(b"/")[0])
    raise AssertionError("Chromium ended without opening its DevTools port")
