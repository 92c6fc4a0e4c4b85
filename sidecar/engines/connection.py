"""The one place that opens connections to an engine, and the words for everything that can go wrong on them.

What an answer means for an engine is not decided here.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sidecar.engines.encoding import AT_ONCE, payload_of
from sidecar.engines.protocol import HealthState

#: Longest answer read from any endpoint that isn't a stream of text. Bytes.
BODY_LIMIT = 16 * 1024 * 1024
#: Streams whose events are read in one turn of the loop. A step of an engine is an event for every stream at once, and
#: 512 of them take 50 ms to read; what else waits for the loop gets its turn in between.
READ_AT_ONCE = 32
#: Connections that are opened at the same time. Each is followed by writing a request's head, half a millisecond, and a
#: server accepts a hundred at once.
OPENED_AT_ONCE = 16
#: Deadline of the handshake that finds out whether a silent port speaks TLS. Seconds.
TLS_PROBE_S = 1.0
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EACCES}


class UnansweredError(Exception):
    """No usable HTTP answer came; `state` says why, the message is a sentence for people."""

    def __init__(self, state: HealthState, sentence: str, *, incomplete: bool = False) -> None:
        super().__init__(sentence)
        self.state: HealthState = state
        self.sentence = sentence
        self.incomplete = incomplete


@dataclass(frozen=True, slots=True)
class Upload:
    """A file sent with the fields of a form: its field, name, media type and content."""

    field: str
    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole HTTP answer."""

    status: int
    body: bytes
    new_connection: bool


class _FewAtATime(aiohttp.TCPConnector):
    """Opens any number of connections, `OPENED_AT_ONCE` at the same time."""

    def __init__(self, **given: Any) -> None:
        super().__init__(limit=0, force_close=True, **given)
        self._gate = asyncio.Semaphore(OPENED_AT_ONCE)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: Any, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        async with self._gate:
            return await super().connect(req, traces, timeout)


class Connection:
    """Talk HTTP to one engine: a connection kept for health checks, and one more for each other request.

    Requests don't share connections, so that none is lost on one which the engine closes at the same moment
    (uvicorn ends idle ones after 5 s), cancelling one closes its connection, and any number can run at once.
    """

    def __init__(self, url: str, api_key: Callable[[], str | None]) -> None:
        """Take the URL without a path, and a callable that gives the key or None and never raises."""
        self.url = url.rstrip("/")
        self._key = api_key
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.reading = asyncio.Semaphore(READ_AT_ONCE)

    async def get(self, path: str, *, timeout_s: float, key: bool = False, kept: bool = False) -> Reply:
        """Read a path within `timeout_s` seconds. Raises UnansweredError."""
        return await self._whole("GET", path, timeout_s=timeout_s, key=key, kept=kept)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        timeout_s: float,
        key: bool = False,
        headers: Mapping[str, str] = MappingProxyType({}),
        upload: Upload | None = None,
    ) -> Reply:
        """Post JSON, or a form with a file, and read the whole answer within `timeout_s` seconds.

        Raises UnansweredError.
        """
        content = self._json(body) if upload is None else _form(body, upload)
        return await self._whole("POST", path, timeout_s=timeout_s, key=key, kept=False, content=content, extra=headers)

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post JSON with the API key and give the open answer. Raises UnansweredError; has no deadline."""
        content = self._json(body)
        async with self._open("POST", path, key=True, kept=False, content=content, extra=headers) as (response, _):
            yield response

    async def close(self) -> None:
        """Close all connections."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    async def _whole(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        key: bool,
        kept: bool,
        content: Mapping[str, Any] = MappingProxyType({}),
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> Reply:
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._open(method, path, key=key, kept=kept, content=content, extra=extra) as (response, trace),
            ):
                return Reply(response.status, await read_limited(response), trace.new)
        except TimeoutError:
            sentence = f"{self.url}{path} did not answer within {timeout_s:g} s."
            raise UnansweredError("timed_out", sentence) from None

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, *, key: bool, kept: bool, content: Mapping[str, Any], extra: Mapping[str, str]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, SimpleNamespace]]:
        secret = "".join((self._key() or "").split()) if key else ""
        trace = SimpleNamespace(new=False)
        try:
            async with self._session(kept).request(
                method,
                self.url + path,
                allow_redirects=False,
                trace_request_ctx=trace,
                headers={**extra, **({"Authorization": f"Bearer {secret}"} if secret else {})},
                **content,
            ) as response:
                yield response, trace
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            found = _unanswered(self.url, error)
            suspicious = found.state in ("reset", "not_an_engine") and not found.incomplete
            if suspicious and await self._speaks_tls():
                sentence = f"{self.url} speaks TLS: use https:// in WARMUP_ENGINE_URL."
                found = UnansweredError("not_an_engine", sentence)
            raise found from error

    async def _speaks_tls(self) -> bool:
        """Try a handshake with a port that answers plain HTTP with garbage or by closing."""
        address = urlsplit(self.url)
        if address.scheme == "https":
            return False
        try:
            async with asyncio.timeout(TLS_PROBE_S):
                _, writer = await asyncio.open_connection(address.hostname, address.port or 80, ssl=_unverified())
        except (OSError, TimeoutError, ValueError):
            return False
        writer.transport.abort()
        return True

    def _json(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"data": payload_of(body, self._turns)}

    def _session(self, kept: bool) -> aiohttp.ClientSession:
        """Make sessions when the first request needs them: they bind to the running loop."""
        if kept not in self._sessions:
            verify = _unverified() if _is_loopback(self.url) else True
            one = functools.partial(aiohttp.TCPConnector, limit=1, keepalive_timeout=60)
            connector = (one if kept else _FewAtATime)(ssl=verify)
            traces = aiohttp.TraceConfig()
            traces.on_connection_create_end.append(_note_new_connection)
            self._sessions[kept] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[traces],
            )
        return self._sessions[kept]


