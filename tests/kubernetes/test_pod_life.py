"""The whole life of the shipped pod with a scripted engine, under an emulated kubelet with its own rules for restarts."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kubernetes.kubelet.node import why_no_node
from tests.kubernetes.kubelet.warm_pod import ENGINE, SIDECAR, Cluster, WarmPod, named

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

#: DESIGN §3, "When ready is withdrawn": 2 s; and what a readiness probe every 2 s adds, on a loaded machine.
UNREADY_S = 8.0
#: DESIGN §3, "Adoption": 5 s from the daemon's start, on a loaded machine.
ADOPTED_S = 15.0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def kernels_of(pod: WarmPod) -> set[str]:
    """Name the kernels that lie whole in the pod's live cache."""
    return {path.parent.name for path in pod.runtime.volume("live-cache").rglob("__grp__kernel.json")}


async def is_ready_again(pod: WarmPod, since: float) -> float:
    """Wait until the sidecar has withdrawn the pod and the pod is ready again; give the seconds until it was withdrawn."""
    await pod.life.until(lambda: not pod.life[SIDECAR].ready, "the sidecar says no")
    withdrawn = time.monotonic() - since
    await pod.life.until_ready()
    return withdrawn


async def compiled_by(pod: WarmPod) -> set[str]:
    """Name what the engine that runs has compiled, and not found."""
    return set((await pod.engine())["compiled"])


# --- starts and restarts ------------------------------------------------------------------------------------------


async def test_the_engine_starts_after_the_launcher_is_there_and_the_pod_is_ready_after_its_warm_up(cluster: Cluster):
    async with cluster.pod() as pod:
        await pod.life.until_ready()
        order = [(SIDECAR, "startup passed"), (ENGINE, "started"), (SIDECAR, "ready")]
        assert pod.life.story.order(*order) == order
        assert (await pod.status())["warmup"]["outcome"] == "converged"
        assert (await pod.engine())["counters"]["texts"] > 0
        assert (pod.life[ENGINE].restarts, pod.life[SIDECAR].restarts) == (0, 0)


async def test_an_engine_killed_when_ready_is_unready_at_once_and_warmed_again_on_the_kernels_it_had(cluster: Cluster):
    async with cluster.pod() as pod:
        await pod.life.until_ready()
        had, compiled = kernels_of(pod), await compiled_by(pod)
        assert had
        killed = pod.kill(ENGINE)
        assert await is_ready_again(pod, killed) < UNREADY_S
        status = await pod.status()
        assert (pod.life[ENGINE].restarts, pod.life[SIDECAR].restarts) == (1, 0)
        assert (status["restore"]["outcome"], status["warmup"]["outcome"]) == ("kept", "converged")
        # Warmed by real requests, which found what the first engine had compiled: the volume outlives the container.
        assert (await pod.engine())["counters"]["texts"] > 0
        assert not compiled & await compiled_by(pod)
        assert kernels_of(pod) >= had


async def test_an_engine_that_ends_with_0_when_ready_has_died_all_the_same(cluster: Cluster):
    async with cluster.pod() as pod:
        await pod.life.until_ready()
        [engine] = pod.engine_processes()
        engine.send_signal(signal.SIGTERM)
        assert await is_ready_again(pod, time.monotonic()) < UNREADY_S
        assert [event.detail for event in pod.life.story.of(ENGINE, "exited")] == ["0"]
        assert (await pod.status())["warmup"]["outcome"] == "converged"


async def test_a_sidecar_killed_beside_a_proven_engine_adopts_it_without_restoring_or_warming(cluster: Cluster):
    async with cluster.pod() as pod:
        await pod.life.until_ready()
        before = await pod.engine()
        pod.kill(SIDECAR)
        await pod.life.until_started(SIDECAR, restarts=1)
        began = time.monotonic()
        await pod.life.until_ready()
        assert time.monotonic() - began < ADOPTED_S
        status, after = await pod.status(), await pod.engine()
        assert after["started"] == before["started"]
        assert status["warmup"].get("outcome") != "converged"
        # One request asks whether it still answers.
        assert after["counters"]["texts"] - before["counters"]["texts"] <= 2
        assert pod.life[ENGINE].restarts == 0


async def test_a_sidecar_killed_while_it_warms_begins_the_warm_up_anew(cluster: Cluster):
    cluster.tell_next_engine(generation="hang")
    async with cluster.pod() as pod:
        await pod.until_phase("warming")
        pod.kill(SIDECAR)
        await pod.life.until_started(SIDECAR, restarts=1)
        await pod.tell_engine(generation="ok")
        await pod.life.until_ready()
        assert (await pod.status())["warmup"]["outcome"] == "converged"
        assert pod.life[ENGINE].restarts == 0


