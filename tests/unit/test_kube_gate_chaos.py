"""Whatever an API server answers in between, the condition is the truth in the end, and few writes were made. On virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.errors import (
    KubernetesBusy,
    KubernetesConflict,
    KubernetesError,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnauthorized,
    KubernetesUnreachable,
    NotInKubernetes,
)
from sidecar.kube.budget import Purse
from sidecar.kube.condition import CONDITION, Truth
from sidecar.kube.gate_writer import LONGEST_RETRY_S, GateWriter
from sidecar.kube.own_pod import OwnPod
from tests.unit.kube_scene import MemoryApiServer

pytestmark = pytest.mark.looptime

TRUTHS = (
    Truth("True", "Warm", "Nothing is left to compile."),
    Truth("False", "AwaitingEngine", "The engine has gone."),
    Truth("False", "WarmingUp", "Step 1."),
    Truth("False", "WarmingUp", "Step 2."),
    Truth("False", "NotWarmed", "Held by policy.", held=True),
)
#: What a proxy, an expired token, a role that was taken away or an API server that restarts answers; 410 is a KubernetesError.
ERRORS: tuple[Callable[[str], KubernetesError], ...] = (
    KubernetesBusy,
    KubernetesConflict,
    KubernetesError,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRefused,
    KubernetesUnauthorized,
    KubernetesUnreachable,
    NotInKubernetes,
)
PAUSES = (0.0, 0.01, 0.3, 1.0, 5.0, 30.0, 100.0)


@dataclass
class Told:
    """What the writer reports."""

    trouble_now: str = ""
    step: tuple[str, bool] = ("", False)
    troubles: list[str] = field(default_factory=list)

    def trouble(self, sentence: str, missing_right: bool) -> None:
        self.trouble_now = sentence

    def in_step(self, status: str, in_step: bool) -> None:
        self.step = (status, in_step)


@pytest.mark.parametrize("seed", range(40))
async def test_an_api_server_that_comes_to_its_senses_is_told_the_truth_within_the_longest_pause(
    tmp_path: Path, seed: int
):
    chance, api, told = random.Random(seed), MemoryApiServer(tmp_path), Told()
    clock = asyncio.get_running_loop().time
    writer = GateWriter(
        OwnPod(api), Purse(5, 60, clock), told, clock=clock, wall=lambda: 1.7e9 + clock(), jitter=chance.random
    )
    job = asyncio.create_task(writer.run())
    began, disturbed = clock(), 0
    for _ in range(chance.randrange(5, 60)):
        what = chance.random()
        if what < 0.4:
            writer.tell(chance.choice(TRUTHS))
            disturbed += 1
        elif what < 0.6:
            api.errors = [chance.choice(ERRORS)("No.") for _ in range(chance.randrange(6))]
            disturbed += len(api.errors)
        elif what < 0.7:
            api.seconds = chance.choice((0.0, 0.1, 2.0, 5.0))
        elif what < 0.8:
            # Another writer, or a patch of ours that arrived late.
            api.set(CONDITION, chance.choice(("True", "False")))
            disturbed += 1
        await asyncio.sleep(chance.choice(PAUSES))
    api.errors, api.seconds = [], 0.0
    await asyncio.sleep(2.5 * LONGEST_RETRY_S)
    assert not job.done()
    assert api.condition["status"] == writer.wanted.status
    assert told.step == (writer.wanted.status, True)
    assert told.trouble_now == ""
    # One for each thing that happened, and what the purse gives and the kubelet is nudged by.
    assert len(api.times("patch condition")) <= disturbed + 6 + (clock() - began) / 60
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
