"""A multi-pod engine as one of its workers sees it: what the leader's sidecar says of readiness is the engine's health.

A worker's engine process serves no HTTP. What its own container does is told by the launcher, not here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp

from sidecar.engines.protocol import (
    EMPTY,
    Completion,
    CompletionRequest,
    EngineFacts,
    EngineStats,
    Health,
    HealthState,
    Hints,
)
from sidecar.errors import EngineError

#: The leader's sidecar answers from memory; beyond this it is stuck, or the network is.
PROBE_S = 2.0
STATUS_S = 3.0
#: A status with a hundred events and steps takes a hundredth of this.
STATUS_BYTES = 4 << 20
#: A sentence of /readyz is a few hundred characters.
SENTENCE_LIMIT = 4096


class LeaderEngine:
    """Follow the leader's sidecar at `url`. `own` says why this worker's own engine can't count yet; empty: it can.

    `clock` gives monotonic seconds. `sentence` and `flagged` are what the leader said last.
    """

    name = "leader"

    def __init__(self, url: str, clock: Callable[[], float], own: Callable[[], str] = lambda: "") -> None:
        self._url = url
        self._clock = clock
        self._own = own
        self._session: aiohttp.ClientSession | None = None
        self._seen = False
        self.sentence = ""
        self.flagged = False

    async def health(self) -> Health:
        """Ask the leader's /readyz: 200 is up, everything else is not; never raises."""
        if waits := self._own():
            return self._absent("refused", waits)
        began = self._clock()
        try:
            async with self._open().get(f"{self._url}/readyz", timeout=_within(PROBE_S)) as answer:
                status = answer.status
                self.sentence = (await answer.content.read(SENTENCE_LIMIT)).decode("utf-8", "replace").strip()
        except aiohttp.ConnectionTimeoutError:
            return self._absent("unreachable", f"Nothing answers where the leader's sidecar should be ({self._url}).")
        except TimeoutError:
            # It accepts connections: that is load, until it lasts.
            return Health("timed_out", None, PROBE_S, f"The leader's sidecar at {self._url} is slow to answer.")
        except (aiohttp.ClientError, OSError) as error:
            return self._absent("refused", f"The leader's sidecar at {self._url} can't be reached: {error}.")
        if status == 200:
            fresh, self._seen = not self._seen, True
            return Health("up", status, self._clock() - began, f"The leader at {self._url} is ready.", fresh)
        if status == 503:
            return self._absent("refused", f"The leader at {self._url} is not ready: {self.sentence}", status)
        detail = f"{self._url}/readyz answers {status}, so no sidecar of ours is there."
        return self._absent("not_an_engine", detail, status)

    async def facts(self) -> EngineFacts:
        """Say who is followed; a worker has nothing to be asked for."""
        return EngineFacts("leader", None, self._url)

    async def adapters(self) -> tuple[str, ...]:
        """Name none: whoever loads adapters tells the leader, and its sidecar warms them."""
        return ()

    async def stats(self) -> EngineStats:
        """Read which engine process the leader has, so that another one is noticed. Raises EngineError."""
        status = await self._status()
        engine = status.get("engine")
        identity = engine.get("identity") if isinstance(engine, dict) else None
        self.flagged = bool(status.get("flagged"))
        return EngineStats(identity=f"{self._url} {identity}" if identity else None)

    async def complete(self, request: CompletionRequest) -> Completion:
        """Refuse: only the leader is sent traffic."""
        said = f"a worker is sent no traffic, so not this of {request.max_tokens} tokens"
        return Completion(False, None, None, 0.0, error=said, error_kind="refused")

    def use_hints(self, hints: Hints = EMPTY) -> None:
        """Take no hints: nothing is planned here."""

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _status(self) -> dict[str, Any]:
        try:
            async with self._open().get(f"{self._url}/status", timeout=_within(STATUS_S)) as answer:
                text = await answer.content.read(STATUS_BYTES + 1)
                while len(text) <= STATUS_BYTES and (more := await answer.content.read(STATUS_BYTES)):
                    text += more
                if len(text) > STATUS_BYTES:
                    raise EngineError(f"The leader's status at {self._url} is longer than {STATUS_BYTES} bytes.")
                found = json.loads(text)
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise EngineError(f"The leader's status at {self._url} can't be read: {error}.") from error
        if not isinstance(found, dict):
            raise EngineError(f"The leader's status at {self._url} is no JSON object.")
        return found

    def _absent(self, state: HealthState, detail: str, status: int | None = None) -> Health:
        self._seen = False
        return Health(state, status, 0.0, detail)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(trust_env=False)
        return self._session


def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=seconds * 0.75)
