"""Keeps the pod condition in step with the gate: latest truth first, few writes, read again, tried again, never given up.

What the truth is comes in through `tell`; nothing here can hold traffic or the loop up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sidecar.errors import (
    KubernetesConflict,
    KubernetesError,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnreachable,
    NotInKubernetes,
)
from sidecar.kube import condition
from sidecar.kube.api import STRATEGIC, Call
from sidecar.kube.budget import Purse
from sidecar.kube.condition import BIRTH, Truth
from sidecar.kube.own_pod import OwnPod
from sidecar.kube.stamps import seconds

#: When the pod is read again after a write: soon enough to see a lost one, then when the kubelet should have followed.
LOOKS_S = (2.0, 10.0, 30.0)
#: A reason that changes while the status stays is news for people only.
REFRESH_S = 30.0
#: Another sentence of the same reason is hardly news.
REWORD_S = 300.0
#: The kubelet takes a changed condition up within a second; after this long it has missed it, and is nudged. One that
#: doesn't listen is nudged at ever longer intervals, up to 1280 s.
LAG_S, MOST_NUDGES = 10.0, 7
#: First and longest pause after a call that failed, each doubled.
RETRY_S, LONGEST_RETRY_S = 0.5, 30.0
#: What is left of a pause by the rounding of clocks is not waited for turn by turn.
LEAST_PAUSE_S = 0.01
#: A write that was overtaken by another status gets this long to end before it is given up.
OVERTAKEN_S = 0.3
#: So many failures in a row are told as a notice; fewer are the network's everyday life.
TELL_AFTER = 3


class Reporting(Protocol):
    """Who hears how the condition fares."""

    def trouble(self, sentence: str, missing_right: bool) -> None:
        """Note what keeps Kubernetes from knowing the truth; empty: nothing does any more."""

    def in_step(self, status: str, in_step: bool) -> None:
        """Note the status that Kubernetes should know, and whether it was told."""


class GateWriter:
    """Write one pod's condition. `clock` gives monotonic seconds, `wall` seconds since the epoch, `jitter` 0 to 1."""

    def __init__(
        self,
        pod: OwnPod,
        purse: Purse,
        reporting: Reporting,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._pod = pod
        self._purse = purse
        self._reporting = reporting
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._news = asyncio.Event()
        self.wanted = BIRTH
        self.written: Truth | None = None
        self._changed_at = self._now()
        self._tried_at = self._written_at = -REWORD_S
        self._retry_at = self._look_at = 0.0
        self._looks = self._failures = self._nudges = 0

    def tell(self, truth: Truth) -> None:
        """Take the newest truth; never waits."""
        if truth == self.wanted:
            return
        if truth.status != self.wanted.status:
            self._changed_at = self._now()
            # Worth a try of its own, whatever pause the last failure asked for.
            self._retry_at = min(self._retry_at, self._tried_at + 1.0)
        if truth.status == "True":
            self._purse.open()
        self.wanted = truth
        self._reporting.in_step(truth.status, self.in_step)
        self._news.set()

    @property
    def in_step(self) -> bool:
        """Say whether Kubernetes was told the status that holds."""
        return self.written is not None and self.written.status == self.wanted.status

    async def run(self) -> None:
        """Write, look and write again until cancelled."""
        while True:
            self._news.clear()
            pause = self._pause()
            if pause <= 0:
                await self._turn()
                continue
            try:
                async with asyncio.timeout(max(pause, LEAST_PAUSE_S)):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def last_word(self, deadline_s: float) -> None:
        """Write what is not written yet, once; what doesn't get through in time is left to the kubelet."""
        if self.in_step:
            return
        try:
            async with asyncio.timeout(deadline_s):
                await self._patch(self.wanted)
        except (TimeoutError, KubernetesError):
            return

    # --- when ---------------------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        """Give the seconds until something is to be done; 0 or less: now."""
        now = self._clock()
        due = min(self._write_due(now), self._look_at if self.written is not None else now + LONGEST_RETRY_S)
        return max(due, self._retry_at) - now

    def _write_due(self, now: float) -> float:
        written, wanted = self.written, self.wanted
        if written is None or written.status != wanted.status:
            return now
        if written == wanted:
            return now + REWORD_S
        if written.reason != wanted.reason and wanted.held:
            return now
        since = REFRESH_S if written.reason != wanted.reason else REWORD_S
        return max(self._written_at + since, now + self._purse.wait_s())

    async def _turn(self) -> None:
        now = self._clock()
        self._tried_at = now
        due = self._write_due(now) <= now
        try:
            if due:
                await self._write(self.wanted)
            else:
                await self._look()
            self._failures, self._retry_at = 0, 0.0
            self._reporting.trouble("", False)
        except KubernetesError as error:
            self._failed(error)
        self._reporting.in_step(self.wanted.status, self.in_step)

    def _failed(self, error: KubernetesError) -> None:
        self._failures += 1
        pause = min(RETRY_S * 2 ** min(self._failures - 1, 16), LONGEST_RETRY_S)
        if isinstance(error, KubernetesForbidden | NotInKubernetes):
            pause = LONGEST_RETRY_S
        if isinstance(error, KubernetesConflict | KubernetesNotFound | KubernetesRefused):
            # Another pod may have the name by now (a wrong uid is 422 or 409); the next try reads it before it writes.
            self._pod.forget()
        self._retry_at = self._clock() + pause * (0.8 + 0.4 * self._jitter())
        if self._failures >= TELL_AFTER or pause == LONGEST_RETRY_S:
            self._reporting.trouble(_advice(error), isinstance(error, KubernetesForbidden))

    # --- what ---------------------------------------------------------------------------------------------------------

    async def _write(self, truth: Truth) -> None:
        """Write one truth; one that is overtaken by another status is given up, so that it can't hold that up."""
        kept = self.written is not None and self.written.status == truth.status and not truth.held
        if kept and not self._purse.take():
            return
        task = asyncio.create_task(self._patch(truth), name="pod condition")
        try:
            while not task.done():
                if self.wanted.status != truth.status:
                    await asyncio.wait({task}, timeout=OVERTAKEN_S)
                    break
                self._news.clear()
                news = asyncio.create_task(self._news.wait())
                try:
                    await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
        finally:
            task.cancel()
            await asyncio.wait({task})
            if task.cancelled() or isinstance(task.exception(), KubernetesUnreachable):
                # It may have arrived all the same, or may yet: nobody knows what stands there now.
                self.written = None
        if not task.cancelled():
            task.result()
        self._news.set()

    async def _patch(self, truth: Truth) -> None:
        if not self._pod.uid and await self._learn(truth):
            self._take_down(truth)
            return
        body = condition.patch(truth, self._pod.uid, self._now(), self._changed_at)
        call = Call("patch condition", "PATCH", f"{self._pod.path}/status", body, STRATEGIC)
        patched = await self._pod.api.ask(call)
        self._take_down(truth)
        # An admission webhook may have had the last word.
        if not condition.agrees(patched, truth):
            self._look_at = self._clock() + RETRY_S

    def _take_down(self, truth: Truth) -> None:
        self.written, self._written_at = truth, self._clock()
        self._looks = 0
        self._look_at = self._clock() + LOOKS_S[0]

    async def _learn(self, truth: Truth) -> bool:
        """Read the pod before the first write; say whether it carries this truth already."""
        try:
            pod = await self._pod.read()
        except KubernetesForbidden:
            # Patching alone is enough for the gate; which pod it is for, the token says.
            self._pod.uid = self._pod.bound
            return False
        found = condition.read(pod)
        if found.get("status") == truth.status and found.get("lastTransitionTime"):
            self._changed_at = str(found["lastTransitionTime"])
        return condition.agrees(pod, truth) and found.get("message") == truth.message

    async def _look(self) -> None:
        """Read the pod again: what somebody overwrote is written anew, a kubelet that missed it is nudged."""
        self._looks += 1
        self._look_at = self._clock() + LOOKS_S[min(self._looks, len(LOOKS_S) - 1)]
        try:
            pod = await self._pod.read()
        except KubernetesForbidden:
            return
        written = self.written
        if written is None:
            return
        if not condition.agrees(pod, written):
            self.written = None
            return
        if not condition.lags(pod, written):
            self._nudges = 0
        elif self._clock() - self._written_at >= LAG_S * 2**self._nudges and self._purse.take():
            # A write that changes nothing wakes nobody; `lastProbeTime` is new each time.
            self._nudges = min(self._nudges + 1, MOST_NUDGES)
            await self._patch(self.wanted)

    def _now(self) -> str:
        return seconds(self._wall())


def _advice(error: KubernetesError) -> str:
    """Say what is wrong with the condition and what to do."""
    lead = f"Kubernetes is not told whether the pod is ready (condition {condition.CONDITION}): {error}"
    if isinstance(error, KubernetesForbidden):
        return f"{lead} The pod stays unready until its service account may `patch pods/status`; see k8s/README.md."
    if isinstance(error, KubernetesNotFound):
        return f"{lead} Set WARMUP_POD_NAME and WARMUP_POD_NAMESPACE by the downward API."
    return lead if isinstance(error, NotInKubernetes) else f"{lead} It is tried again and again."
