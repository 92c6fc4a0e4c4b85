"""Which fallback an engine starts with, of those that earlier pods came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.client import BootsRequest
from sidecar.lifecycle import Restore
from sidecar.supervisor import fallbacks
from sidecar.supervisor.pod import Pod
from tests.unit.supervised import ATTEMPT, make_pod, told

OLD = {"change": "--a 1", "at": 10.0, "reason": "the old reason"}
NEW = {"change": "--b 2", "at": 20.0, "reason": "the new reason"}
GONE = {"change": "--c 3", "at": 30.0, "reason": "no longer configured"}


def remembering(root: Path, monkeypatch: pytest.MonkeyPatch, configured: str, *records: Mapping[str, Any]) -> Pod:
    """Make a pod whose store remembers so much, and whose launcher can apply every fallback."""
    pod = make_pod(root, fallbacks=configured, on_golden_failed="fallback,hold")
    pod.facts = {"fallbacks": [{"text": each.text, "facts": {}} for each in pod.settings.fallback_changes]}

    async def boots(_request: BootsRequest, _deadline_s: float) -> tuple[Mapping[str, Any], ...]:
        return records

    monkeypatch.setattr(pod.caches, "boots", boots)
    return pod


@pytest.mark.parametrize("configured", ["--a 1; --b 2", "--b 2; --a 1"])
@pytest.mark.parametrize("records", [(OLD, NEW, GONE), (GONE, NEW, OLD)])
async def test_of_several_that_are_remembered_the_newest_is_taken_in_whatever_order_they_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str, records: tuple[Mapping[str, Any], ...]
) -> None:
    pod = remembering(tmp_path, monkeypatch, configured, *records)
    chosen = await fallbacks.choose(pod, Restore(1, ATTEMPT, "fresh"))
    assert pod.settings.fallback_changes[chosen.number - 1].text == "--b 2"
    assert chosen.why == "the new reason"
    assert "`--c 3` is not among WARMUP_FALLBACKS any more" in told(pod)


async def test_a_record_without_a_time_is_older_than_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = remembering(tmp_path, monkeypatch, "--b 2; --a 1", NEW, {"change": "--a 1"})
    assert (await fallbacks.choose(pod, Restore(1, ATTEMPT, "fresh"))).number == 1


async def test_nothing_that_is_configured_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = remembering(tmp_path, monkeypatch, "--a 1", GONE)
    assert await fallbacks.choose(pod, Restore(1, ATTEMPT, "fresh")) == fallbacks.Chosen()


async def test_one_that_this_pod_tried_in_vain_is_not_taken_again_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = remembering(tmp_path, monkeypatch, "--a 1; --b 2", OLD)
    assert await fallbacks.choose(pod, Restore(1, ATTEMPT, "fresh", tried=1)) == fallbacks.Chosen()
    assert "`--a 1` is not taken, because this pod gave it, or a later one, up" in told(pod)
