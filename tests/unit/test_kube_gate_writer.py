"""The condition follows the truth: at once, in few writes, whatever the API server does. On virtual time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sidecar.errors import (
    KubernetesBusy,
    KubernetesConflict,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnauthorized,
    KubernetesUnreachable,
    NotInKubernetes,
)
from sidecar.kube.budget import Purse
from sidecar.kube.condition import CONDITION, Truth
from sidecar.kube.gate_writer import LONGEST_RETRY_S, OVERTAKEN_S, GateWriter
from sidecar.kube.own_pod import OwnPod
from tests.unit.kube_scene import MemoryApiServer

pytestmark = pytest.mark.looptime

WARM = Truth("True", "Warm", "Nothing is left to compile.")
GONE = Truth("False", "AwaitingEngine", "The engine has gone.")
WARMING = Truth("False", "WarmingUp", "Warming up.")
HELD = Truth("False", "NotWarmed", "Held by policy.", held=True)


class Told:
    """What the writer reports."""

    def __init__(self) -> None:
        self.troubles: list[tuple[str, bool]] = []
        self.step: tuple[str, bool] = ("", False)

    def trouble(self, sentence: str, missing_right: bool) -> None:
        if not self.troubles or self.troubles[-1] != (sentence, missing_right):
            self.troubles.append((sentence, missing_right))

    def in_step(self, status: str, in_step: bool) -> None:
        self.step = (status, in_step)


class Scene:
    """One pod and its writer, which is made by `run`: fixtures live on another clock than their tests."""

    def __init__(self, tmp_path: Path) -> None:
        self.api, self.told = MemoryApiServer(tmp_path), Told()
        self.writer: GateWriter
        self.job: asyncio.Task[None] | None = None

    def run(self) -> None:
        clock = asyncio.get_running_loop().time
        purse = Purse(5, 60, clock)
        self.writer = GateWriter(
            OwnPod(self.api), purse, self.told, clock=clock, wall=lambda: 1.7e9 + clock(), jitter=lambda: 0.5
        )
        self.job = asyncio.create_task(self.writer.run())

    def writes(self) -> list[float]:
        return self.api.times("patch condition")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    if made.job is not None:
        made.job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await made.job


async def test_false_is_written_before_anything_is_known(scene: Scene):
    scene.run()
    await asyncio.sleep(0.1)
    assert scene.api.condition["status"] == "False"
    assert scene.api.condition["reason"] == "Starting"


async def test_a_true_that_an_earlier_daemon_left_is_taken_back(scene: Scene):
    scene.api.set(CONDITION, "True")
    scene.run()
    await asyncio.sleep(0.1)
    assert scene.api.condition["status"] == "False"


async def test_the_status_follows_at_once(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    for truth in (WARM, GONE, WARM):
        scene.writer.tell(truth)
        await asyncio.sleep(0.01)
        assert scene.api.condition["status"] == truth.status
        assert (scene.api.condition["reason"], scene.api.condition["message"]) == (truth.reason, truth.message)


async def test_only_the_latest_of_many_truths_is_written(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    before = len(scene.writes())
    for truth in (WARM, GONE, WARM, GONE, WARM):
        scene.writer.tell(truth)
    await asyncio.sleep(0.01)
    assert len(scene.writes()) - before == 1
    assert scene.api.condition["status"] == "True"


async def test_a_start_of_less_than_five_minutes_makes_three_writes_at_most(scene: Scene):
    scene.run()
    for second in range(290):
        await asyncio.sleep(1)
        scene.writer.tell(Truth("False", "WarmingUp" if second % 2 else "CheckingOutput", f"Second {second}."))
    scene.writer.tell(WARM)
    await asyncio.sleep(1)
    assert len(scene.writes()) <= 3


async def test_a_start_that_takes_long_says_where_it_is(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.writer.tell(WARMING)
    await asyncio.sleep(45)
    assert scene.api.condition["reason"] == "WarmingUp"


async def test_a_pod_that_is_held_back_says_so_at_once(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.writer.tell(HELD)
    await asyncio.sleep(0.01)
    assert scene.api.condition["reason"] == "NotWarmed"


async def test_what_another_writer_overwrote_is_written_again(scene: Scene):
    scene.run()
    scene.writer.tell(WARM)
    await asyncio.sleep(60)
    scene.api.set(CONDITION, "False")
    await asyncio.sleep(31)
    assert scene.api.condition["status"] == "True"


async def test_a_kubelet_that_missed_the_condition_is_nudged_and_not_nagged(scene: Scene):
    scene.api.set("ContainersReady", "True")
    scene.api.set("Ready", "False")
    scene.run()
    scene.writer.tell(WARM)
    await asyncio.sleep(1)
    first = scene.api.condition["lastProbeTime"]
    await asyncio.sleep(60)
    assert scene.api.condition["lastProbeTime"] != first
    before = len(scene.writes())
    await asyncio.sleep(600)
    assert len(scene.writes()) - before <= 12


async def test_a_kubelet_that_took_it_up_is_left_in_peace(scene: Scene):
    scene.api.set("ContainersReady", "True")
    scene.api.set("Ready", "True")
    scene.run()
    scene.writer.tell(WARM)
    await asyncio.sleep(1)
    before = len(scene.writes())
    await asyncio.sleep(600)
    assert len(scene.writes()) == before


async def test_a_status_that_stays_keeps_the_time_of_its_change(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    changed = scene.api.condition["lastTransitionTime"]
    scene.writer.tell(HELD)
    await asyncio.sleep(60)
    assert scene.api.condition["reason"] == "NotWarmed"
    assert scene.api.condition["lastTransitionTime"] == changed
    scene.writer.tell(WARM)
    await asyncio.sleep(1)
    assert scene.api.condition["lastTransitionTime"] != changed


@pytest.mark.parametrize(
    "error",
    [
        KubernetesConflict,
        KubernetesUnreachable,
        KubernetesBusy,
        KubernetesUnauthorized,
        KubernetesNotFound,
        KubernetesRefused,
    ],
)
async def test_a_failed_write_is_tried_again_with_pauses_that_grow(scene: Scene, error: Callable[[str], Exception]):
    scene.run()
    await asyncio.sleep(1)
    scene.api.errors = [error("No.") for _ in range(5)]
    began = len(scene.api.calls)
    scene.writer.tell(WARM)
    await asyncio.sleep(40)
    assert scene.api.condition["status"] == "True"
    tried = [at for at, _, _ in scene.api.calls[began:]][:6]
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses[0] < 1
    assert pauses[3] > 3


async def test_one_failure_is_no_news_and_three_are(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.api.errors = [KubernetesUnreachable("No answer.")]
    scene.writer.tell(WARM)
    await asyncio.sleep(5)
    assert scene.told.troubles == [("", False)]
    scene.api.errors = [KubernetesUnreachable("No answer.") for _ in range(4)]
    scene.writer.tell(GONE)
    await asyncio.sleep(30)
    assert [bool(sentence) for sentence, _ in scene.told.troubles] == [False, True, False]


async def test_a_missing_right_is_told_at_once_and_asked_for_rarely(scene: Scene):
    scene.api.errors = [KubernetesForbidden("patch pods/status is forbidden.") for _ in range(100)]
    scene.run()
    await asyncio.sleep(0.1)
    assert "patch pods/status" in scene.told.troubles[-1][0]
    assert scene.told.troubles[-1][1]
    await asyncio.sleep(300)
    assert len(scene.api.calls) < 2.5 * 300 / (0.8 * LONGEST_RETRY_S)
    scene.api.errors = []
    await asyncio.sleep(40)
    assert scene.api.condition["status"] == "False"
    assert scene.told.troubles[-1] == ("", False)


async def test_no_token_is_no_crash(scene: Scene):
    scene.api.errors = [NotInKubernetes("There is no token.") for _ in range(3)]
    scene.run()
    await asyncio.sleep(100)
    assert scene.api.condition["status"] == "False"


async def test_news_is_tried_at_once_although_the_last_try_asked_for_a_long_pause(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.writer.tell(WARM)
    scene.api.errors = [KubernetesUnreachable("No.") for _ in range(8)]
    await asyncio.sleep(70)
    scene.api.errors = []
    scene.writer.tell(GONE)
    await asyncio.sleep(1.1)
    assert scene.api.condition["status"] == "False"


async def test_a_write_that_hangs_does_not_hold_up_the_next_truth(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.api.seconds = 5.0
    scene.writer.tell(WARM)
    await asyncio.sleep(0.1)
    scene.api.seconds = 0.0
    scene.writer.tell(GONE)
    await asyncio.sleep(OVERTAKEN_S + 0.1)
    assert scene.api.condition["status"] == "False"
    assert scene.api.condition["reason"] == "AwaitingEngine"


async def test_an_overtaken_write_that_arrives_late_is_found_and_corrected(scene: Scene):
    scene.run()
    scene.writer.tell(GONE)
    await asyncio.sleep(0.1)
    scene.api.set(CONDITION, "True")
    await asyncio.sleep(3)
    assert scene.api.condition["status"] == "False"


async def test_a_successor_of_the_same_name_is_learnt_and_not_taken_for_this_pod(scene: Scene):
    scene.run()
    await asyncio.sleep(1)
    scene.api.pod["metadata"]["uid"] = "uid-2"
    scene.api.errors = [KubernetesRefused("metadata.uid: field is immutable")]
    scene.writer.tell(WARM)
    await asyncio.sleep(2)
    assert scene.api.calls[-1][2] is None or scene.api.calls[-1][2]["metadata"]["uid"] == "uid-2"
    assert scene.api.condition["status"] == "True"


async def test_without_the_right_to_read_the_pod_it_is_patched_all_the_same(scene: Scene):
    scene.api.errors = [KubernetesForbidden("get pods is forbidden."), None]
    scene.run()
    await asyncio.sleep(0.1)
    assert scene.api.condition["status"] == "False"


async def test_the_last_word_is_written_and_never_waited_for_long(scene: Scene):
    scene.run()
    scene.writer.tell(WARM)
    await asyncio.sleep(1)
    assert scene.job is not None
    scene.job.cancel()
    scene.writer.tell(GONE)
    await scene.writer.last_word(0.7)
    assert scene.api.condition["status"] == "False"

    scene.writer.tell(WARM)
    scene.api.seconds = 100.0
    began = asyncio.get_running_loop().time()
    await scene.writer.last_word(0.7)
    assert asyncio.get_running_loop().time() - began < 0.8


def bind(tmp_path: Path, uid: str) -> None:
    """Give the pod a token that is bound to a pod of this uid."""
    claims = {"kubernetes.io": {"namespace": "default", "pod": {"name": "vllm-0", "uid": uid}}}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    (tmp_path / "token").write_text(f"e30.{payload}.c2ln")


async def test_the_successor_of_a_pod_by_the_same_name_is_never_written_to(scene: Scene, tmp_path: Path):
    bind(tmp_path, "uid-0")
    scene.run()
    scene.writer.tell(WARM)
    await asyncio.sleep(300)
    assert scene.writes() == []
    assert any("another one by now" in sentence for sentence, _ in scene.told.troubles)


async def test_without_the_right_to_read_pods_the_tokens_uid_keeps_others_from_being_written_to(
    scene: Scene, tmp_path: Path
):
    bind(tmp_path, "uid-1")
    scene.api.errors = [KubernetesForbidden("may not get pods")]
    scene.run()
    await asyncio.sleep(1)
    bodies = [body for _, name, body in scene.api.calls if name == "patch condition"]
    assert bodies
    assert all(body["metadata"] == {"uid": "uid-1"} for body in bodies)
