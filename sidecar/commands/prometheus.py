"""Questions to a Prometheus through its HTTP API (/api/v1/query, /api/v1/query_range), answered as numbers by labels.

What is asked is known to the command. Source: Prometheus documentation, "HTTP API", 2.x and 3.x.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from sidecar.errors import NotSo, PrometheusUnavailable, UsageError

#: A week of a large fleet is computed in seconds; Prometheus itself gives up after two minutes by default.
TIMEOUT_S = 130.0
#: More than this is no answer to a question about distributions. Bytes.
LARGEST_BYTES = 64 << 20
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (365 * 86400, 7 * 86400, 86400, 3600, 60, 1)

Series = list[tuple[Mapping[str, str], float]]


def seconds_of(duration: str) -> int:
    """Give the seconds of a duration as Prometheus writes it, such as `7d` or `1h30m`. Raises UsageError."""
    found = _DURATION.fullmatch(duration)
    total = sum(int(part or 0) * unit for part, unit in zip(found.groups(), _SECONDS, strict=True)) if found else 0
    if not 0 < total <= 10 * 365 * 86400:
        raise UsageError(f"--query-window {duration} is no duration; give one such as 7d, 12h or 1h30m.")
    return total


def selected(name: str, selector: str, more: str = "") -> str:
    """Write a series with matchers: those of the user, with or without braces, and ours."""
    inside = selector.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    matchers = ", ".join(each for each in (inside, more) if each)
    return f"{name}{{{matchers}}}"


class Prometheus:
    """A client of one server; use it with `async with`. `token` is sent as a bearer token.

    Raises PrometheusUnavailable when nothing that can be used answers and NotSo when a question is refused.
    """

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self.url = address_of(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._token = bool(token)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def instant(self, query: str) -> Series:
        """Ask for now; values that are no numbers are left out."""
        found = await self._ask("query", {"query": query})
        return [(labels, value) for labels, points in _series(found, "vector") for value in points]

    async def over(
        self, query: str, start: float, end: float, step: float
    ) -> list[tuple[Mapping[str, str], list[float]]]:
        """Ask for a stretch of time, in seconds since the epoch, every `step` seconds."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return list(_series(await self._ask("query_range", {"query": query, **times}), "matrix"))

    async def _ask(self, path: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        assert self._session is not None, "Prometheus is used with `async with`"
        try:
            # POST: a query with many matchers is longer than some proxies let a URL be.
            async with self._session.post(f"{self.url}/api/v1/{path}", data=form, allow_redirects=False) as answer:
                status, body = answer.status, await answer.content.read(1)
                while len(body) <= LARGEST_BYTES and (more := await answer.content.readany()):
                    body += more
        except TimeoutError as error:
            raise PrometheusUnavailable(
                f"{self.url} did not answer within {self._timeout_s:g} s; ask for less with --query-window or --selector."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise PrometheusUnavailable(
                f"No Prometheus answers at {self.url} ({error}); check --prometheus."
            ) from error
        if len(body) > LARGEST_BYTES:
            raise NotSo(f"{self.url} answers with more than {LARGEST_BYTES >> 20} MiB; narrow it with --selector.")
        return self._read(status, body)

    def _read(self, status: int, body: bytes) -> Mapping[str, Any]:
        if status in (401, 403):
            what = "refuses this bearer token" if self._token else "wants authentication"
            raise NotSo(f"{self.url} {what} (HTTP {status}); give a file with one that may query: --bearer-token-file.")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and found.get("status") == "error":
            raise NotSo(f"{self.url} refuses the query: {found.get('error')}. Check --selector and --query-window.")
        if status != 200 or not isinstance(found, dict) or not isinstance(found.get("data"), dict):
            raise PrometheusUnavailable(
                f"{self.url} answers HTTP {status} and not as Prometheus's API does; check --prometheus. Where it is served "
                "below a path, give that too."
            )
        data: Mapping[str, Any] = found["data"]
        return data


def address_of(url: str) -> str:
    """Take the address of a Prometheus, with a path where it has one. Raises UsageError."""
    plain = url.strip().rstrip("/").removesuffix("/api/v1").rstrip("/")
    try:
        parts = urlsplit(plain)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        usable = usable and not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            "--prometheus is not usable: give scheme, host and port, and a path where it has one, as in "
            "http://prometheus.monitoring:9090."
        )
    return plain


def _series(data: Mapping[str, Any], kind: str) -> Iterator[tuple[Mapping[str, str], list[float]]]:
    """Read a result; what isn't shaped as documented is left out."""
    result = data.get("result")
    if data.get("resultType") != kind or not isinstance(result, list):
        raise PrometheusUnavailable(f"Prometheus answers with no {kind}; check --prometheus.")
    for each in result:
        points = each.get("values", [each.get("value")]) if isinstance(each, dict) else []
        labels = each.get("metric") if isinstance(each, dict) else None
        if isinstance(labels, dict) and isinstance(points, list):
            yield labels, [value for point in points if (value := _number(point)) is not None]


def _number(point: Any) -> float | None:
    try:
        value = float(point[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return None
    return value if math.isfinite(value) else None
