"""Fixtures for all tests: the engine, free ports, the three directories, and a running sidecar.

Fakes live in `fakes/`; what a single folder of tests needs lives in a conftest of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.tiny_model import make_tiny_model
from tests.object_server import ObjectServer, served
from tests.ports import unused_port
from tests.prepare import engine
from tests.sidecar_process import Directories, SidecarProcess

# No test claims a time, and on a busy machine an example takes as long as it takes.
settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --slow, which .ci/long gives."""
    parser.addoption("--slow", action="store_true", help="also run tests marked slow, which take minutes each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses the engine, and skip visibly what this machine or this run has no room for."""
    no_gpu = _why_no_gpu()
    for item in items:
        if "engine_paths" in getattr(item, "fixturenames", ()):
            item.add_marker("engine")
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: .ci/long runs it"))
        if item.get_closest_marker("gpu") and no_gpu:
            item.add_marker(pytest.mark.skip(reason=no_gpu))


def _why_no_gpu() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"no NVIDIA GPU can be used here: {error}"
    return "" if count else "no NVIDIA GPU here"


@pytest.fixture(scope="session", autouse=True)
def _loop_for_pytest_asyncio() -> Iterator[None]:
    """Set an event loop before pytest-asyncio looks for one.

    pytest-asyncio 1.5.0 saves the current loop before each test; on Python 3.11 that makes one when there is
    none, which nobody closes, and the collector's warning then fails whatever test runs at that moment.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="session")
def engine_paths() -> EnginePaths:
    """Give the CPU build of vLLM that `python -m tests` prepared."""
    found = engine.found()
    if found is None:
        pytest.skip(f"no CPU engine in {engine.engine_folder()}; `python -m tests --only engine` says why")
    return found


@pytest.fixture(scope="session")
def tiny_model(engine_paths: EnginePaths) -> Path:
    """Give the directory of the tiny model."""
    return make_tiny_model(engine_paths, engine.model_folder())


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Give a real S3-compatible server, one for all tests of this process."""
    with served(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the URL of an empty bucket, and this process and its children what they need to use it."""
    name = f"store-{uuid.uuid4().hex[:12]}"
    object_server.make(name)
    for variable, value in object_server.variables().items():
        monkeypatch.setenv(variable, value)
    yield f"s3://{name}/warm"
    object_server.remove(name)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Give a function that names a TCP port on the loopback address which nobody listened on just now."""
    return unused_port


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Make empty directories for live cache, store and control, private to the test."""
    made = Directories(tmp_path / "live", tmp_path / "store", tmp_path / "control")
    for folder in (made.live_cache, made.store, made.control):
        folder.mkdir()
    return made


@pytest.fixture
def start_sidecar(
    directories: Directories, free_port: Callable[[], int], tmp_path: Path
) -> Iterator[Callable[..., SidecarProcess]]:
    """Give a function that starts `warmup-sidecar run` with settings by name; all are stopped after the test.

    `start_sidecar(engine_url=..., command=[...])`: `command` is what follows `run --`.
    """
    with contextlib.ExitStack() as started:

        def start(command: list[str] | None = None, **settings: object) -> SidecarProcess:
            listen = f"127.0.0.1:{free_port()}"
            log = tmp_path / f"sidecar-{listen.rpartition(':')[2]}.log"
            process = SidecarProcess(directories, log, {"listen": listen, **settings}, command or [])
            return started.enter_context(process)

        yield start
