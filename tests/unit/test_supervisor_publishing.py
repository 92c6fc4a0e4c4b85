"""What a publish is told of the publishes before it, by a pod whose cache worker only takes notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import lifecycle
from sidecar.caches.client import PublishRequest, PublishResult, RestoreRequest, RestoreResult
from sidecar.daemon import assembly
from sidecar.lifecycle import Mode
from sidecar.supervisor import fallbacks, restoring
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.serving import publish_once
from tests.unit.supervised import make_pod


class Worker:
    """Stands for the cache worker: every publish makes one pack, every restore ends in the same way."""

    def __init__(self, outcome: str = "kept") -> None:
        self.outcome, self.known = outcome, list[tuple[str, ...]]()

    async def publish(self, request: PublishRequest, deadline_s: float) -> PublishResult:
        self.known.append(request.packed)
        return PublishResult(outcome="published", sentence="Fine.", packed=(f"pack {len(self.known)}",))

    async def restore(self, request: RestoreRequest, deadline_s: float, on_progress: object) -> RestoreResult:
        return RestoreResult(outcome=self.outcome, sentence="Fine.")  # type: ignore[arg-type]


def pod_with(root: Path, worker: Worker) -> Pod:
    pod = make_pod(root, mode=Mode.LAUNCHER)
    pod.caches = worker  # type: ignore[assignment]
    return pod


async def test_each_publish_knows_the_packs_that_this_live_cache_went_into_before(tmp_path: Path) -> None:
    worker = Worker()
    pod = pod_with(tmp_path, worker)
    for _ in range(3):
        await publish_once(pod)
    assert worker.known == [(), ("pack 1",), ("pack 1", "pack 2")]
    assert "packed" not in pod.board.publish


@pytest.mark.parametrize(("outcome", "known"), [("kept", ("pack 1",)), ("miss", ()), ("hit", ())])
async def test_a_live_cache_that_was_replaced_was_published_by_nobody(
    tmp_path: Path, outcome: str, known: tuple[str, ...]
) -> None:
    worker = Worker(outcome)
    pod = pod_with(tmp_path, worker)
    await publish_once(pod)
    await restoring.restore(pod, lifecycle.Restore(1, "a-1", "fresh"))
    await publish_once(pod)
    assert worker.known[-1] == known


def test_a_restore_is_given_up_before_its_launcher_goes_on_by_itself_and_not_for_what_it_waits_for_beside() -> None:
    beside = fallbacks.LOOK_S + restoring.WRITE_S
    assert 60 + beside < restoring.deadline(60) < 60 + assembly.LAUNCHER_GRACE_S
    assert restoring.deadline(60) - 60 - beside >= restoring.GRACE_S
