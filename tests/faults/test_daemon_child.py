"""Child mode and the end of the daemon: exit codes, signals, no orphans, and an end within 2 s in launcher mode."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.faults.rig import PATIENCE_S, Pod, descendants, runs, until

#: DESIGN §3, "Drain".
END_S = 2.0
#: Writes the signals that it gets into a file, and ends at the first with the exit code that the file's name says.
WITNESS = """
import pathlib, signal, sys
def note(number, frame):
    pathlib.Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(int(sys.argv[2]))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, note)
pathlib.Path(sys.argv[1]).write_text("up")
while True:
    signal.pause()
"""


def witness(pod: Pod, code: int) -> tuple[list[str], Path]:
    said = pod.root / "witness"
    return [sys.executable, "-c", WITNESS, str(said), str(code)], said


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_child_s_exit_code_is_the_daemon_s(pod: Pod):
    daemon = pod.launch_daemon("/bin/sh", "-c", "exit 42")
    assert daemon.process.wait(PATIENCE_S) == 42


def test_a_child_that_dies_by_a_signal_ends_the_daemon_as_a_shell_would(pod: Pod):
    daemon = pod.launch_daemon("/bin/sh", "-c", "kill -KILL $$")
    assert daemon.process.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_ends_with_127_and_a_sentence(pod: Pod):
    daemon = pod.launch_daemon("/nowhere/vllm", "serve")
    assert daemon.process.wait(PATIENCE_S) == 127
    assert "/nowhere/vllm" in pod.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("code", [0, 7])
def test_a_signal_reaches_the_child_once_and_its_exit_code_comes_back(pod: Pod, number: signal.Signals, code: int):
    command, said = witness(pod, code)
    daemon = pod.start_daemon(*command)
    until(lambda: text(said) == "up", "a child that runs")
    daemon.kill(number)
    assert daemon.process.wait(PATIENCE_S) == code
    assert said.read_text() == number.name


def test_a_child_engine_becomes_ready_and_is_drained_at_sigterm(pod: Pod):
    daemon = pod.start_daemon(*pod.engine_command())
    daemon.wait_until_ready(PATIENCE_S)
    daemon.kill(signal.SIGTERM)
    assert daemon.unready_after(time.monotonic()) < END_S
    assert daemon.process.wait(PATIENCE_S) == 0
    assert not pod.engine_answers()


def test_sigkill_of_the_daemon_leaves_no_orphan(pod: Pod):
    daemon = pod.start_daemon(*pod.engine_command())
    daemon.wait_until_ready(PATIENCE_S)
    family = descendants(daemon.process.pid)
    assert pod.engine_pid() in family
    daemon.kill()
    until(lambda: not any(runs(pid) for pid in family), "the end of launcher and engine", 5)


def test_sigkill_of_the_child_s_launcher_ends_the_daemon_with_its_code(pod: Pod):
    daemon = pod.start_daemon(*pod.engine_command())
    engine = pod.engine_pid()
    launcher = until(lambda: [pid for pid in descendants(daemon.process.pid) if pid != engine], "a launcher")[0]
    os.kill(launcher, signal.SIGKILL)
    assert daemon.process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    until(lambda: not runs(engine), "the end of the engine", 5)


def end_in_time(pod: Pod) -> None:
    began = time.monotonic()
    pod.daemon.kill(signal.SIGTERM)
    assert pod.daemon.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began < END_S


def test_sigterm_ends_the_daemon_in_time_when_it_waits_for_the_launcher(pod: Pod):
    pod.start_daemon().caught_in("awaiting_launcher")
    end_in_time(pod)


def test_sigterm_ends_the_daemon_in_time_while_it_restores(pod: Pod, planted):
    pod.start_daemon()
    pod.start_container()
    until(lambda: any((pod.place.live_cache / ".staging").glob("*/*")), "staged files")
    end_in_time(pod)
    # The engine starts all the same, cold, once it is clear that nobody comes back.
    assert pod.container.process.poll() is None


def test_sigterm_ends_the_daemon_in_time_while_a_warm_up_request_hangs_and_the_engine_goes_on(pod: Pod):
    pod.start_daemon().caught_in("awaiting_launcher")
    pod.start_container(generation="hang")
    pod.daemon.caught_in("warming")
    until(lambda: pod.engine()["counters"]["running"], "a warm-up request")
    end_in_time(pod)
    assert pod.engine_answers()
    until(lambda: not pod.engine()["counters"]["running"], "an engine without the daemon's request")


def test_sigterm_when_ready_keeps_what_was_proven_for_the_next_daemon(pod: Pod):
    pod.start()
    end_in_time(pod)
    assert json.loads((pod.control / "proven.json").read_text())["identity"]
    assert pod.engine_answers()
    began = time.monotonic()
    pod.start_daemon().wait_until_ready(PATIENCE_S)
    assert time.monotonic() - began < 5
    assert "Adopted" in pod.daemon.status()["reason"]
