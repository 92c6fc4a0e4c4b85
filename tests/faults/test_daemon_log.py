"""A daemon whose log can't be written goes on, and its gate goes on following the engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine

PATIENCE_S = 30.0


def answers(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(stderr: int, *words: str) -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        command = [sys.executable, "-m", "sidecar", "run", f"--listen=127.0.0.1:{port}", "--gpu-interval-s=0"]
        command += [f"--control-dir={tmp_path}/control", f"--live-cache={tmp_path}/live", *words]
        running.append(subprocess.Popen(command, stderr=stderr))
        return running[-1], port

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


def test_a_full_disk_under_the_log_does_not_end_the_daemon(run) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process, port = run(full, "--log-level=debug")
    os.close(full)
    assert wait_for(lambda: answers(port, "/livez") == 200)
    process.terminate()
    assert process.wait(20) == 0


async def test_a_log_reader_that_went_away_does_not_leave_a_dead_engine_ready(run) -> None:
    import asyncio

    reader, writer = os.pipe()
    async with FakeEngine() as engine:
        _, port = run(writer, "--no-launcher", f"--engine-url={engine.url}", "--log-level=debug")
        os.close(writer)
        assert await asyncio.to_thread(wait_for, lambda: answers(port, "/readyz") == 200)
        os.close(reader)
        engine.script.health = "503"
        assert await asyncio.to_thread(wait_for, lambda: answers(port, "/readyz") == 503)
