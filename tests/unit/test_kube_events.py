"""Events: few, counted instead of repeated, and dropped rather than in anybody's way. On virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.errors import KubernetesForbidden, KubernetesUnreachable
from sidecar.kube import events
from sidecar.kube.budget import Purse
from sidecar.kube.event_writer import EventWriter
from sidecar.kube.own_pod import OwnPod
from tests.unit.kube_scene import MemoryApiServer

pytestmark = pytest.mark.looptime


class Scene:
    """A writer of Events, of a pod that was ready or not."""

    def __init__(self, tmp_path: Path, *, ready: bool = True) -> None:
        clock = asyncio.get_running_loop().time
        self.api = MemoryApiServer(tmp_path)
        self.troubles: list[tuple[str, bool]] = []
        self.purse = Purse(5, 60, clock)
        if ready:
            self.purse.open()
        self.writer = EventWriter(
            OwnPod(self.api),
            self.purse,
            lambda *trouble: self.troubles.append(trouble),
            clock=clock,
            wall=lambda: 1.7e9 + clock(),
        )
        self.job = asyncio.create_task(self.writer.run())

    def written(self) -> list[str]:
        return [event["note"] for event in self.api.events.values()]


async def test_an_event_is_written_about_this_very_pod(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.writer.announce(events.HELD, "Held by policy.")
    await asyncio.sleep(1)
    [event] = scene.api.events.values()
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "vllm-0", "uid": "uid-1",
    }  # fmt: skip
    assert (event["reason"], event["type"], event["note"]) == ("TrafficHeld", "Warning", "Held by policy.")
    scene.job.cancel()


async def test_the_same_event_is_counted_and_another_sentence_is_another_event(tmp_path: Path):
    scene = Scene(tmp_path)
    for note in ("One.", "One.", "Two."):
        scene.writer.announce(events.WITHDRAWN, note)
        await asyncio.sleep(1)
    assert scene.written() == ["One.", "Two."]
    assert next(iter(scene.api.events.values()))["series"]["count"] == 2
    scene.job.cancel()


async def test_a_pod_that_flaps_writes_few_events(tmp_path: Path):
    scene = Scene(tmp_path)
    for number in range(600):
        scene.writer.announce(events.WITHDRAWN, f"Gone {number}.")
        scene.writer.announce(events.ENGINE_WARM, f"Warm {number}.")
        await asyncio.sleep(1)
    assert len(scene.api.calls) <= 5 + 600 / 60 + 2
    assert any("such events" in note for note in scene.written())
    scene.job.cancel()


async def test_before_the_pod_was_ready_there_is_room_for_one(tmp_path: Path):
    scene = Scene(tmp_path, ready=False)
    scene.writer.announce(events.DEGRADED, "The store is away.")
    scene.writer.announce(events.HELD, "Held.")
    await asyncio.sleep(200)
    assert scene.written() == ["The store is away."]
    scene.purse.open()
    await asyncio.sleep(6)
    assert scene.written() == ["The store is away.", "Held."]
    scene.job.cancel()


async def test_a_lost_answer_makes_no_second_event(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.api.errors = [None, KubernetesUnreachable("lost"), KubernetesUnreachable("lost")]
    scene.writer.announce(events.HELD, "Held.")
    await asyncio.sleep(30)
    names = [body["metadata"]["name"] for _, name, body in scene.api.calls if name == "create event"]
    assert len(names) == 3
    assert len(set(names)) == 1
    scene.job.cancel()


async def test_a_missing_right_is_told_and_left_alone(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.api.errors = [None] + [KubernetesForbidden("create events is forbidden.") for _ in range(9)]
    for number in range(100):
        scene.writer.announce(events.HELD, f"Held {number}.")
        await asyncio.sleep(1)
    assert len(scene.api.times("create event")) == 1
    assert scene.troubles[-1][1]
    scene.job.cancel()


@pytest.mark.looptime(False)
def test_a_note_is_cut_at_a_character_within_its_bytes():
    about = events.Regarding("default", "vllm-0", "")
    note = events.create(events.HELD, "é" * 2000, about, "name", "now")["note"]
    assert len(note.encode()) <= events.NOTE_LIMIT
    assert note.endswith("é…")
    assert "uid" not in events.create(events.HELD, "x", about, "name", "now")["regarding"]


@pytest.mark.looptime(False)
def test_reasons_are_words_of_kubernetes():
    names = [reason.name for reason in events.REASONS]
    assert len(set(names)) == len(names)
    for reason in events.REASONS:
        assert reason.name.isalnum()
        assert reason.name[0].isupper()
        assert len(reason.name) <= 128
