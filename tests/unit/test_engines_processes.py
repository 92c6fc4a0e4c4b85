"""The engine's processes as the kernel shows them: real processes, started by a real parent that is called a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sidecar.engines import processes

#: Starts an engine of two processes, with so many files open, and stays its parent until its input ends.
PARENT = """
import subprocess, sys
child = "import sys; files = [open('/dev/null') for _ in range(40)]; print('up', flush=True); sys.stdin.read()"
engine = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
started = subprocess.Popen([sys.executable, "-c", engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
started.stdout.readline()
print(started.pid, flush=True)
sys.stdin.read()
started.stdin.close()
started.wait()
print("gone", flush=True)
sys.stdin.close()
"""


class Pod:
    """A parent and the engine that it started."""

    def __init__(self, folder: Path, name: str) -> None:
        script = folder / name
        script.write_text(PARENT, encoding="ascii")
        self._parent = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._parent.stdout is not None
        self.engine = int(self._parent.stdout.readline())

    def end(self) -> None:
        self._parent.communicate(timeout=20)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    found = Pod(tmp_path, "launcher.py")
    yield found
    found.end()


def test_memory_cpu_and_files_of_all_processes_are_added_up(pod: Pod) -> None:
    first = processes.find(pod.engine)
    assert first is not None
    used = processes.usage(first)
    assert used is not None
    assert used.processes == 2
    assert used.resident_bytes is not None
    assert used.resident_bytes > first.memory_info().rss
    assert (used.cpu_seconds or 0) > 0
    assert (used.open_files or 0) > 40


def test_an_engine_that_has_ended_uses_nothing_that_could_be_shown(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "launcher.py")
    first = processes.find(pod.engine)
    pod.end()
    assert first is not None
    assert processes.usage(first) is None


def test_a_number_of_another_pid_namespace_names_nobody(tmp_path: Path) -> None:
    stranger = Pod(tmp_path, "other.py")
    try:
        assert processes.find(stranger.engine) is None
    finally:
        stranger.end()


@pytest.mark.parametrize("pid", [0, 1, 2**22 + 7, os.getpid()])
def test_whoever_is_no_child_of_a_launcher_is_not_the_engine(pid: int) -> None:
    assert processes.find(pid) is None


def test_what_the_kernel_does_not_show_to_this_user_is_unknown_and_no_part_of_a_sum(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = processes.find(pod.engine)
    assert first is not None

    def refused(process: psutil.Process) -> int:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "num_fds", refused)
    used = processes.usage(first)
    assert used is not None
    assert (used.open_files, used.processes) == (None, 2)
    assert used.resident_bytes
