"""Many pods at once on one store: all become ready, none before it is warm, and what they compiled comes together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.kubelet.node import why_no_node
from tests.kubernetes.kubelet.warm_pod import SIDECAR, Cluster, WarmPod, named

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

#: Six take what a submission has time for. Forty on two cores take minutes.
SIZES = [6, pytest.param(40, marks=pytest.mark.slow)]
#: For one pod of a fleet to go through a step, while all others do the same on the same two cores.
PATIENCE_S = 120.0
PATIENCE_FOR_EACH_S = 25.0
#: Tokens by which prompts differ that need another kernel.
BUCKET = 16


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def crowded(cluster: Cluster, profile: Path) -> dict[str, Any]:
    """Give the pod with budgets for a node that runs all pods of a fleet on the cores of one."""
    spec = cluster.spec(restore_timeout_s=900, profile=profile)
    sidecar = named(spec, SIDECAR)
    for probe in ("startupProbe", "livenessProbe"):
        sidecar[probe]["failureThreshold"] = 900
    return spec


@asynccontextmanager
async def fleet(cluster: Cluster, names: Sequence[str], profiles: Sequence[Path] = ()) -> AsyncIterator[list[WarmPod]]:
    """Start all pods at once, each with a profile of its own or all with the same."""
    given = profiles or [cluster.profile] * len(names)
    async with AsyncExitStack() as pods:
        made = [cluster.pod(name, crowded(cluster, profile)) for name, profile in zip(names, given, strict=True)]
        yield [await pods.enter_async_context(pod) for pod in made]


async def warm_when_ready(pod: WarmPod, patience_s: float) -> dict[str, Any]:
    """Wait until the pod is Ready, and give the sidecar's status of that moment."""
    await pod.life.until_ready(patience_s)
    return await pod.until_status(lambda _: True, "a status", patience_s)


async def all_ready(pods: Sequence[WarmPod]) -> list[dict[str, Any]]:
    patience_s = PATIENCE_S + PATIENCE_FOR_EACH_S * len(pods)
    return await asyncio.gather(*(warm_when_ready(pod, patience_s) for pod in pods))


async def all_published(pods: Sequence[WarmPod]) -> None:
    patience_s = PATIENCE_S + PATIENCE_FOR_EACH_S * len(pods)
    await asyncio.gather(*(pod.until_published(patience_s) for pod in pods))


def own_profile(cluster: Cluster, number: int) -> Path:
    """Write a profile with a prompt length that no other pod of the fleet sends, and so a kernel that no other needs."""
    path = cluster.root / f"{number}.yaml"
    path.write_text(cluster.profile.read_text().replace("17", str(BUCKET * (number + 2) + 1)))
    return path


def kernels_of(pod: WarmPod) -> set[str]:
    return {path.parent.name for path in pod.runtime.volume("live-cache").rglob("__grp__kernel.json")}


@pytest.mark.parametrize("size", SIZES)
async def test_pods_that_start_at_once_on_an_empty_store_are_all_warm_when_ready_and_their_kernels_come_together(
    cluster: Cluster, size: int
):
    cluster.tell_next_engine(bucket_tokens=BUCKET)
    names = [f"pod-{number}" for number in range(size)]
    compiled: set[str] = set()
    async with fleet(cluster, names, [own_profile(cluster, number) for number in range(size)]) as pods:
        statuses = await all_ready(pods)
        assert [status["warmup"]["outcome"] for status in statuses] == ["converged"] * size
        assert [pod.life[SIDECAR].restarts for pod in pods] == [0] * size
        await all_published(pods)
        for pod in pods:
            compiled |= kernels_of(pod)
    assert len(compiled) > size
    async with fleet(cluster, ["next"]) as [pod]:
        [status] = await all_ready([pod])
        assert status["restore"]["outcome"] == "hit"
        assert kernels_of(pod) >= compiled
    code, words = await cluster.verify()
    assert code == 0, words


@pytest.mark.parametrize("size", SIZES)
async def test_a_scale_out_on_a_warm_store_compiles_nothing_and_replays_what_the_first_pods_covered(
    cluster: Cluster, size: int
):
    async with fleet(cluster, ["first-0", "first-1"]) as first:
        cost = min(status["warmup"]["requests"] for status in await all_ready(first))
        await all_published(first)
        async with fleet(cluster, [f"pod-{number}" for number in range(size - 2)]) as pods:
            statuses = await all_ready(pods)
            engines = [await pod.engine() for pod in pods]
        assert [status["restore"]["outcome"] for status in statuses] == ["hit"] * len(pods)
        assert [engine["compiled"] for engine in engines] == [[]] * len(pods)
        # Fewer requests than the first pods were sent: those that matter, once. The engine counts the output's check, too.
        told = [status["warmup"] for status in statuses]
        assert all(warmup["replayed"] and warmup["requests"] < cost for warmup in told), [
            each["sentence"] for each in told
        ]
