"""Pods without a native sidecar: the launcher from an init container, or a restore from declared facts before the engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.kubelet.node import CHECKOUT, why_no_node
from tests.kubernetes.kubelet.warm_pod import ENGINE, LIVE_CACHE, SIDECAR, Cluster, WarmPod, named, set_variables

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

COMPONENTS = CHECKOUT / "k8s" / "components"
RESTORE = "warmup-restore"
IMAGE = f"registry.example.com/engine@sha256:{'1' * 64}"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def patched(spec: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply a JSON patch (RFC 6902: add, copy, move, remove and replace) to the spec of a Deployment's pods."""
    root = {"spec": {"template": {"spec": copy.deepcopy(spec)}}}

    def parent(path: str) -> tuple[Any, str]:
        *way, last = path.strip("/").split("/")
        at: Any = root
        for word in way:
            at = at[int(word)] if isinstance(at, list) else at[word]
        return at, last

    def add(path: str, value: Any) -> None:
        at, last = parent(path)
        if isinstance(at, list):
            at.insert(len(at) if last == "-" else int(last), value)
        else:
            at[last] = value

    def remove(path: str) -> Any:
        at, last = parent(path)
        return at.pop(int(last) if isinstance(at, list) else last)

    for operation in operations:
        if operation["op"] == "add":
            add(operation["path"], operation["value"])
        elif operation["op"] == "move":
            add(operation["path"], remove(operation["from"]))
        elif operation["op"] == "copy":
            at, last = parent(operation["from"])
            add(operation["path"], copy.deepcopy(at[int(last)] if isinstance(at, list) else at[last]))
        elif operation["op"] == "replace":
            remove(operation["path"])
            add(operation["path"], operation["value"])
        else:
            assert operation["op"] == "remove"
            remove(operation["path"])
    return root["spec"]["template"]["spec"]


def laid_over(component: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Give the pod as a shipped component makes it."""
    return patched(spec, yaml.safe_load((COMPONENTS / component / "patch.yaml").read_text("utf-8")))


def with_launcher(cluster: Cluster) -> dict[str, Any]:
    """Give the pod whose launcher comes from an init container."""
    return laid_over("plain-sidecar", cluster.spec())


def without_launcher(cluster: Cluster, **settings: object) -> dict[str, Any]:
    """Give a pod whose init container restores from declared facts, and whose engine is started as its image says."""
    given = {"launcher": "false", "image": IMAGE, "sm": "cpu", **settings}
    spec = laid_over("plain-sidecar-without-launcher", cluster.spec(**given))
    engine = named(spec, ENGINE)
    engine["command"] = engine.pop("args")
    set_variables(engine, {"TRITON_CACHE_DIR": f"{LIVE_CACHE}/triton"})
    return spec


async def is_warm(pod: WarmPod) -> dict[str, Any]:
    await pod.life.until_ready()
    status = await pod.status()
    assert status["warmup"]["outcome"] == "converged"
    return status


async def test_with_the_launcher_from_an_init_container_the_plain_sidecar_restores_and_warms(cluster: Cluster):
    spec = with_launcher(cluster)
    async with cluster.pod("pod-a", spec) as pod:
        await is_warm(pod)
        first = set((await pod.engine())["compiled"])
        assert first
        await pod.until_published()
    async with cluster.pod("pod-b", spec) as pod:
        status = await is_warm(pod)
        assert next(event.container for event in pod.life.story.events if event.what == "started") == "warmup-launcher"
        assert status["restore"]["outcome"] == "hit"
        assert not first & set((await pod.engine())["compiled"])


async def test_without_the_launcher_an_init_container_restores_and_the_plain_sidecar_warms_and_publishes(
    cluster: Cluster,
):
    spec = without_launcher(cluster)
    async with cluster.pod("pod-a", spec) as pod:
        status = await is_warm(pod)
        assert status["restore"]["outcome"] == "miss"
        first = {name for name in (await pod.engine())["compiled"] if not name.startswith("logprobs")}
        await pod.until_published()
    async with cluster.pod("pod-b", spec) as pod:
        status = await is_warm(pod)
        order = [(RESTORE, "exited"), (ENGINE, "started")]
        assert pod.life.story.order(*order) == order
        # The sidecar knows what the init container laid down before it.
        assert status["restore"]["outcome"] in ("hit", "partial")
        assert not first & set((await pod.engine())["compiled"])
        # So does the store: another boot was ready on it, which makes the generation a proven one.
        await pod.until_status(lambda _: any(cluster.store.rglob("boots/*.ready.*")), "a boot is recorded")


async def test_an_init_container_whose_store_is_not_there_ends_with_0_and_the_engine_starts_cold(cluster: Cluster):
    async with cluster.pod(spec=without_launcher(cluster, store="/mnt/nowhere", restore_timeout_s=5)) as pod:
        await is_warm(pod)
        assert [event.detail for event in pod.life.story.of(RESTORE, "exited")] == ["0"]
        assert pod.life[RESTORE].restarts == 0


async def test_an_init_container_with_settings_that_can_not_be_used_ends_with_0(cluster: Cluster):
    spec = without_launcher(cluster, image="latest", restore_timeout_s="soon")
    named(spec, RESTORE)["args"] = ["restore", "--no-such-flag", "--", "vllm", "serve"]
    async with cluster.pod(spec=spec) as pod:
        await pod.life.until_ready()
        assert [event.detail for event in pod.life.story.of(RESTORE, "exited")] == ["0"]
        log = pod.runtime.log(RESTORE)
        assert "WARMUP_IMAGE" in log
        assert "--no-such-flag" in log


async def test_a_sidecar_killed_before_the_engine_answers_still_knows_what_was_restored(cluster: Cluster):
    async with cluster.pod("pod-a", without_launcher(cluster)) as pod:
        await is_warm(pod)
        await pod.until_published()
    cluster.tell_next_engine(load_seconds=5)
    async with cluster.pod("pod-b", without_launcher(cluster)) as pod:
        await pod.until_phase("awaiting_engine")
        pod.kill(SIDECAR)
        await pod.life.until_started(SIDECAR, restarts=1)
        status = await is_warm(pod)
        assert status["restore"]["outcome"] in ("hit", "partial")
