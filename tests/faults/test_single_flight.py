"""Single flight with real processes: one pod makes the first generation of a key, the others wait for it, and say so."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.faults.planted import Planted
from tests.faults.rig import PATIENCE_S, Pod, until


def claims(pod: Pod, name: str) -> list[dict[str, Any]]:
    found = sorted(pod.directories.store.glob(f"v1/exact/*/claims/first/*/{name}.json"))
    return [json.loads(path.read_text()) for path in found]


def key_of(store: Path) -> str:
    [folder] = store.glob("v1/exact/*")
    return folder.name


def test_a_pod_waits_for_the_first_publisher_says_so_and_starts_warm(pod: Pod, planted_once: Planted) -> None:
    folder = pod.directories.store / "v1/exact" / key_of(planted_once.store) / "claims/first/00000001"
    folder.mkdir(parents=True)
    (folder / "holder.json").write_text(json.dumps({"format": 1, "holder": "pod-a"}))
    daemon = pod.start_daemon(single_flight_s=600)
    pod.start_container()
    until(lambda: daemon.status()["restore"].get("outcome") == "waiting", "a pod that waits")
    status, sentence = daemon.readyz()
    assert (status, "Waiting for pod-a, which starts cold" in sentence) == (503, True)
    planted_once.copy_to(pod.directories.store)
    daemon.wait_until_ready(PATIENCE_S)
    restored = daemon.status()["restore"]
    assert restored["outcome"] == "hit"
    assert restored["waited_s"] > 0
    assert "warmup_sidecar_restore_waited_seconds_total" in daemon.get("/metrics")[1]


def test_a_pod_that_waits_longer_than_it_is_told_to_starts_cold(pod: Pod, planted_once: Planted) -> None:
    folder = pod.directories.store / "v1/exact" / key_of(planted_once.store) / "claims/first/00000001"
    folder.mkdir(parents=True)
    (folder / "holder.json").write_text(json.dumps({"format": 1, "holder": "pod-a"}))
    daemon = pod.start(single_flight_s=1, restore_timeout_s=30)
    assert daemon.status()["restore"]["outcome"] == "miss"


def test_the_first_pod_starts_at_once_holds_its_claim_and_gives_it_back_with_the_publish(pod: Pod) -> None:
    began = time.monotonic()
    daemon = pod.start_daemon(single_flight_s=600, publish_quiet_s=2)
    pod.start_container()
    pod.engine_pid()
    assert time.monotonic() - began < 60
    assert len(claims(pod, "holder")) == 1
    assert not any(beat["released"] for beat in claims(pod, "beat"))
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: any(beat["released"] for beat in claims(pod, "beat")), "a claim that is given back")
    assert daemon.status()["publish"]["outcome"] == "published"


def test_a_first_pod_that_is_told_to_end_gives_its_claim_back_and_one_that_is_killed_does_not(pod: Pod) -> None:
    for number, released in ((15, True), (9, False)):
        daemon = pod.start_daemon(single_flight_s=600, publish_quiet_s=60)
        pod.start_container()
        daemon.wait_until_ready(PATIENCE_S)
        # The claim is held by a process of its own, which must have come up to be told.
        time.sleep(1)
        daemon.kill(number)
        daemon.process.wait(PATIENCE_S)
        pod.container.close()
        if released:
            until(lambda: claims(pod, "beat")[-1]["released"], "a claim that is given back")
        else:
            time.sleep(1)
            assert not claims(pod, "beat")[-1]["released"]
