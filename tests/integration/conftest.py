"""Pods and stories with the real vLLM on CPU, each made once when the first test asks for it.

What happens in a story is in `stories.py`; tests may run in any order and alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.demo.engine_setup import EnginePaths
from tests.integration import stories
from tests.integration.pod import END_S, LATE_FEATURE_WORDS, READY_S, Pod


def _pod(
    tmp_path_factory: pytest.TempPathFactory, name: str, paths: EnginePaths, model: Path, *serve: str
) -> Iterator[Pod]:
    pod = Pod(tmp_path_factory.mktemp(name) / "pod", paths, model, *serve)
    try:
        yield pod
    finally:
        pod.end()


@pytest.fixture(scope="session")
def pod(tmp_path_factory: pytest.TempPathFactory, engine_paths: EnginePaths, tiny_model: Path) -> Iterator[Pod]:
    """Give the pod with which everything goes well until somebody kills its engine."""
    yield from _pod(tmp_path_factory, "steady", engine_paths, tiny_model)


@pytest.fixture(scope="session")
def troubled_pod(
    tmp_path_factory: pytest.TempPathFactory, engine_paths: EnginePaths, tiny_model: Path
) -> Iterator[Pod]:
    """Give the pod whose engine dies in warm-up, beside a store that nobody may write to."""
    yield from _pod(tmp_path_factory, "troubled", engine_paths, tiny_model, *LATE_FEATURE_WORDS)


@pytest.fixture(scope="session")
def child_pod(tmp_path_factory: pytest.TempPathFactory, engine_paths: EnginePaths, tiny_model: Path) -> Iterator[Pod]:
    """Give folders and ports for daemons that start the engine themselves."""
    yield from _pod(tmp_path_factory, "child", engine_paths, tiny_model)


@pytest.fixture(scope="session")
def first_start(pod: Pod) -> stories.FirstStart:
    """Start on an empty store."""
    return stories.first_start(pod)


@pytest.fixture
def serving_pod(pod: Pod, first_start: stories.FirstStart) -> Pod:
    """Give the first pod with an engine that is ready and proven, whatever other tests have done to it."""
    if pod.engine is None or not pod.engine.runs:
        pod.end()
        pod.start_daemon()
        pod.start_engine()
    assert pod.daemon is not None
    pod.daemon.wait_until_ready(READY_S)
    proven = pod.workplace.control / "proven.json"
    pod.daemon.wait_for(lambda _: proven.exists(), END_S, "the engine is proven")
    return pod


@pytest.fixture(scope="session")
def restored_start(pod: Pod, first_start: stories.FirstStart) -> stories.RestoredStart:
    """Wipe everything but the store and start again."""
    return stories.restored_start(pod)


@pytest.fixture(scope="session")
def killed_ready(pod: Pod, restored_start: stories.RestoredStart) -> stories.KilledReady:
    """Kill the engine of the restored pod and start it again."""
    return stories.killed_ready(pod)


@pytest.fixture(scope="session")
def other_arguments(pod: Pod, killed_ready: stories.KilledReady) -> stories.OtherArguments:
    """Start an engine with other arguments on what the first one published."""
    return stories.other_arguments(pod)


@pytest.fixture(scope="session")
def killed_warming(troubled_pod: Pod) -> stories.KilledWarming:
    """Kill a cold engine while it is warmed, and start it again."""
    return stories.killed_warming(troubled_pod, troubled_pod.workplace.root / "small.yaml")


@pytest.fixture(scope="session")
def late_kernel(troubled_pod: Pod, killed_warming: stories.KilledWarming) -> stories.LateKernel:
    """Send a request whose kernel nothing has warmed; the pod has done its part then."""
    return stories.late_kernel(troubled_pod)
