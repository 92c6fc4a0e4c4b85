"""A pod that is deleted while requests run: traffic stops at once, requests end, the engine ends, then the sidecar."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.kubernetes.kubelet.node import why_no_node
from tests.kubernetes.kubelet.warm_pod import ENGINE, SIDECAR, Cluster, WarmPod, named

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

#: DESIGN §3, "Drain": the sidecar's own SIGTERM ends it within 2 s; twice that on a loaded machine.
SIDECAR_ENDS_S = 4.0
CLIENTS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.tell_next_engine(token_seconds=0.02)
    return made


def seconds_of_the_sidecars_end(pod: WarmPod) -> float:
    [asked], [ended] = pod.life.story.of(SIDECAR, "SIGTERM"), pod.life.story.of(SIDECAR, "exited")
    return ended.at - asked.at


async def until_running(pod: WarmPod, count: int) -> None:
    await pod.until_engine(lambda seen: seen["counters"]["running"] >= count, f"{count} requests run")


async def test_streams_run_to_their_end_while_the_pod_is_unready_and_the_sidecar_ends_after_the_engine(
    cluster: Cluster,
):
    async with cluster.pod(spec=cluster.spec(drain_s=40)) as pod:
        await pod.life.until_ready()
        await pod.tell_engine(token_seconds=0.1)
        clients = [pod.client(tokens=40) for _ in range(CLIENTS)]
        await until_running(pod, CLIENTS)
        pod.life.begin_delete()
        assert not pod.life.takes_traffic
        await pod.until_phase("draining")
        # Draining is seen while the requests that are drained still run.
        assert (await pod.engine())["counters"]["running"] == CLIENTS
        assert (await pod.readyz())[0] == 503
        for status, text in [await client.answer() for client in clients]:
            assert status == 200
            assert text.endswith("data: [DONE]\n\n")
        await pod.life.until_ended()
        order = [(ENGINE, "SIGTERM"), (ENGINE, "exited"), (SIDECAR, "SIGTERM"), (SIDECAR, "exited")]
        assert pod.life.story.order(*order, (ENGINE, "SIGKILL"), (SIDECAR, "SIGKILL")) == order
        assert seconds_of_the_sidecars_end(pod) < SIDECAR_ENDS_S


async def test_a_stream_that_does_not_end_is_cut_when_the_cap_of_the_drain_ends(cluster: Cluster):
    async with cluster.pod(spec=cluster.spec(drain_s=3)) as pod:
        await pod.life.until_ready()
        await pod.tell_engine(token_seconds=1)
        client = pod.client(tokens=4000)
        await until_running(pod, 1)
        began = time.monotonic()
        await pod.life.delete()
        assert 3 <= time.monotonic() - began < 30
        assert not (await client.answer())[1].endswith("data: [DONE]\n\n")
        assert pod.life.story.of(ENGINE, "SIGKILL") == []
        assert seconds_of_the_sidecars_end(pod) < SIDECAR_ENDS_S


async def test_a_hook_of_the_engines_container_delays_the_drain_and_requests_that_come_meanwhile_are_answered(
    cluster: Cluster,
):
    spec = cluster.spec(drain_s=40)
    named(spec, ENGINE)["lifecycle"] = {"preStop": {"sleep": {"seconds": 2}}}
    async with cluster.pod(spec=spec) as pod:
        await pod.life.until_ready()
        pod.life.begin_delete()
        await asyncio.sleep(0.5)
        late = pod.client(tokens=50)
        status, text = await late.answer()
        await pod.life.until_ended()
        assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
        order = [(ENGINE, "hook"), (ENGINE, "SIGTERM"), (ENGINE, "exited"), (SIDECAR, "SIGTERM")]
        assert pod.life.story.order(*order) == order
