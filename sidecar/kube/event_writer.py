"""Writes Events: at most so many, the same ones counted instead of repeated, those that wait told as one.

What is worth an Event is decided by whoever calls `announce`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from sidecar.errors import KubernetesConflict, KubernetesError, KubernetesForbidden, KubernetesNotFound, NotInKubernetes
from sidecar.kube import events
from sidecar.kube.api import STRATEGIC, Call
from sidecar.kube.budget import Purse
from sidecar.kube.events import Reason
from sidecar.kube.own_pod import OwnPod
from sidecar.kube.stamps import microseconds

#: Within this time the same note is counted on the Event that is there; Events live for an hour by default.
SERIES_S = 600.0
#: An Event that can't be written in so many tries is dropped: it is in the log and in /status, too.
TRIES = 4
RETRY_S = 2.0
#: Without the right, or without an API server, nothing is tried for so long.
REST_S = 300.0


@dataclass
class _Waiting:
    note: str
    at: float
    count: int = 1
    # One name for all tries: an answer that was lost must not make a second Event.
    name: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass
class _Written:
    name: str
    note: str
    at: float
    count: int


class EventWriter:
    """Write one pod's Events. `clock` gives monotonic seconds, `wall` seconds since the epoch.

    `trouble` hears a sentence when Events can't be written and whether a right is missing, and an empty one when they
    can be written again.
    """

    def __init__(
        self,
        pod: OwnPod,
        purse: Purse,
        trouble: Callable[[str, bool], None],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._pod = pod
        self._purse = purse
        self._trouble = trouble
        self._clock = clock
        self._wall = wall
        self._news = asyncio.Event()
        self._waiting: dict[Reason, _Waiting] = {}
        self._written: dict[Reason, _Written] = {}

    def announce(self, reason: Reason, note: str) -> None:
        """Hand in an Event; never waits. Of one reason the latest note is kept and the others are counted."""
        found = self._waiting.get(reason)
        if found is None:
            self._waiting[reason] = _Waiting(note, self._wall())
        else:
            found.note, found.at, found.count = note, self._wall(), found.count + 1
        self._news.set()

    async def run(self) -> None:
        """Write what waits, as far as the purse allows, until cancelled."""
        while True:
            self._news.clear()
            if not self._waiting:
                await self._news.wait()
                continue
            if not self._purse.take():
                # Being ready opens the purse, so it is looked at more often than it says.
                await asyncio.sleep(min(self._purse.wait_s() + 0.05, 5.0))
                continue
            reason = next(iter(self._waiting))
            await self._deliver(reason, self._waiting.pop(reason))

    async def _deliver(self, reason: Reason, waiting: _Waiting) -> None:
        for attempt in range(TRIES):
            try:
                await self._send(reason, waiting)
                self._trouble("", False)
                return
            except (KubernetesForbidden, NotInKubernetes) as error:
                self._trouble(f"Events can't be written: {error}", isinstance(error, KubernetesForbidden))
                await asyncio.sleep(REST_S)
                return
            except KubernetesError as error:
                last = error
                await asyncio.sleep(RETRY_S * 2**attempt)
        self._trouble(f"Events can't be written: {last}", False)

    async def _send(self, reason: Reason, waiting: _Waiting) -> None:
        account = self._pod.api.account
        folder = f"/apis/{events.API}/namespaces/{quote(account.namespace, safe='')}/events"
        at = microseconds(waiting.at)
        known = self._written.get(reason)
        if known and known.note == waiting.note and self._clock() - known.at < SERIES_S:
            count = known.count + waiting.count
            try:
                body = events.repeat(count, at)
                await self._pod.api.ask(Call("patch event", "PATCH", f"{folder}/{known.name}", body, STRATEGIC))
                known.count = count
                return
            except KubernetesNotFound:
                self._written.pop(reason, None)
        if not self._pod.uid:
            await self._learn_uid()
        note = waiting.note if waiting.count == 1 else f"{waiting.note} ({waiting.count} such events)"
        name = f"{account.name[:200]}.{waiting.name}"
        about = events.Regarding(account.namespace, account.name, self._pod.uid)
        with suppress(KubernetesConflict):
            await self._pod.api.ask(Call("create event", "POST", folder, events.create(reason, note, about, name, at)))
        self._written[reason] = _Written(name, waiting.note, self._clock(), waiting.count)

    async def _learn_uid(self) -> None:
        try:
            await self._pod.read()
        except KubernetesForbidden:
            # `kubectl describe` finds Events by uid; without the right to read the pod they are in the namespace only.
            return
