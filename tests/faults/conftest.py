"""Fixtures of the fault tests: one node's paths, a published store, and pods made of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.faults.crowd import crowd, watched
from tests.faults.planted import Planted, plant
from tests.faults.rig import Place, Pod

SIDE_BY_SIDE = "side_by_side"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", f"{SIDE_BY_SIDE}: its pod needs nothing from others, so several run at once")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Wait for a test that runs side by side with others instead of calling it."""
    running = pyfuncitem.funcargs.get("pod")
    if not isinstance(running, Future):
        return None
    running.result()
    return True


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Give the paths that all pods share: the live cache's path is part of every key."""
    return Place.below(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def planted_once(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Let one pod publish a store for all tests."""
    return plant(tmp_path_factory.mktemp("first"), place)


@pytest.fixture(scope="module")
def side_by_side(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Start all tests of the module that run side by side; give their ends by name."""
    marked = [
        item
        for item in request.session.items
        if item.path == request.path and item.get_closest_marker(SIDE_BY_SIDE) is not None
    ]
    with crowd(marked, tmp_path_factory.mktemp("pods")) as ends:
        yield ends


@pytest.fixture
def pod(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Iterator[Pod | Future[None]]:
    """Give a pod with an empty store; to a test that runs side by side, its end."""
    if request.node.get_closest_marker(SIDE_BY_SIDE) is not None:
        yield request.getfixturevalue("side_by_side")[request.node.name]
        return
    with watched(tmp_path, place) as made:
        yield made


@pytest.fixture
def planted(planted_once: Planted, pod: Pod) -> Planted:
    """Give the pod a copy of a store with a whole generation."""
    planted_once.copy_to(pod.directories.store)
    return planted_once