def _form(body: Mapping[str, Any], upload: Upload) -> Mapping[str, Any]:
    """Give a form with a file as aiohttp takes it."""
    form = aiohttp.FormData({name: str(value) for name, value in body.items()})
    form.add_field(upload.field, upload.content, filename=upload.name, content_type=upload.media_type)
    return {"data": form}


async def _note_new_connection(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.new = True


def _is_loopback(url: str) -> bool:
    """Say whether the engine shares our network namespace, where certificates carry names that don't fit."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def read_limited(response: aiohttp.ClientResponse) -> bytes:
    """Read a whole answer of at most BODY_LIMIT bytes. Raises UnansweredError beyond that."""
    parts: list[bytes] = []
    held = 0
    async for chunk in response.content.iter_any():
        held += len(chunk)
        if held > BODY_LIMIT:
            sentence = f"{response.url} sent more than {BODY_LIMIT} bytes, which no engine does."
            raise UnansweredError("not_an_engine", sentence)
        parts.append(chunk)
    return b"".join(parts)


def _unanswered(url: str, error: Exception) -> UnansweredError:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = error.certificate_error
        return UnansweredError("not_an_engine", f"The certificate of {url} can't be verified: {why}.")
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        sentence = f"{url} does not speak TLS: use http:// in WARMUP_ENGINE_URL."
        return UnansweredError("not_an_engine", sentence)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return UnansweredError("unreachable", f"The host of {url} has no address; correct WARMUP_ENGINE_URL.")
    if isinstance(error, aiohttp.ClientPayloadError):
        sentence = f"{url} closed the connection in the middle of its answer."
        return UnansweredError("reset", sentence, incomplete=True)
    if isinstance(error, aiohttp.ClientResponseError | ValueError):
        return UnansweredError(
            "not_an_engine", f"{url} does not answer in HTTP; point WARMUP_ENGINE_URL at the engine's port."
        )
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ECONNREFUSED:
        return UnansweredError("refused", f"Nothing listens on {url}.")
    if number in _UNREACHABLE:
        return UnansweredError("unreachable", f"{url} can't be reached from here ({error}).")
    if isinstance(error, aiohttp.ClientConnectorError) and number != errno.ECONNRESET:
        return UnansweredError("unreachable", f"{url} can't be connected to ({error}).")
    return UnansweredError("reset", f"{url} closed the connection without an answer.")
