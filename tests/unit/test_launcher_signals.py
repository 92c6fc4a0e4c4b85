"""Signals, drain and the end of an engine, with real processes and a real metrics endpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.launching import SHELL, Stage, children, output, runs, until

#: Says which signals came, and ends at the last of them.
TELLS = (
    "import os, signal, sys, time\n"
    "def tell(number, _):\n"
    "    os.write(1, signal.Signals(number).name.encode() + b'\\n')\n"
    "    if number in (signal.SIGTERM, signal.SIGINT): sys.exit(7)\n"
    "for name in 'HUP INT TERM USR1 USR2 WINCH QUIT'.split(): signal.signal(getattr(signal, 'SIG' + name), tell)\n"
    "os.write(1, b'up\\n')\n"
    "while True: time.sleep(60)\n"
)
ENGINE = (sys.executable, "-I", "-S", "-c", TELLS)


class Metrics(BaseHTTPRequestHandler):
    """Answers /metrics with what the test says."""

    body: ClassVar[str] = ""
    asked: ClassVar[int] = 0
    #: For ever, a line now and then.
    endless: ClassVar[bool] = False

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200 if self.body or self.endless else 404)
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.endless:
                self.wfile.write(b"# more\n")
                threading.Event().wait(0.2)
        self.wfile.write(self.body.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def metrics() -> Iterator[tuple[str, type[Metrics]]]:
    handler = type("Answers", (Metrics,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def running(count: int, waiting: int = 0) -> str:
    """Give metrics as vLLM 0.33 writes them."""
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0",model_name="a b}}"}} {float(count)}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="a"}} {float(waiting)}\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0\n'
    )


def up(stage: Stage, *command: str) -> tuple[str, Any]:
    """Start an engine and wait until it has said that it is up."""
    attempt, process = stage.started(*(command or ENGINE))
    assert process.stdout.readline() == b"up\n"
    return attempt, process


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGQUIT"])
def test_signals_are_forwarded(stage: Stage, name: str):
    _, process = up(stage)
    process.send_signal(getattr(signal, name))
    assert process.stdout.readline().decode().strip() == name


def test_an_interrupt_is_forwarded_at_once_even_with_requests_in_flight(tmp_path: Path, metrics):
    url, answers = metrics
    answers.body = running(3)
    stage = Stage(tmp_path, {"engine_url": url})
    try:
        _, process = up(stage)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"SIGINT\n"
        assert process.wait(10) == 7
        assert answers.asked == 0
    finally:
        stage.close()


def test_sigterm_is_held_until_no_request_is_in_flight(tmp_path: Path, metrics):
    url, answers = metrics
    answers.body = running(0, waiting=2)
    stage = Stage(tmp_path, {"engine_url": url, "drain_s": 30.0})
    try:
        attempt, process = up(stage)
        process.terminate()
        until(lambda: answers.asked >= 4, "several looks at the metrics")
        assert stage.sidecar.state(attempt).terminating
        assert process.poll() is None
        assert runs(stage.engine(attempt))
        answers.body = running(0)
        assert process.stdout.readline() == b"SIGTERM\n"
        assert process.wait(10) == 7
    finally:
        stage.close()


def test_an_engine_whose_metrics_never_end_is_told_to_end_after_the_cap(tmp_path: Path, metrics):
    url, answers = metrics
    answers.endless = True
    stage = Stage(tmp_path, {"engine_url": url, "drain_s": 1.0})
    try:
        _, process = up(stage)
        process.terminate()
        assert process.wait(30) == 7
        assert answers.asked == 1
    finally:
        answers.endless = False
        stage.close()


def test_sigterm_is_held_for_the_settle_time_although_nothing_is_in_flight(tmp_path: Path, metrics):
    url, answers = metrics
    answers.body = running(0)
    stage = Stage(tmp_path, {"engine_url": url, "settle_s": 1.0})
    try:
        _, process = up(stage)
        began = time.monotonic()
        process.terminate()
        assert process.stdout.readline() == b"SIGTERM\n"
        assert time.monotonic() - began >= 1.0
    finally:
        stage.close()


@pytest.mark.parametrize("body", [running(1), "", "not metrics at all\n"], ids=["busy", "404", "unknown"])
def test_draining_ends_at_its_cap_whatever_is_in_flight(tmp_path: Path, metrics, body: str):
    url, answers = metrics
    answers.body = body
    stage = Stage(tmp_path, {"engine_url": url, "drain_s": 0.6})
    try:
        _, process = up(stage)
        began = time.monotonic()
        process.terminate()
        assert process.stdout.readline() == b"SIGTERM\n"
        assert 0.6 <= time.monotonic() - began < 5
    finally:
        stage.close()


def test_a_second_sigterm_is_not_held(tmp_path: Path, metrics):
    url, answers = metrics
    answers.body = running(1)
    stage = Stage(tmp_path, {"engine_url": url, "drain_s": 60.0})
    try:
        attempt, process = up(stage)
        process.terminate()
        stage.state(attempt, lambda state: state.terminating, "terminating.json")
        process.terminate()
        began = time.monotonic()
        assert process.stdout.readline() == b"SIGTERM\n"
        assert time.monotonic() - began < 10
    finally:
        stage.close()


def test_an_engine_that_does_not_listen_yet_is_ended_at_once(tmp_path: Path):
    stage = Stage(tmp_path, {"drain_s": 60.0, "settle_s": 60.0})
    try:
        _, process = up(stage)
        process.terminate()
        began = time.monotonic()
        assert process.stdout.readline() == b"SIGTERM\n"
        assert time.monotonic() - began < 10
    finally:
        stage.close()


def test_an_engine_that_ignores_sigterm_is_killed_with_its_processes(tmp_path: Path):
    stage = Stage(tmp_path, {"kill_s": 0.5})
    try:
        command = "trap '' TERM; /bin/sleep 1000 & echo up; wait; wait; wait"
        attempt, process = up(stage, SHELL, "-c", command)
        pid = stage.engine(attempt)
        worker = until(lambda: children(pid), "a worker")[0]
        process.terminate()
        assert process.wait(20) == 137
        assert not runs(pid)
        assert not runs(worker)
    finally:
        stage.close()


def test_sigterm_while_waiting_for_the_decision_ends_without_an_engine(stage: Stage):
    process = stage.launch(SHELL, "-c", "echo ran")
    attempt = stage.waiting().attempt
    process.terminate()
    out, _ = output(process)
    assert (out, process.returncode) == (b"", 143)
    exited = stage.sidecar.state(attempt).exited
    assert exited is not None
    assert (exited.code, exited.signal) == (None, 15)


def test_a_killed_launcher_leaves_no_orphan(stage: Stage):
    attempt, process = up(stage)
    pid = stage.engine(attempt)
    process.kill()
    until(lambda: not runs(pid), "the engine's death")
    until(lambda: stage.sidecar.current() is None, "the launcher's death")


def test_workers_that_outlived_a_killed_launcher_are_gone_before_the_next_engine_starts(stage: Stage):
    attempt, process = up(stage, SHELL, "-c", "/usr/bin/setsid /bin/sleep 1000 & echo up; wait")
    pid = stage.engine(attempt)
    worker = until(lambda: children(pid), "a worker")[0]
    process.kill()
    until(lambda: not runs(pid), "the engine's death")
    assert runs(worker)
    _, second = stage.started(
        SHELL,
        "-c",
        f"test -d /proc/{worker} && /bin/grep -q 'State:.Z' /proc/{worker}/status || ! test -d /proc/{worker}",
    )
    output(second)
    assert second.returncode == 0


def test_workers_that_the_engine_left_behind_are_ended_with_it(stage: Stage):
    attempt, process = stage.started(SHELL, "-c", "/bin/sleep 1000 & echo $!; exit 3")
    worker = int(process.stdout.readline())
    assert process.wait(10) == 3
    assert not runs(worker)
    assert stage.sidecar.state(attempt).alive is False


def test_orphans_become_the_launchers_and_are_reaped_while_the_engine_runs(stage: Stage):
    # As PID 1 they would be; elsewhere the launcher asks for them.
    _, process = up(stage, SHELL, "-c", "(/bin/sleep 600 & echo up; echo $!) ; exec /bin/sleep 60")
    orphan = int(process.stdout.readline())
    until(lambda: orphan in children(process.pid), "an orphan that was adopted")
    os.kill(orphan, signal.SIGKILL)
    until(lambda: len(children(process.pid)) == 1, "only the engine as a child")


def test_what_was_ignored_at_the_start_stays_ignored(stage: Stage):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        attempt, process = stage.started(
            SHELL, "-c", "grep SigIgn /proc/self/status; exec /bin/sleep 60", env={"PATH": "/bin:/usr/bin"}
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert int(process.stdout.readline().split()[1], 16) & (1 << (signal.SIGHUP - 1))
    os.kill(process.pid, signal.SIGHUP)
    assert runs(stage.engine(attempt))