async def test_sidecar_and_engine_killed_together_come_back_and_nobody_adopts_what_is_gone(cluster: Cluster):
    async with cluster.pod() as pod:
        await pod.life.until_ready()
        await pod.until_published()
        compiled = await compiled_by(pod)
        pod.kill(SIDECAR)
        killed = pod.kill(ENGINE)
        assert await is_ready_again(pod, killed) < UNREADY_S
        status = await pod.status()
        assert (pod.life[ENGINE].restarts, pod.life[SIDECAR].restarts) == (1, 1)
        assert status["restore"]["outcome"] in ("kept", "hit")
        assert status["warmup"]["outcome"] == "converged"
        assert not compiled & await compiled_by(pod)


async def test_a_sidecar_killed_before_it_has_started_does_not_keep_a_pod_that_never_restarts_from_starting(
    cluster: Cluster,
):
    spec = cluster.spec()
    spec["restartPolicy"] = "Never"
    async with cluster.pod(spec=spec) as pod:
        await pod.life.until_started(SIDECAR)
        pod.kill(SIDECAR)
        await pod.life.until_ready()
        assert pod.life[SIDECAR].restarts == 1
        assert pod.life.story.of(SIDECAR, "probe failed") == []


async def test_kernels_that_were_complete_when_a_liveness_probe_killed_are_not_compiled_again(
    cluster: Cluster,
):
    cluster.profile.write_text(cluster.profile.read_text().replace("[1, 17]", "[1, 600, 1100, 1600]"))
    cluster.tell_next_engine(compile_seconds=2)
    spec = cluster.spec()
    named(spec, ENGINE)["livenessProbe"] = {
        "exec": {"command": ["test", "!", "-e", "/run/warmup/too-late"]},
        "periodSeconds": 1,
        "failureThreshold": 2,
    }
    async with cluster.pod(spec=spec) as pod:
        await pod.until_engine(lambda seen: len(seen["compiled"]) >= 2, "two kernels are compiled")
        # What begins from here on is never complete, however slowly the probes are run.
        await pod.tell_engine(compile_seconds=600)
        cluster.tell_next_engine(compile_seconds=0.1)
        late = pod.runtime.volume("control") / "too-late"
        late.touch()
        await pod.life.until(lambda: bool(pod.life.story.of(ENGINE, "probe failed")), "liveness failed")
        late.unlink()
        first = set((await pod.engine()).get("compiled", ())) or {"prefill|1"}
        await pod.life.until_started(ENGINE, restarts=1)
        complete = kernels_of(pod)
        assert complete
        await pod.life.until_ready()
        again = (await pod.engine())["compiled"]
        assert not first & set(again)
        assert again, "the first attempt was killed before it had all"
        assert kernels_of(pod) > complete
        assert pod.life[ENGINE].restarts == 1


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_pod_deleted_while_it_warms_ends_without_waiting_for_its_own_requests(cluster: Cluster):
    cluster.tell_next_engine(generation="hang")
    async with cluster.pod(spec=cluster.spec(drain_s=40)) as pod:
        await pod.until_phase("warming")
        await pod.until_engine(lambda seen: seen["counters"]["running"] > 0, "a warm-up request runs")
        began = time.monotonic()
        await pod.life.delete()
        assert time.monotonic() - began < 30
        assert pod.life.story.of("", "ended")
        assert pod.life.story.of(ENGINE, "SIGKILL") == []
        assert pod.life.story.of(SIDECAR, "SIGKILL") == []
        assert list(cluster.store.rglob("generations/*")) == []


async def test_a_pod_deleted_before_its_engine_ever_answered_ends_at_once(cluster: Cluster):
    cluster.tell_next_engine(load_seconds=3600)
    async with cluster.pod(spec=cluster.spec(drain_s=40)) as pod:
        await pod.until_phase("awaiting_engine")
        began = time.monotonic()
        await pod.life.delete()
        assert time.monotonic() - began < 30
        order = [(ENGINE, "SIGTERM"), (ENGINE, "exited"), (SIDECAR, "SIGTERM"), (SIDECAR, "exited")]
        assert pod.life.story.order(*order) == order
        assert [event.detail for event in pod.life.story.of(SIDECAR, "exited")] == ["0"]


async def test_a_pod_deleted_while_it_publishes_leaves_no_half_generation_and_the_next_one_publishes_whole(
    cluster: Cluster,
):
    async with cluster.pod("pod-a") as pod:
        await pod.until_phase("awaiting_engine")
        pod.plant_kernels(300)
        await pod.until_status(lambda status: status["publish"].get("outcome") == "running", "a publish under way")
        began = time.monotonic()
        await pod.life.delete()
        assert time.monotonic() - began < 30
        assert pod.life.story.of(SIDECAR, "SIGKILL") == []
    code, words = await cluster.verify()
    assert code == 0, words
    async with cluster.pod("pod-b") as pod:
        await pod.life.until_ready()
        await pod.until_published()
        assert (await pod.status())["restore"]["outcome"] in ("miss", "hit")
    code, words = await cluster.verify()
    assert code == 0, words
