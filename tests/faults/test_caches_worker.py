"""The cache worker as a real child process: it works, hangs, dies, talks garbage; the daemon survives all of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sidecar.caches import client as caches_client
from sidecar.caches.client import CacheClient, Progress, PublishRequest, RestoreRequest
from tests.fakes import live_cache as fake
from tests.own_processes import children

ROOT = Path(__file__).parents[2]
PATIENT_S = 60.0


def scripted(*lines: str) -> CacheClient:
    """Make a client whose worker is a few lines of Python."""
    return CacheClient(time.monotonic, [sys.executable, "-c", "\n".join(("import os, sys, time", *lines))])


def request(root: Path, **changes: Any) -> RestoreRequest:
    values = {
        "store": str(root / "store"),
        "live_cache": str(root / "live"),
        "facts": fake.facts(),
        "attempt": "1-1-ab",
    }
    return RestoreRequest(**{**values, **changes})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    fake.fill(tmp_path / "live")
    return tmp_path


def wish(root: Path) -> PublishRequest:
    return PublishRequest(
        store=str(root / "store"), live_cache=str(root / "live"), facts=fake.facts(), attempt="1-1-ab"
    )


async def test_the_real_worker_publishes_and_restores_with_progress(root: Path) -> None:
    client, seen = CacheClient(time.monotonic), list[Progress]()
    published = await client.publish(wish(root), PATIENT_S)
    assert published.outcome == "published"
    restored = await client.restore(request(root), PATIENT_S, seen.append)
    assert (restored.outcome, restored.files) == ("hit", 24)
    assert seen[-1].files_done == 24


@pytest.mark.parametrize("by_hook", [False, True])
async def test_a_package_beside_ours_hides_no_module_of_pythons_own(
    root: Path, monkeypatch: pytest.MonkeyPatch, by_hook: bool
) -> None:
    site = root / "site-packages"
    fake.put(site / "json.py", "raise ImportError('not the json that is meant')")
    (site / "sidecar").symlink_to(ROOT / "sidecar")
    monkeypatch.setattr(caches_client, "__file__", str(site / "sidecar/caches/client.py"))
    others = [place for place in sys.path if place != str(ROOT)]
    monkeypatch.setattr(sys, "path", others if by_hook else [*others, str(site)])
    published = await CacheClient(time.monotonic).publish(wish(root), PATIENT_S)
    assert published.outcome == "published", published.sentence


async def test_a_worker_that_hangs_is_killed_at_the_deadline_and_leaves_no_process(root: Path) -> None:
    client = scripted("if os.fork() == 0: time.sleep(600)", "time.sleep(600)")
    started = time.monotonic()
    result = await client.restore(request(root), 0.5)
    assert result.outcome == "timed_out"
    assert "0.5 s" in result.sentence
    assert time.monotonic() - started < 10
    assert str(root / "live/triton") in result.clear, "what no marker explains does not stay for the engine"
    await gone()


async def gone() -> None:
    """Wait until this process has no child left, zombies included."""
    await until(lambda: not children())


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that the kernel tells nobody about. Fails after 10 s."""
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still not so: {children()}")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["sys.exit('no module named nothing')"], "code 1"),
        (["os.kill(os.getpid(), 9)"], "container's memory limit"),
        (["os.kill(os.getpid(), 10)"], "ended by signal 10"),
        (["print('hello'); print('[1]'); print('{}'); print('{\"kind\": 1}')"], "gave no result"),
        (['print(\'{"kind": "result", "result": {"outcome": 1}}\')'], "can't be used"),
        (["sys.stdout.buffer.write(b'\\xff' * 100 + b'\\n')"], "gave no result"),
        (["while True: sys.stdout.buffer.write(b'x' * 1000000)"], "gave no result"),
        (["raise MemoryError('out of memory')"], "out of memory"),
        (["sys.stdin.close(); os.close(0); sys.exit(3)"], "code 3"),
    ],
)
async def test_a_worker_that_dies_or_talks_garbage_is_a_failure_with_a_sentence(
    root: Path, lines: list[str], says: str
) -> None:
    result = await scripted(*lines).restore(request(root), PATIENT_S)
    assert result.outcome == "failed"
    assert says in result.sentence
    published = await scripted(*lines).publish(wish(root), PATIENT_S)
    assert published.outcome == "failed"
    await gone()


async def test_a_worker_that_can_not_be_started_is_a_failure_with_a_sentence(root: Path) -> None:
    result = await CacheClient(time.monotonic, ["/nowhere/python"]).restore(request(root), PATIENT_S)
    assert result.outcome == "failed"
    assert "could not be started" in result.sentence


async def test_a_restore_that_is_cancelled_leaves_no_process(root: Path) -> None:
    task = asyncio.ensure_future(scripted("time.sleep(600)").restore(request(root), PATIENT_S))
    await until(lambda: bool(children()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone()


def test_a_worker_ends_with_the_daemon_that_started_it(root: Path) -> None:
    os.mkfifo(root / "pipe")
    hang = f"open({str(root / 'pipe')!r})"
    script = f"from sidecar.caches.worker import end_with\nimport sys\nend_with(sys.stdin.buffer)\n{hang}"
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.poll() is None
    worker.stdin.close()
    assert worker.wait(timeout=30) == 1


async def test_a_store_that_is_full_is_a_failure_that_says_so(root: Path) -> None:
    # A limit on file size stands in for a full disk: the kernel answers write() with an error for real.
    fake.put(root / "live/inductor/ca/big.so", os.urandom(200_000))
    limited = ["sh", "-c", f"ulimit -f 20; exec {sys.executable} -m sidecar.caches.worker"]
    result = await CacheClient(time.monotonic, limited).publish(wish(root), PATIENT_S)
    assert result.outcome == "failed"
    assert "is full" in result.sentence
    assert not list((root / "store").glob("v1/*/*/generations/*"))
    assert not list((root / "store").glob("v1/packs/.*"))


async def test_a_live_cache_that_is_full_is_a_cold_start_with_nothing_half_staged(root: Path) -> None:
    fake.put(root / "live/inductor/ca/big.so", os.urandom(200_000))
    assert (await CacheClient(time.monotonic).publish(wish(root), PATIENT_S)).outcome == "published"
    limited = ["sh", "-c", f"ulimit -f 20; exec {sys.executable} -m sidecar.caches.worker"]
    result = await CacheClient(time.monotonic, limited).restore(request(root), PATIENT_S)
    assert result.outcome == "failed"
    assert "live cache" in result.sentence
    assert result.commit == ()
    assert not list((root / "live/.staging").glob("*"))


def test_importing_the_client_loads_no_archive_library() -> None:
    script = "import sidecar.caches.client, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not {"zstandard", "psutil", "tarfile", "pydantic", "aiohttp"} & loaded


async def test_publishing_gives_way_to_the_engine(root: Path) -> None:
    script = (
        "import json, os, psutil, sys\nsys.stdin.readline()\n"
        "said = f'{os.nice(0)} {int(psutil.Process().ionice().ioclass)}'\n"
        "print(json.dumps({'kind': 'result', 'result': {'outcome': 'published', 'sentence': said}}))"
    )
    result = await CacheClient(time.monotonic, [sys.executable, "-c", script]).publish(wish(root), PATIENT_S)
    niceness, io_class = result.sentence.split()
    assert int(niceness) >= 15
    assert int(io_class) == psutil.IOPRIO_CLASS_IDLE
