"""A launcher that is killed after any of its steps, then started again: never half a family, never two engines."""

from __future__ import annotations

import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from sidecar.handshake import Decision
from tests.unit.launching import QUICK, SHELL, Stage, files_in, output, runs, until, write

#: Runs a launcher, and kills it right before step number N that changes a file or starts a process.
DIES = """
import os, signal, sys
left, root = int(sys.argv[1]), sys.argv[2]
CHANGES = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}
def step(event, words):
    global left
    writes = event == "open" and isinstance(words[2], int) and words[2] & (os.O_WRONLY | os.O_RDWR)
    inside = bool(words) and isinstance(words[0], str) and words[0].startswith(root)
    if (event in CHANGES or writes) and inside or event in ("subprocess.Popen", "fcntl.flock"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(step)
import runpy
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FAMILIES = ("triton", "vllm/torch_compile_cache")
FILES = ("a", "b", "c")


def generation(name: str) -> dict[str, str]:
    """Give a family's files."""
    return dict.fromkeys(FILES, name)


@pytest.fixture
def stage(tmp_path: Path):
    made = Stage(tmp_path)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    return not runs(pid)


def dying(stage: Stage, step: int, command: str) -> subprocess.Popen[bytes]:
    """Start a launcher that dies before this step."""
    process = subprocess.Popen(
        [
            *QUICK,
            "-c",
            DIES,
            str(step),
            str(stage.root),
            str(stage.control / "launcher.py"),
            "--",
            SHELL,
            "-c",
            command,
        ],
        env=stage.environment(PATH=f"{stage.root}/bin:/bin:/usr/bin"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stage.launched.append(process)
    return process


def attend(stage: Stage, process: subprocess.Popen[bytes], name: str) -> str:
    """Restore generation `name` for whoever asks, until the launcher has ended; give its attempt."""
    decided = ""
    while process.poll() is None:
        state = stage.sidecar.current()
        if state is not None and state.waiting and state.attempt != decided:
            decided = state.attempt
            entries = tuple(stage.staged(decided, family, generation(name)) for family in FAMILIES)
            stage.sidecar.decide(decided, Decision("hit", entries, clear=(f"{stage.live}/inductor",)))
        time.sleep(0.002)
    return decided


def test_killed_after_any_step_and_started_again_there_is_never_half_a_family(stage: Stage):
    command = f"cat {stage.live}/triton/* {stage.live}/vllm/torch_compile_cache/*"
    killed = 0
    while True:
        for family in (*FAMILIES, "inductor"):
            write(stage.live / family, generation("old"))
        process = dying(stage, killed, command)
        attempt = attend(stage, process, "new")
        output(process)
        for family in FAMILIES:
            assert files_in(stage.live / family) in ({}, generation("old"), generation("new")), (killed, family)
        assert files_in(stage.live / "inductor") in ({}, generation("old")), killed
        until(lambda: stage.sidecar.current() is None, "the launcher's death")
        started = stage.sidecar.state(attempt).started if attempt else None
        if started is not None:
            until(partial(gone, started.pid), "the engine's death")
        if process.returncode == 0:
            break
        assert process.returncode == -9, killed
        again = stage.launch(SHELL, "-c", command, env={"PATH": f"{stage.root}/bin:/bin:/usr/bin"})
        attempt = attend(stage, again, "next")
        out, err = output(again)
        assert (again.returncode, out) == (0, b"next" * 6), (killed, err)
        assert files_in(stage.live / "inductor") == {}
        assert not (stage.live / ".trash").exists()
        exited = stage.sidecar.state(attempt).exited
        assert exited is not None
        assert exited.code == 0
        killed += 1
    # Opening, facts, decision, two swaps, a clearing, start and end: fewer would mean that steps were not seen.
    assert killed > 30


def test_a_decision_for_a_killed_launcher_is_not_obeyed_by_the_next_one(stage: Stage):
    write(stage.live / "triton", generation("old"))
    first = stage.launch("/bin/true")
    attempt = stage.waiting().attempt
    first.send_signal(signal.SIGSTOP)
    entry = stage.staged(attempt, "triton", generation("stale"))
    assert stage.sidecar.decide(attempt, Decision("hit", (entry,)))
    first.kill()
    first.wait()
    again = stage.launch("/bin/true", env={"WARMUP_LAUNCHER_WAIT_S": "0.2"})
    output(again)
    assert files_in(stage.live / "triton") == generation("old")
    second = max(path.name for path in (stage.control / "attempts").iterdir())
    assert second != attempt
    state = stage.sidecar.state(second)
    assert state.decided_by == "launcher"
    assert state.started is not None
    assert state.started.committed == ()


@pytest.mark.parametrize("name", ["decision.json", "started.json", "facts.json", "exited.json", "lines.jsonl"])
def test_a_disk_that_is_full_or_a_name_that_is_taken_does_not_keep_the_engine_from_running(stage: Stage, name: str):
    # A directory in a file's place: every write to it fails, as on a full disk.
    blocker = f"""
import sys, os
def block(event, words):
    if event == "os.rename" and "/attempts/." in str(words[0]) and "." not in os.path.basename(words[1]):
        os.mkdir(os.path.join(words[0], {name!r}))
sys.addaudithook(block)
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    process = subprocess.Popen(
        [*QUICK, "-c", blocker, str(stage.control / "launcher.py"), "--", SHELL, "-c", "echo 'ValueError: x'; exit 6"],
        env=stage.environment(WARMUP_LAUNCHER_WAIT_S="0.3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stage.launched.append(process)
    out, err = output(process)
    assert (out, process.returncode) == (b"ValueError: x\n", 6)
    assert "Traceback" not in err
