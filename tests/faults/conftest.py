"""Fixtures of the fault tests: one node's paths, a published store, and pods made of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.planted import Planted, plant
from tests.faults.rig import Place, Pod


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Give the paths that all pods share: the live cache's path is part of every key."""
    return Place.below(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def planted_once(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Let one pod publish a store for all tests."""
    return plant(tmp_path_factory.mktemp("first"), place)


@pytest.fixture
def pod(place: Place, tmp_path: Path) -> Iterator[Pod]:
    """Give a pod with an empty store; whatever happened to it, nothing may have ended in a traceback."""
    made = Pod(tmp_path, place)
    yield made
    made.close()
    log = made.log.read_text(errors="replace") if made.log.exists() else ""
    assert "Traceback" not in log
    assert "please report" not in log


@pytest.fixture
def planted(planted_once: Planted, pod: Pod) -> Planted:
    """Give the pod a copy of a store with a whole generation."""
    planted_once.copy_to(pod.directories.store)
    return planted_once
