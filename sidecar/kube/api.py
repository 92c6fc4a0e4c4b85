"""The API-server client: a few plain JSON calls with deadlines, each error typed; the only owner of `kubernetes`.

What is asked, and how often, is decided by the files beside this one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.errors import (
    KubernetesBusy,
    KubernetesConflict,
    KubernetesError,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnauthorized,
    KubernetesUnreachable,
    NotInKubernetes,
    WarmupError,
)
from sidecar.kube.account import Account

#: One call, its connection included. A healthy API server answers in milliseconds; SLO of Kubernetes: 1 s for one object.
CALL_S = 5.0
JSON = "application/json"
#: Lists are merged by their key; a JSON merge patch would wipe other controllers' conditions.
STRATEGIC = "application/strategic-merge-patch+json"

#: Kubernetes API conventions, "HTTP Status codes".
_ERRORS: Mapping[int, type[KubernetesError]] = {
    400: KubernetesRefused,
    401: KubernetesUnauthorized,
    403: KubernetesForbidden,
    404: KubernetesNotFound,
    409: KubernetesConflict,
    422: KubernetesRefused,
    429: KubernetesBusy,
}
#: Every call there is, as metrics name it.
CALLS = ("get pod", "patch condition", "create event", "patch event", "get node", "review rights", "get version")
OK = "ok"
#: How a call can end, as metrics name it.
OUTCOMES = (
    OK,
    *dict.fromkeys(error.outcome for error in _ERRORS.values()),
    KubernetesUnreachable.outcome,
    KubernetesError.outcome,
)


@dataclass(frozen=True)
class Call:
    """One call: `name` as metrics know it, method, path with its query, and a body."""

    name: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    content: str = JSON


class ApiServer:
    """Ask the API server. The library is imported at the first call, in a thread: it takes a second and some memory.

    `count` is told the name of each call and how it ended. Any loss of the connection drops the client, so that the
    next call reads certificates anew.
    """

    def __init__(
        self, account: Account, count: Callable[[str, str], None] = lambda _name, _outcome: None, call_s: float = CALL_S
    ) -> None:
        self.account = account
        self._count = count
        self._call_s = call_s
        self._client: Any = None
        self._lock = asyncio.Lock()

    async def ask(self, call: Call) -> dict[str, Any]:
        """Make one call and give the object that comes back. Raises KubernetesError or one below it.

        A token that is not accepted is read again and tried once more: the kubelet may just have replaced it.
        """
        token = self.account.token()
        try:
            return await self._once(call, token)
        except KubernetesUnauthorized:
            newer = self.account.token()
            if newer == token:
                raise
            return await self._once(call, newer)

    async def close(self) -> None:
        """Close the connection; a later call opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _once(self, call: Call, token: str) -> dict[str, Any]:
        outcome = KubernetesError.outcome
        try:
            status, text = await self._send(call, token)
            found = _object(call, status, text)
            outcome = OK
            return found
        except KubernetesError as error:
            outcome = error.outcome
            raise
        except asyncio.CancelledError:
            outcome = KubernetesUnreachable.outcome
            raise
        finally:
            self._count(call.name, outcome)

    async def _send(self, call: Call, token: str) -> tuple[int, str]:
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": call.content,
            "Accept": JSON,
            "User-Agent": "warmup-sidecar",
        }
        url = self.account.url + call.path
        try:
            # The first import is no fault of the API server, so it does not count.
            client = await self._connect()
            async with asyncio.timeout(self._call_s):
                response = await client.call_api(call.method, url, headers, dict(call.body) if call.body else None)
                data = await response.read()
        except TimeoutError as error:
            await self.close()
            raise KubernetesUnreachable(
                f"The API server at {self.account.url} did not answer within {self._call_s:g} s."
            ) from error
        except WarmupError:
            raise
        except Exception as error:  # aiohttp's, ssl's and the library's own errors have no common ancestor but this
            await self.close()
            raise KubernetesUnreachable(f"The API server at {self.account.url} can't be reached: {error}.") from error
        return int(response.status), bytes(data).decode("utf-8", "replace")

    async def _connect(self) -> Any:
        # Two first calls at once must not make two clients: one would never be closed.
        async with self._lock:
            if self._client is None:
                self._client = await asyncio.to_thread(_load, self.account)
            return self._client


def _load(account: Account) -> Any:
    """Make the library's client. In a thread for the import; its session is opened later, on the loop."""
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration

    try:
        settings = Configuration(
            host=account.url,
            ssl_ca_cert=str(account.certificate),
            # A proxy for downloads must not stand between the pod and its own cluster.
            client_session_kwargs={"trust_env": False},
        )
        return ApiClient(settings)
    except (OSError, ssl.SSLError) as error:
        raise NotInKubernetes(
            f"The API server's certificate {account.certificate} can't be read ({error}); mount kube-root-ca.crt there."
        ) from error


def _object(call: Call, status: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if 200 <= status < 300 and isinstance(found, dict):
        return found
    said = str(found.get("message") or "") if isinstance(found, dict) else " ".join(text.split())[:200]
    error = _ERRORS.get(status, KubernetesError)
    raise error(f"The API server answers {status} to {call.name}: {said or 'nothing'}")
