"""What this project relies on of an API server, held against the fake and against a real kube-apiserver with etcd.

A behaviour that the fake has and the real one has not would hide the worst bugs of all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import (
    KubernetesConflict,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnauthorized,
)
from sidecar.kube import condition, events, facts, review, rights
from sidecar.kube.account import Account
from sidecar.kube.api import STRATEGIC, ApiServer, Call
from sidecar.kube.budget import Purse
from sidecar.kube.condition import CONDITION, Truth
from sidecar.kube.event_writer import EventWriter
from sidecar.kube.gate_writer import GateWriter
from sidecar.kube.own_pod import OwnPod
from sidecar.kube.rights import FEATURES
from tests.kubernetes import apiserver as k8s

GATE, EVENTS, POD_FACTS, NODE_FACTS = FEATURES
WARM = Truth("True", "Warm", "Nothing is left to compile.")
COLD = Truth("False", "WarmingUp", "Warming up.")


class World:
    """One pod in a cluster, its sidecar's calls, and the administrator's."""

    def __init__(self, cluster: k8s.Cluster, tmp_path: Path) -> None:
        self.cluster, self.tmp_path = cluster, tmp_path
        self.user, self.pod = k8s.unused()
        self.admin = ApiServer(k8s.account(cluster, tmp_path, "admin"), call_s=30)
        self.calls: list[tuple[str, str]] = []
        self.troubles: list[str] = []
        self.api = ApiServer(
            k8s.account(cluster, tmp_path, self.user, self.pod), lambda *call: self.calls.append(call), call_s=30
        )
        self.own = OwnPod(self.api)

    async def begin(self, *features: rights.Feature, **pod: Any) -> None:
        await self.cluster.grant(self.user, features)
        await k8s.create(self.admin, "pods", k8s.pod_of(self.pod, **pod))

    async def close(self) -> None:
        await self.api.close()
        await self.admin.close()

    def trouble(self, sentence: str, missing_right: bool) -> None:
        if sentence:
            self.troubles.append(sentence)

    def in_step(self, status: str, in_step: bool) -> None:
        pass

    def writer(self) -> GateWriter:
        purse = Purse(5, 60, time.monotonic)
        return GateWriter(self.own, purse, self, clock=time.monotonic, wall=time.time, jitter=random.random)

    async def conditions(self) -> dict[str, str]:
        pod = await k8s.read_pod(self.admin, self.pod)
        return {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}

    async def until_condition(self, status: str, deadline_s: float = 20.0) -> None:
        async def holds() -> bool:
            return (await self.conditions()).get(CONDITION) == status

        await k8s.until(holds, f"condition {status}", deadline_s)

    def patch(self, truth: Truth = WARM, uid: str = "") -> Call:
        body = condition.patch(truth, uid, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
        return Call("patch condition", "PATCH", f"{self.own.path}/status", body, STRATEGIC)


@pytest.fixture
async def world(cluster: k8s.Cluster, tmp_path: Path) -> AsyncIterator[World]:
    made = World(cluster, tmp_path)
    yield made
    await made.close()


# --- conditions ---------------------------------------------------------------------------------------------------------


async def test_our_condition_stands_beside_those_of_others(world: World):
    await world.begin(GATE)
    other = {"type": "example.com/other", "status": "True"}
    await k8s.patch_pod(world.admin, world.pod, {"status": {"conditions": [other]}})
    await world.api.ask(world.patch(WARM))
    await k8s.patch_pod(world.admin, world.pod, {"status": {"conditions": [{**other, "status": "False"}]}})
    await world.api.ask(world.patch(COLD))
    assert await world.conditions() == {"example.com/other": "False", CONDITION: "False"}


async def test_a_merge_patch_would_have_wiped_the_others(world: World):
    await world.begin(GATE)
    await world.api.ask(world.patch(WARM))
    other = {"status": {"conditions": [{"type": "example.com/other", "status": "True"}]}}
    await k8s.patch_pod(world.admin, world.pod, other, "application/merge-patch+json")
    assert await world.conditions() == {"example.com/other": "True"}


async def test_reason_and_sentence_arrive_as_they_were_sent(world: World):
    await world.begin(GATE)
    found = condition.read(await world.api.ask(world.patch(COLD)))
    assert (found["reason"], found["message"]) == ("WarmingUp", "Warming up.")
    assert found["lastTransitionTime"] == "2026-01-01T00:00:00Z"


async def test_every_reason_is_taken_and_none_changes_the_spec(world: World):
    await world.begin(GATE)
    for reason, _ in condition.documented():
        body = world.patch(Truth("False", reason, "x" * condition.MESSAGE_LIMIT)).body
        assert body is not None
        sneaky = Call(
            "patch condition", "PATCH", f"{world.own.path}/status", {**body, "spec": {"nodeName": "x"}}, STRATEGIC
        )
        assert "nodeName" not in (await world.api.ask(sneaky))["spec"]


async def test_another_pod_of_the_same_name_is_not_patched(world: World):
    await world.begin(GATE)
    with pytest.raises((KubernetesConflict, KubernetesRefused)):
        await world.api.ask(world.patch(WARM, uid="11111111-1111-1111-1111-111111111111"))
    assert CONDITION not in await world.conditions()


async def test_an_old_resource_version_is_a_conflict(world: World):
    await world.begin(GATE)
    old = (await world.own.read())["metadata"]["resourceVersion"]
    await world.api.ask(world.patch(WARM))
    body = {**(world.patch(COLD).body or {}), "metadata": {"resourceVersion": old}}
    with pytest.raises(KubernetesConflict):
        await world.api.ask(Call("patch condition", "PATCH", f"{world.own.path}/status", body, STRATEGIC))


async def test_an_absent_pod_is_told_from_a_missing_right(world: World):
    await world.begin(GATE)
    gone = OwnPod(ApiServer(k8s.account(world.cluster, world.tmp_path, world.user, "nobody")))
    with pytest.raises(KubernetesNotFound):
        await gone.read()
    await gone.api.close()


# --- rights -------------------------------------------------------------------------------------------------------------


async def test_without_any_role_nothing_is_allowed(world: World):
    await world.begin()
    for call in (Call("get pod", "GET", world.own.path), world.patch()):
        with pytest.raises(KubernetesForbidden):
            await world.api.ask(call)


async def test_the_declared_role_of_the_gate_allows_the_gate_and_no_more(world: World):
    await world.begin(GATE)
    await world.own.read()
    await world.api.ask(world.patch())
    for call in (
        Call("patch pod", "PATCH", world.own.path, {"metadata": {"labels": {"a": "b"}}}, STRATEGIC),
        Call("get node", "GET", "/api/v1/nodes/node-0"),
        Call("create event", "POST", "/apis/events.k8s.io/v1/namespaces/default/events", {}),
    ):
        with pytest.raises(KubernetesForbidden):
            await world.api.ask(call)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.setting)
async def test_a_review_finds_the_declared_rights_there_and_the_others_missing(world: World, feature: rights.Feature):
    await world.begin(feature)
    assert await review.missing(world.api, [feature]) == []
    needed = set(feature.rights)
    others = [each for each in FEATURES if not set(each.rights) <= needed]
    found = {missing.right for missing in await review.missing(world.api, others)}
    assert found == {right for each in others for right in each.rights} - needed


async def test_a_token_that_is_unknown_is_unauthorized(world: World):
    await world.begin(GATE)
    stranger = ApiServer(k8s.account(world.cluster, world.tmp_path, "stranger", world.pod))
    with pytest.raises(KubernetesUnauthorized):
        await OwnPod(stranger).read()
    await stranger.close()


async def test_a_rotated_token_is_read_again_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    await world.begin(GATE)
    read = Account.token
    # The kubelet replaces the file just after it was read.
    given = iter(["an old token"])
    monkeypatch.setattr(Account, "token", lambda self: next(given, None) or read(self))
    await world.own.read()
    assert [outcome for _, outcome in world.calls] == ["kubernetes_unauthorized", "ok"]


# --- what is written ----------------------------------------------------------------------------------------------------


async def test_a_gate_is_false_first_then_follows_and_survives_another_writer(world: World):
    await world.begin(GATE)
    writer = world.writer()
    job = asyncio.create_task(writer.run())
    try:
        await world.until_condition("False")
        writer.tell(WARM)
        await world.until_condition("True")
        wrong = {"type": CONDITION, "status": "False", "reason": "Meddling"}
        await k8s.patch_pod(world.admin, world.pod, {"status": {"conditions": [wrong]}})
        await world.until_condition("True")
        writer.tell(COLD)
        await world.until_condition("False")
    finally:
        job.cancel()
    assert world.troubles == []


async def test_a_gate_without_the_right_says_so_and_takes_it_up_when_granted(world: World):
    await world.begin()
    writer = world.writer()
    job = asyncio.create_task(writer.run())
    try:

        async def told() -> bool:
            return bool(world.troubles)

        await k8s.until(told, "the sentence")
        assert "patch pods/status" in world.troubles[-1]
        await world.cluster.grant(world.user, [GATE])
        writer.tell(WARM)
        await world.until_condition("True")
    finally:
        job.cancel()


async def test_every_event_is_accepted_as_it_is_declared(world: World):
    await world.begin(EVENTS)
    writer = EventWriter(
        world.own, _open(Purse(50, 1, time.monotonic)), world.trouble, clock=time.monotonic, wall=time.time
    )
    job = asyncio.create_task(writer.run())
    for reason in events.REASONS:
        writer.announce(reason, "é" * 2000)

    async def all_there() -> bool:
        found = {each["reason"] for each in await k8s.list_events(world.admin, world.pod)}
        return found == {reason.name for reason in events.REASONS}

    await k8s.until(all_there, "all Events")
    job.cancel()
    uid = (await k8s.read_pod(world.admin, world.pod))["metadata"]["uid"]
    assert {each["regarding"]["uid"] for each in await k8s.list_events(world.admin, world.pod)} == {uid}


async def test_the_same_event_again_is_counted_on_the_first(world: World):
    await world.begin(EVENTS)
    writer = EventWriter(
        world.own, _open(Purse(50, 1, time.monotonic)), world.trouble, clock=time.monotonic, wall=time.time
    )
    job = asyncio.create_task(writer.run())
    for count in (1, 2, 3):
        writer.announce(events.HELD, "The same sentence.")

        async def counted(count: int = count) -> bool:
            found = await k8s.list_events(world.admin, world.pod)
            return len(found) == 1 and (found[0].get("series") or {}).get("count", 1) == count

        await k8s.until(counted, f"a count of {count}")
    job.cancel()


async def test_a_note_that_is_too_long_would_be_refused(world: World):
    await world.begin(EVENTS)
    about = events.Regarding("default", world.pod, "")
    wrong = events.create(events.HELD, "x", about, f"{world.pod}.wrong", "2026-01-01T00:00:00.000000Z")
    with pytest.raises(KubernetesRefused):
        await world.api.ask(
            Call(
                "create event",
                "POST",
                "/apis/events.k8s.io/v1/namespaces/default/events",
                {**wrong, "note": "x" * (events.NOTE_LIMIT + 1)},
            )
        )


# --- what is read -------------------------------------------------------------------------------------------------------


async def test_facts_come_from_pod_and_node(world: World):
    node = f"node-of-{world.pod}"
    await world.begin(POD_FACTS, NODE_FACTS, node=node)
    labels = {facts.PRODUCT: "NVIDIA-H100-80GB-HBM3", facts.MAJOR: "9", facts.MINOR: "0", facts.DRIVER[0]: "580.65.06"}
    await k8s.create(
        world.admin, "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}}
    )
    found = facts.pod_facts(await world.own.read())
    assert found is not None
    assert found.image == "engine"
    assert facts.node_facts(await world.own.node()) == facts.NodeFacts("sm90", "NVIDIA-H100-80GB-HBM3", "580.65.06")


async def test_the_version_of_the_api_server_is_known(world: World):
    await world.begin()
    assert (await review.version(world.api)).startswith("v")


def _open(purse: Purse) -> Purse:
    purse.open()
    return purse


async def test_forty_pods_that_start_at_once_make_three_writes_each_and_are_all_ready(
    cluster: k8s.Cluster, tmp_path: Path
):
    worlds = [World(cluster, tmp_path) for _ in range(40)]
    token = worlds[0].user
    await cluster.grant(token, [GATE, EVENTS])
    for world in worlds:
        world.api = ApiServer(
            k8s.account(cluster, tmp_path, token, world.pod), lambda *call, to=world: to.calls.append(call), call_s=60
        )
        world.own = OwnPod(world.api)
    await asyncio.gather(*(k8s.create(world.admin, "pods", k8s.pod_of(world.pod)) for world in worlds))
    jobs, writers = [], []
    for world in worlds:
        purse = Purse(5, 60, time.monotonic)
        noted = EventWriter(world.own, purse, world.trouble, clock=time.monotonic, wall=time.time)
        gate = GateWriter(world.own, purse, world, clock=time.monotonic, wall=time.time, jitter=random.random)
        jobs += [asyncio.create_task(gate.run()), asyncio.create_task(noted.run())]
        noted.announce(events.DEGRADED, "The store is away.")
        noted.announce(events.COMPILED_LATE, "One too many.")
        writers.append(gate)
    try:
        await asyncio.gather(*(world.until_condition("False", 60) for world in worlds))
        for writer in writers:
            writer.tell(COLD)
        before = [sum(name != "get pod" for name, _ in world.calls) for world in worlds]
        for writer in writers:
            writer.tell(WARM)
        await asyncio.gather(*(world.until_condition("True", 60) for world in worlds))
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*(world.close() for world in worlds))
    assert max(before) <= 2, "and True is the third"
    assert [world.troubles for world in worlds] == [[]] * 40
