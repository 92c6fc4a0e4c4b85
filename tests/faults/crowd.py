"""Tests whose pods need nothing from each other, run side by side: most of their time is waiting.

A test marked `side_by_side` takes nothing but `pod` and its parameters; what it claims is in the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.rig import Place, Pod

#: A pod is a handful of processes; two cores are kept busy by this many.
AT_ONCE = 4


@contextlib.contextmanager
def watched(root: Path, place: Place) -> Iterator[Pod]:
    """Give a pod; whatever happens to it, nothing may end in a traceback."""
    pod = Pod(root, place)
    try:
        yield pod
    finally:
        pod.close()
    log = pod.log.read_text(errors="replace") if pod.log.exists() else ""
    assert "Traceback" not in log
    assert "please report" not in log


@contextlib.contextmanager
def crowd(items: Iterable[pytest.Item], root: Path) -> Iterator[dict[str, Future[None]]]:
    """Start these tests, a few at a time; give their ends by name."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pod") as pool:
        yield {item.name: pool.submit(_run, item, root / str(number)) for number, item in enumerate(items)}


def _run(item: pytest.Item, root: Path) -> None:
    assert isinstance(item, pytest.Function)
    root.mkdir()
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    with watched(root, Place.below(root / "node")) as pod:
        item.obj(pod=pod, **parameters)
