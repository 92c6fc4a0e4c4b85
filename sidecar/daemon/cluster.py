"""One daemon's dealings with Kubernetes: the parts of `kube/` that its settings ask for, made and joined to the pod.

With no such setting nothing here touches the network, and the client's library is never imported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sidecar.config import Settings
from sidecar.daemon.own_facts import Told
from sidecar.errors import KubernetesError, KubernetesForbidden
from sidecar.kube import events, facts, pod_checks, rights
from sidecar.kube.account import Account
from sidecar.kube.api import ApiServer
from sidecar.kube.budget import Purse
from sidecar.kube.condition import truth
from sidecar.kube.event_writer import EventWriter
from sidecar.kube.facts import NodeFacts, PodFacts
from sidecar.kube.gate_writer import GateWriter
from sidecar.kube.own_pod import OwnPod
from sidecar.lifecycle import Gate, Phase, Snapshot
from sidecar.logs import get_logger
from sidecar.supervisor.pod import Pod

#: How long facts are waited for, so that an API server that is just coming up costs no cache. Seconds.
FACTS_S = 20.0
#: Pause between two tries for facts, and between two looks at a pod that nobody else reads. Seconds.
AGAIN_S, LOOK_S = 2.0, 300.0
#: Of the two seconds in which a sidecar ends, this much is for the condition.
LAST_WORD_S = 0.7
#: Events at once, and seconds until there is leave for one more: a pod that flaps must not fill etcd.
EVENTS_AT_ONCE, EVENT_EVERY_S = 5, 60.0

_log = get_logger("kubernetes")


def account_of(settings: Settings, environment: Mapping[str, str], hostname: str) -> Account:
    """Give the identity towards the API server."""
    return Account(
        directory=settings.service_account,
        host=environment.get("KUBERNETES_SERVICE_HOST", ""),
        port=environment.get("KUBERNETES_SERVICE_PORT", ""),
        pod_name=settings.pod_name,
        pod_namespace=settings.pod_namespace,
        hostname=hostname,
    )


class Cluster:
    """What a daemon has to do with Kubernetes. `asked` is false when no setting asks for anything."""

    def __init__(
        self, pod: Pod, account: Account, jitter: Callable[[], float], group: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        settings = pod.settings
        self._pod = pod
        self._features = rights.wanted(settings)
        self._notices: dict[str, tuple[str, bool]] = {}
        self._concerns: tuple[str, ...] = ()
        self._image = ""
        self._group = group
        self.ordinary_init: Callable[[], None] = lambda: None
        self._own = OwnPod(ApiServer(account, pod.metrics.count_kubernetes_call), self._seen)
        purse = Purse(EVENTS_AT_ONCE, EVENT_EVERY_S, time.monotonic)
        self._purse = purse
        self._gate = (
            GateWriter(self._own, purse, self, clock=time.monotonic, wall=time.time, jitter=jitter)
            if settings.readiness_gate
            else None
        )
        self._events = (
            EventWriter(
                self._own,
                purse,
                lambda sentence, missing: self._notice("events", sentence, missing),
                clock=time.monotonic,
                wall=time.time,
            )
            if settings.events
            else None
        )
        if self.asked:
            pod.on_step, pod.announce, pod.veto = self.stepped, self.announce, self.veto

    @property
    def asked(self) -> bool:
        """Say whether any setting asks for something of the API server."""
        return bool(self._features)

    def jobs(self) -> list[tuple[str, Callable[[], Any]]]:
        """List the root tasks by name: none when nothing is asked for."""
        found: list[tuple[str, Callable[[], Any]]] = []
        if self._gate is not None:
            found.append(("readiness gate", self._gate.run))
        elif self.asked:
            found.append(("own pod", self._look))
        if self._events is not None:
            found.append(("events", self._events.run))
        return found

    # --- what the supervisor tells ------------------------------------------------------------------------------------

    def stepped(self, before: Snapshot, after: Snapshot, gate: Gate) -> None:
        """Hear of one step of the state machine; never waits."""
        if self._gate is not None:
            self._gate.tell(truth(after, gate, gate.sentence))
        if after.phase is before.phase and after.suspension is before.suspension:
            return
        was_ready = before.phase is Phase.READY
        if gate.open and not was_ready:
            self._purse.open()
            self.announce(events.READY_BY_POLICY if after.unproven else events.ENGINE_WARM, gate.sentence)
        elif was_ready and not gate.open and after.phase is not Phase.STOPPED and not after.drained_by:
            self.announce(events.WITHDRAWN, gate.sentence)
        elif after.phase is Phase.SUSPENDED:
            self.announce(events.HELD, gate.sentence)

    def announce(self, reason: events.Reason, sentence: str) -> None:
        """Hand in an Event."""
        if self._events is not None:
            self._events.announce(reason, sentence)

    async def veto(self) -> str:
        """Say why nothing may be published: the image that runs is another than the key says. An absent API server has no say."""
        if not self._image:
            return ""
        try:
            await self._own.read()
        except KubernetesError as error:
            _log.info("the image that runs is not known before this publish", why=str(error))
        return facts.veto(self._own.latest, self._image)

    def use_image(self, known: Mapping[str, Any]) -> None:
        """Note the image whose caches are restored and published, from the facts."""
        image = known.get("image")
        self._image = str(image.get("digest") or "") if isinstance(image, Mapping) else ""

    # --- facts --------------------------------------------------------------------------------------------------------

    async def told(self) -> Told:
        """Ask Kubernetes for the facts that the settings want from it."""
        settings = self._pod.settings
        wanted = settings.pod_facts or settings.node_facts
        pod = await self._pod_facts() if wanted else None
        return Told(pod, await self._node_facts() if settings.node_facts else None, self._group)

    async def _pod_facts(self) -> PodFacts | None:
        """Read the Pod's facts; None when it can't be read in time, or shows no engine."""
        setting = "pod_facts" if self._pod.settings.pod_facts else "node_facts"
        read = await self._patiently(setting, self._own.read)
        return None if read is None else facts.pod_facts(read)

    async def _node_facts(self) -> NodeFacts | None:
        """Read the Node's facts; None when it can't be read in time."""
        read = await self._patiently("node_facts", self._own.node)
        return None if read is None else facts.node_facts(read)

    async def _patiently(self, setting: str, read: Callable[[], Any]) -> Mapping[str, Any] | None:
        ends = time.monotonic() + FACTS_S
        while True:
            try:
                found: Mapping[str, Any] = await read()
            except KubernetesError as error:
                missing = isinstance(error, KubernetesForbidden)
                self._notice(setting, f"WARMUP_{setting.upper()} is on and can't be had: {error}", missing)
                if missing or time.monotonic() + AGAIN_S > ends:
                    return None
                await asyncio.sleep(AGAIN_S)
                continue
            self._notice(setting, "", False)
            return found

    # --- what the parts of kube/ report -------------------------------------------------------------------------------

    def trouble(self, sentence: str, missing_right: bool) -> None:
        """Take what keeps Kubernetes from knowing the truth."""
        self._notice("readiness_gate", sentence, missing_right)

    def in_step(self, status: str, in_step: bool) -> None:
        """Take whether Kubernetes knows the status."""
        self._pod.metrics.readiness_gate(status, in_step)

    def _seen(self, pod: Mapping[str, Any]) -> None:
        """Take one reading of the own Pod: tell once what is wrong with it."""
        found = pod_checks.concerns(pod, self._pod.settings)
        said = tuple(each.sentence for each in found)
        for each in found:
            if each.sentence not in self._concerns:
                if each.level == "problem":
                    self._pod.degrade(each.sentence)
                else:
                    self._pod.board.tell(each.sentence, "warning")
        for gone in set(self._concerns) - set(said):
            if gone in self._pod.board.degraded:
                self._pod.mended(gone, "The pod is as it should be now.")
        self._concerns = said
        if any(each.fatal for each in found):
            self.ordinary_init()

    def _notice(self, feature: str, sentence: str, missing_right: bool) -> None:
        """Tell a trouble of one feature, take it back when there is none any more; its wording may vary meanwhile."""
        before, lacked = self._notices.get(feature, ("", False))
        if bool(sentence) == bool(before) and missing_right == lacked:
            return
        self._notices[feature] = (sentence, missing_right)
        self._pod.metrics.kubernetes_right(feature, missing_right)
        words = feature.replace("_", " ")
        if before:
            state = "something else is wrong" if sentence else "all is well"
            self._pod.mended(before, f"Kubernetes, {words}: {state} now.")
        if sentence:
            self._pod.degrade(sentence)

    async def _look(self) -> None:
        """Read the own Pod now and then, where the readiness gate doesn't."""
        while True:
            try:
                await self._own.read()
            except KubernetesError as error:
                _log.info("the own Pod can't be read", why=str(error))
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """Say the last word and close the connection."""
        if self._gate is not None:
            await self._gate.last_word(LAST_WORD_S)
        await self._own.api.close()
