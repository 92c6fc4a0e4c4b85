"""Fixtures for tests against an API server: the real one, started once, and the fake one, fresh for each test.

Nothing is asserted here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.kube.api import ApiServer
from tests.fakes.apiserver import FakeApiServer
from tests.kubernetes import apiserver as k8s
from tests.kubernetes.apiserver import FakeCluster, RealCluster, RealServer
from tests.prepare import apiserver as prepared


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Start a real kube-apiserver with its etcd, where they were prepared."""
    if reason := prepared.why_not():
        pytest.skip(reason)
    with k8s.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(params=["fake", "real"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[k8s.Cluster]:
    """Give an API server: each test runs against the fake and against the real one."""
    if request.param == "fake":
        async with FakeApiServer(tmp_path / "server") as server:
            yield FakeCluster(server)
        return
    server = request.getfixturevalue("real_server")
    granting = ApiServer(k8s.account(server, tmp_path, "admin"), call_s=30)
    yield RealCluster(server, granting)
    await granting.close()
