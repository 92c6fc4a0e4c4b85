"""A generation on which every engine dies: it is quarantined after two deaths, and the third start is cold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import PATIENCE_S, Container, Pod, until

#: An engine that dies at its start when it finds kernels, once somebody has poisoned them.
POISONED = """
if [ -e "$0.poisoned" ] && [ -n "$(ls -A "$TRITON_CACHE_DIR")" ]; then
  echo "AssertionError: expected size 7, got 9" >&2
  exit 1
fi
exec "$@"
"""


@pytest.fixture
def command(pod: Pod) -> list[str]:
    script = pod.place.script.with_name("engine.sh")
    script.write_text(POISONED)
    return ["/bin/sh", str(script), *pod.engine_command()]


def poison(command: list[str]) -> None:
    Path(f"{command[1]}.poisoned").touch()


def records(pod: Pod, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in pod.directories.store.glob(f"v1/exact/*/{kind}/*.json")]


def publish(pod: Pod, command: list[str]) -> None:
    daemon = pod.start_daemon(*command)
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    daemon.kill(15)
    daemon.process.wait(PATIENCE_S)


def test_a_child_that_dies_on_what_was_restored_is_started_again_at_last_with_empty_caches(
    pod: Pod, command: list[str]
) -> None:
    publish(pod, command)
    poison(command)
    daemon = pod.start_daemon(*command)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["restore"]["plan"] == "cold"
    assert "is quarantined" in daemon.notices()
    until(lambda: records(pod, "quarantine"), "a quarantine in the store")
    assert "died 2 times" in records(pod, "quarantine")[0]["reason"]
    assert [boot["outcome"] for boot in records(pod, "boots")].count("died") == 2


def test_a_container_that_dies_on_what_was_restored_comes_up_with_empty_caches_at_the_third_start(
    pod: Pod, command: list[str]
) -> None:
    publish(pod, command)
    poison(command)
    daemon = pod.start_daemon()
    for _ in range(2):
        container = Container(pod, command, {}, ())
        assert container.process.wait(PATIENCE_S) == 1
    daemon.told("is quarantined")
    container = Container(pod, command, {}, ())
    try:
        daemon.wait_until_ready(PATIENCE_S)
        assert daemon.status()["restore"]["plan"] == "cold"
    finally:
        container.close()
