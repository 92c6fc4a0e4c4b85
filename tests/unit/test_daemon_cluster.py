"""The daemon's dealings with Kubernetes, against the fake API server over HTTPS: what is announced, degraded, vetoed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.client import CacheClient
from sidecar.config import Settings
from sidecar.daemon.cluster import Cluster, account_of
from sidecar.kube.condition import CONDITION
from sidecar.lifecycle import Mode, Phase, Snapshot, Suspension, gate
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor.claiming import Keeper
from sidecar.supervisor.pod import Pod
from tests.fakes.apiserver import FakeApiServer

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def make_pod(settings: Settings) -> Pod:
    caches = CacheClient(lambda: 0.0)
    return Pod(
        settings=settings,
        mode=Mode.LAUNCHER,
        boot="boot",
        host_boot="host",
        engine=None,
        name="vllm-0",
        caches=caches,
        keeper=Keeper(caches),
        board=Board(lambda: 0.0, lambda: 0.0, "0", "launcher"),
        metrics=Metrics("0", "launcher"),
        clock=lambda: 0.0,
        rng=random.Random(1),
    )


class Scene:
    """A pod at the API server, and a daemon's cluster that knows it."""

    def __init__(self, server: FakeApiServer, folder: Path, **settings: Any) -> None:
        self.server = server
        (folder / "token").write_text("admin")
        (folder / "namespace").write_text("default")
        (folder / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
        self.pod = make_pod(Settings(service_account=folder, pod_name="vllm-0", **settings))
        address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        self.cluster = Cluster(self.pod, account_of(self.pod.settings, address, "node"), random.random)
        self.jobs: list[asyncio.Task[None]] = []

    def run(self) -> None:
        self.jobs = [asyncio.create_task(job(), name=name) for name, job in self.cluster.jobs()]

    async def close(self) -> None:
        for job in self.jobs:
            job.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
        await self.cluster.end()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    def events(self) -> set[str]:
        return {thing["reason"] for (kind, _, _), thing in self.server.objects.items() if kind == "events"}


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Callable[..., Scene]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(FakeApiServer(tmp_path / "server"))
        server.put("pods", thing())

        def make(**settings: Any) -> Scene:
            scene = Scene(server, tmp_path, **settings)
            stack.push_async_callback(scene.close)
            return scene

        yield make


def thing(gates: tuple[str, ...] = (), image_id: str = "") -> dict[str, Any]:
    containers = [{"name": "vllm", "image": f"vllm@{DIGEST}", "command": ["python3", "/run/warmup/launcher.py"]}]
    return {
        "metadata": {"name": "vllm-0", "namespace": "default"},
        "spec": {"containers": containers, "readinessGates": [{"conditionType": each} for each in gates]},
        "status": {"containerStatuses": [{"name": "vllm", "imageID": image_id}]},
    }


def snapshot(phase: Phase, **more: Any) -> Snapshot:
    return Snapshot(Mode.LAUNCHER, phase=phase, **more)


def step(scene: Scene, before: Snapshot, after: Snapshot) -> None:
    scene.pod.on_step(before, after, gate(after))


VERIFYING = snapshot(Phase.VERIFYING)
WARM = snapshot(Phase.READY, warm="converged", verify="passed")


def test_without_a_setting_nothing_is_done_and_nothing_is_asked(tmp_path: Path):
    pod = make_pod(Settings())
    before = pod.on_step, pod.announce, pod.veto
    cluster = Cluster(pod, account_of(pod.settings, {}, "node"), random.random)
    assert (cluster.asked, cluster.jobs()) == (False, [])
    assert (pod.on_step, pod.announce, pod.veto) == before


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (VERIFYING, WARM, "EngineWarm"),
        (VERIFYING, snapshot(Phase.READY, warm="exhausted"), "ReadyByPolicy"),
        (WARM, snapshot(Phase.AWAITING_ENGINE), "ReadinessWithdrawn"),
        (WARM, snapshot(Phase.SUSPENDED, suspension=Suspension.STALLED), "ReadinessWithdrawn"),
        (VERIFYING, snapshot(Phase.SUSPENDED, suspension=Suspension.DEGENERATE), "TrafficHeld"),
    ],
)
async def test_what_changes_for_traffic_is_an_event(made, before: Snapshot, after: Snapshot, reason: str):
    scene = made(events=True)
    scene.run()
    step(scene, before, after)
    await scene.until(lambda: scene.events() == {reason})


