"""Processes that the kernel ended for want of memory, as the launcher counts them: cgroups of both versions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.launcher import memory
from tests.unit.launching import SHELL, Stage, output

#: Runs the launcher as it lies in the control directory, with a kernel that ends two processes while the engine runs.
KERNEL = (
    "import sys; del sys.argv[0]; sys.path.insert(0, sys.argv[0]); from sidecar.launcher import start; "
    "counts = iter([3, 5]); start.oom_kills = lambda: next(counts); sys.exit(start.main(sys.argv[1:]))"
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/\n", {"memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 9\n"}, 3),
        # Without a namespace: the machine's own files, and the container's below.
        (
            "0::/kubepods/pod1/c1\n",
            {"memory.events": "oom_kill 70\n", "kubepods/pod1/c1/memory.events": "oom_kill 1\n"},
            1,
        ),
        (
            "5:cpu,cpuacct:/docker/c1\n4:memory:/docker/c1\n0::/\n",
            {"memory/docker/c1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"},
            2,
        ),
        # What the path is called outside does not exist inside.
        ("4:memory:/docker/c1\n", {"memory/memory.oom_control": "oom_kill 6\n"}, 6),
        ("4:memory:/docker/c1\n", {"memory/memory.oom_control": "oom_kill_disable 0\n"}, 0),
        ("", {}, 0),
    ],
)
def test_the_kernels_count_is_found_wherever_the_cgroup_is_mounted(
    tmp_path: Path, own: str, files: dict[str, str], kills: int
):
    put(tmp_path / "own", own)
    for name, text in files.items():
        put(tmp_path / "cgroup" / name, text)
    assert memory.oom_kills(str(tmp_path / "cgroup"), str(tmp_path / "own")) == kills


def test_without_proc_nothing_is_counted(tmp_path: Path):
    assert memory.oom_kills(str(tmp_path), str(tmp_path / "own")) == 0


def test_the_last_word_tells_what_the_kernel_ended_while_the_engine_ran(stage: Stage):
    attempt, process = stage.started(SHELL, "-c", "exit 1", python=(sys.executable, "-I", "-S", "-c", KERNEL))
    output(process)
    exited = stage.sidecar.state(attempt).exited
    assert exited is not None
    assert (exited.code, exited.oom_kills) == (1, 2)
