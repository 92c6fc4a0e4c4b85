"""The marker says whose files lie in the live cache; one that a slow disk wrote too late says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.caches import live_cache
from sidecar.caches.live_cache import LiveMarker, read_marker
from sidecar.lifecycle import Mode
from sidecar.supervisor import restoring
from sidecar.supervisor.pod import Pod
from tests.unit.supervised import ATTEMPT, make_pod, restored, told


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    found = make_pod(tmp_path, mode=Mode.LAUNCHER)
    Path(found.live_cache).mkdir(exist_ok=True)
    restored(found, "hit", generations={"exact": "3-abc"})
    return found


async def test_the_marker_names_the_keys_and_generations_of_what_was_laid(pod: Pod) -> None:
    await restoring.mark(pod, ATTEMPT)
    marker = read_marker(pod.live_cache)
    assert marker is not None
    assert (marker.exact_key, marker.attempt, marker.generations) == ("e" * 16, ATTEMPT, {"exact": "3-abc"})
    assert told(pod) == ""


async def test_a_marker_that_comes_when_the_next_start_has_laid_other_files_is_taken_away(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = live_cache.write_marker

    def late(place: Path | str, marker: LiveMarker) -> None:
        restored(pod, "disabled")
        write(place, marker)

    monkeypatch.setattr(live_cache, "write_marker", late)
    await restoring.mark(pod, ATTEMPT)
    assert read_marker(pod.live_cache) is None
