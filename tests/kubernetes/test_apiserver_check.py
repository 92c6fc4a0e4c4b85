"""`warmup-sidecar check` in a pod: rights, the pod's own spec, the group it belongs to. As a process, against both servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from sidecar.kube.api import ApiServer
from sidecar.kube.condition import CONDITION
from sidecar.kube.rights import FEATURES, Feature
from tests.kubernetes import apiserver as k8s

GATE, EVENTS, POD_FACTS, NODE_FACTS = FEATURES
ROOT = Path(__file__).resolve().parents[2]


class Scene:
    """One pod and what `check` says in it."""

    def __init__(self, cluster: k8s.Cluster, root: Path) -> None:
        self.cluster, self.root = cluster, root
        self.user, self.pod = k8s.unused()
        self.admin = ApiServer(k8s.account(cluster, root, "admin"), call_s=30)
        self.account = k8s.account(cluster, root, self.user, self.pod)

    async def begin(self, features: Iterable[Feature] = (), gates: tuple[str, ...] = (CONDITION,)) -> None:
        await self.cluster.grant(self.user, features)
        await k8s.create(self.admin, "pods", k8s.pod_of(self.pod, gates=gates))

    async def check(self, *flags: str, **environment: str) -> tuple[int, list[tuple[str, str]]]:
        """Run it; give its exit code and what it found about Kubernetes."""
        folders = ["--control-dir", str(self.root / "control"), "--live-cache", str(self.root / "live")]
        identity = ["--service-account", str(self.account.directory), "--pod-name", self.pod]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", "check", "--json", "--engine-url", "http://127.0.0.1:9", *folders,
            "--listen", "127.0.0.1:0", *identity, *flags,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("WARMUP_", "LWS_"))},
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.cluster.port),
                **environment,
            },
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
        findings: list[dict[str, Any]] = json.loads(output)["findings"]
        assert process.returncode is not None
        return process.returncode, [
            (each["level"], each["sentence"]) for each in findings if each["what"] == "Kubernetes"
        ]


@pytest.fixture
async def scene(cluster: k8s.Cluster, tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(cluster, tmp_path)
    yield made
    await made.admin.close()


async def test_a_pod_with_its_role_has_no_problem(scene: Scene):
    await scene.begin([GATE, EVENTS])
    code, found = await scene.check("--readiness-gate", "--events")
    assert (code, [level for level, _ in found]) == (0, ["good"])


async def test_a_gate_without_the_right_is_a_problem_and_so_is_one_that_nobody_opens(scene: Scene):
    await scene.begin([POD_FACTS])
    code, found = await scene.check("--readiness-gate")
    assert code == 2
    assert any("`patch pods/status`" in sentence and "for ever" in sentence for _, sentence in found)
    _, found = await scene.check()
    assert any("WARMUP_READINESS_GATE is off" in sentence for _, sentence in found)


async def test_without_a_role_every_missing_right_is_named(scene: Scene):
    await scene.begin()
    code, found = await scene.check("--events", "--node-facts")
    assert code == 2
    said = " ".join(sentence for _, sentence in found)
    for right in {right for feature in (EVENTS, NODE_FACTS) for right in feature.rights}:
        assert right.words in said


async def test_a_deadlock_of_a_group_is_refused(scene: Scene):
    await scene.begin([])
    group = {"LWS_LEADER_ADDRESS": "vllm-0.vllm", "LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2"}
    code, found = await scene.check("--group-startup", "LeaderReady", **group)
    assert code == 2
    assert any("Neither ever is" in sentence for _, sentence in found)


async def test_outside_a_cluster_nothing_is_missed_unless_it_is_asked_for(scene: Scene):
    outside = {"KUBERNETES_SERVICE_HOST": ""}
    (scene.account.directory / "token").unlink()
    assert [level for level, _ in (await scene.check(**outside))[1]] == ["note"]
    assert (await scene.check("--readiness-gate", **outside))[0] == 2