async def test_an_asked_for_drain_and_ordinary_steps_are_no_events(made):
    scene = made(events=True)
    scene.run()
    step(scene, WARM, snapshot(Phase.DRAINING, drained_by="operator"))
    step(scene, snapshot(Phase.STARTING), snapshot(Phase.RESTORING))
    step(scene, WARM, WARM)
    # The one that follows shows that those before it were taken.
    scene.pod.degrade("The store is away.")
    await scene.until(lambda: bool(scene.events()))
    assert scene.events() == {"Degraded"}


async def test_a_gate_that_nobody_opens_degrades_until_it_is_taken_out(made):
    scene = made(events=True)
    scene.server.put("pods", thing((CONDITION,)))
    await scene.cluster._own.read()
    [sentence] = scene.pod.board.degraded
    assert "stays unready for ever" in sentence
    scene.server.put("pods", thing())
    await scene.cluster._own.read()
    assert scene.pod.board.degraded == ()


async def test_another_image_than_the_keys_vetoes_a_publish_and_an_absent_api_server_does_not(made):
    scene = made(pod_facts=True)
    scene.cluster.use_image({"image": {"digest": DIGEST}})
    assert await scene.pod.veto() == ""
    scene.server.put("pods", thing(image_id=f"vllm@{OTHER}"))
    assert "another image's" in await scene.pod.veto()
    scene.server.put("pods", thing(image_id=f"vllm@{DIGEST}"))
    assert await scene.pod.veto() == ""
    await scene.server.stop()
    assert await scene.pod.veto() == ""


async def test_facts_that_can_not_be_had_are_none_and_named(made):
    scene = made(pod_facts=True)
    scene.server.subjects["admin"].admin = False
    told = await scene.cluster.told()
    assert told.pod is None
    assert "WARMUP_POD_FACTS" in scene.pod.board.degraded[0]
    assert scene.pod.metrics.value("kubernetes_right_missing", feature="pod_facts") == 1
    scene.server.subjects["admin"].admin = True
    told = await scene.cluster.told()
    assert told.pod is not None
    assert told.pod.digest == DIGEST
    assert scene.pod.board.degraded == ()
    assert scene.pod.metrics.value("kubernetes_right_missing", feature="pod_facts") == 0


async def test_an_ordinary_init_container_asks_for_its_own_end(made):
    scene = made(events=True)
    asked: list[bool] = []
    scene.cluster.ordinary_init = lambda: asked.append(True)
    init = thing()
    init["spec"]["initContainers"] = [{"name": "warm", "env": [{"name": "WARMUP_STORE", "value": "/mnt"}]}]
    init["status"]["initContainerStatuses"] = [{"name": "warm", "state": {"running": {}}}]
    scene.server.put("pods", init)
    await scene.cluster._own.read()
    assert asked == [True]


async def test_the_last_word_is_false(made):
    scene = made(readiness_gate=True)
    scene.run()
    step(scene, VERIFYING, WARM)

    def status() -> str:
        found = scene.server.get("pods", "vllm-0")["status"].get("conditions", [])
        return str(next((each["status"] for each in found if each["type"] == CONDITION), ""))

    await scene.until(lambda: status() == "True")
    for job in scene.jobs:
        job.cancel()
    step(scene, WARM, snapshot(Phase.STOPPED))
    await scene.cluster.end()
    assert status() == "False"
