"""The order of a start, with real launchers: decisions, environment, exit codes, and starting whatever goes wrong."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.handshake import Decision
from tests.unit.launching import QUICK, SHELL, Stage, output, until

SOURCES = sorted((Path(__file__).parents[2] / "sidecar" / "launcher").glob("*.py"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_launcher_is_python_3_9_and_imports_only_the_standard_library_and_itself(source: Path):
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    strange = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in strange if not name.startswith("sidecar.launcher.")} == set()


OLD_PYTHONS = [
    path
    for version in ("3.9*", "3.10*", "3.12*", "3.13*")
    for path in sorted(Path.home().glob(f".pyenv/versions/{version}/bin/python3"))
]


@pytest.mark.parametrize("python", OLD_PYTHONS or [None], ids=lambda path: path.parts[-3] if path else "none")
def test_it_runs_on_the_other_pythons_of_this_machine(stage: Stage, python: Path | None):
    if python is None:
        pytest.skip("no other Python is installed here")
    _, process = stage.started(SHELL, "-c", "echo $TRITON_CACHE_DIR", python=(str(python),))
    out, _ = output(process)
    assert (out.decode().strip(), process.returncode) == (f"{stage.live}/triton", 0)


def test_the_engine_gets_the_cache_environment_its_directories_and_the_umask(stage: Stage):
    command = 'echo "$TRITON_CACHE_DIR $(umask)"; test -w "$TRITON_CACHE_DIR" && echo writable'
    _, process = stage.started(SHELL, "-c", command, env={"PATH": "/bin:/usr/bin"})
    assert output(process)[0].decode().split() == [f"{stage.live}/triton", "0007", "writable"]
    # For the sidecar's user, through the common group; and the group is handed on.
    assert stat.S_IMODE((stage.live / "triton").stat().st_mode) == 0o2775


def test_a_cache_variable_that_the_user_set_wins_and_is_told(stage: Stage):
    attempt, process = stage.started(SHELL, "-c", "echo $TRITON_CACHE_DIR", env={"TRITON_CACHE_DIR": "/mine"})
    assert output(process)[0] == b"/mine\n"
    facts = stage.sidecar.state(attempt).facts
    assert facts is not None
    assert facts["overrides"] == {"TRITON_CACHE_DIR": "/mine"}
    assert any("/mine" in line.text for line in stage.sidecar.new_lines(attempt) if line.kind == "hint")


def test_the_decision_adds_arguments_sets_and_removes_variables(stage: Stage):
    decision = Decision("hit", environment={"A": "1"}, unset=("B", "NOT_THERE"), append=("--kv-cache-dtype", "auto"))
    script = 'import os, sys; print(os.environ.get("A"), os.environ.get("B"), sys.argv[1:])'
    _, process = stage.started(sys.executable, "-I", "-c", script, "--x", env={"B": "2"}, decision=decision)
    assert output(process)[0].decode() == "1 None ['--x', '--kv-cache-dtype', 'auto']\n"


def test_arguments_that_a_shell_would_swallow_are_reported_not_added(stage: Stage):
    decision = Decision("hit", append=("--kv-cache-dtype", "auto"))
    attempt, process = stage.started(SHELL, "-c", 'echo "$0$*"', decision=decision)
    output(process)
    started = stage.sidecar.state(attempt).started
    assert started is not None
    assert "append" in started.failed


@pytest.mark.parametrize("code", [0, 1, 3, 126, 255])
def test_it_ends_with_the_engines_exit_code(stage: Stage, code: int):
    attempt, process = stage.started(SHELL, "-c", f"echo bye; exit {code}")
    output(process)
    exited = stage.sidecar.state(attempt).exited
    assert process.returncode == code
    assert exited is not None
    assert (exited.code, exited.signal, exited.restarting, exited.last_lines) == (code, None, False, ("bye",))


def test_an_engine_that_dies_by_a_signal_gives_128_and_the_number(stage: Stage):
    attempt, process = stage.started(SHELL, "-c", "kill -SEGV $$")
    output(process)
    exited = stage.sidecar.state(attempt).exited
    assert process.returncode == 128 + 11
    assert exited is not None
    assert (exited.code, exited.signal) == (None, 11)


@pytest.mark.parametrize(("command", "code"), [("/nowhere/vllm", 127), ("/etc/passwd", 126)])
def test_a_command_that_cant_be_executed_ends_as_in_a_shell(stage: Stage, command: str, code: int):
    attempt, process = stage.started(command)
    _, err = output(process)
    exited = stage.sidecar.state(attempt).exited
    assert process.returncode == code
    assert command in err
    assert "Traceback" not in err
    assert exited is not None
    assert exited.code == code


def test_without_a_decision_the_launcher_starts_the_engine_itself_after_its_cap(stage: Stage):
    process = stage.launch(SHELL, "-c", "echo $TRITON_CACHE_DIR", env={"WARMUP_LAUNCHER_WAIT_S": "0.2"})
    attempt = stage.waiting().attempt
    out, err = output(process)
    state = stage.sidecar.state(attempt)
    assert out.decode().strip() == f"{stage.live}/triton"
    assert (state.decided_by, state.started and state.started.by) == ("launcher", "launcher")
    assert "no decision" in err
    assert stage.sidecar.decide(attempt, Decision("hit")) is False


def test_a_sidecar_that_died_is_not_waited_for_until_the_cap(stage: Stage):
    stage.sidecar.close()
    process = stage.launch(SHELL, "-c", "echo on", env={"WARMUP_LAUNCHER_ALONE_S": "0.2"})
    out, err = output(process)
    assert (out, "gone" in err) == (b"on\n", True)


def test_a_sidecar_that_comes_late_is_waited_for(stage: Stage):
    sidecar_json = stage.control / "sidecar.json"
    text = sidecar_json.read_text()
    sidecar_json.unlink()
    process = stage.launch(SHELL, "-c", "echo $TRITON_CACHE_DIR")
    sidecar_json.with_suffix(".new").write_text(text)
    sidecar_json.with_suffix(".new").rename(sidecar_json)
    stage.sidecar.decide(stage.waiting().attempt, Decision("miss"))
    assert output(process)[0].decode().strip() == f"{stage.live}/triton"


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"format": 99}', '{"format": 1, "live_cache": "relative"}'])
def test_without_usable_settings_the_engine_starts_directly_with_what_it_was_given(stage: Stage, content: str | None):
    sidecar_json = stage.control / "sidecar.json"
    sidecar_json.unlink() if content is None else sidecar_json.write_text(content)
    before = os.umask(0o022)
    try:
        process = stage.launch(
            SHELL, "-c", "umask; exec /usr/bin/env", env={"WARMUP_LAUNCHER_GRACE_S": "0.1", "MINE": "yes"}
        )
    finally:
        os.umask(before)
    out, err = output(process)
    assert out.decode().splitlines()[0] == "0022"
    assert "MINE=yes" in out.decode()
    assert "TRITON_CACHE_DIR" not in out.decode()
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_control_directory_that_cant_be_written_is_no_obstacle_for_users(stage: Stage):
    stage.control.chmod(0o555)
    process = stage.launch(SHELL, "-c", "echo on")
    assert output(process)[0] == b"on\n"


@pytest.mark.parametrize("broken", ["a file", "not there", "attempts is a file"])
def test_a_broken_control_directory_is_no_obstacle(stage: Stage, tmp_path: Path, broken: str):
    control = tmp_path / "broken"
    if broken == "a file":
        control.write_text("")
    elif broken == "attempts is a file":
        control.mkdir()
        (control / "attempts").write_text("")
        (control / "sidecar.json").write_text((stage.control / "sidecar.json").read_text())
    began = time.monotonic()
    process = subprocess.Popen(
        [*QUICK, str(stage.control / "launcher.py"), "--control", str(control), "--", SHELL, "-c", "echo on; exit 5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = output(process)
    assert (out, process.returncode) == (b"on\n", 5)
    assert len(err.strip().splitlines()) == 1
    assert time.monotonic() - began < 30


def test_the_sigpipe_that_python_ignores_is_not_handed_on(stage: Stage):
    (stage.control / "sidecar.json").unlink()
    ignored = "grep SigIgn /proc/self/status"
    direct = stage.launch(SHELL, "-c", ignored, env={"PATH": "/bin:/usr/bin", "WARMUP_LAUNCHER_GRACE_S": "0"})
    assert int(output(direct)[0].split()[1], 16) & (1 << 12) == 0
    stage.sidecar.prepare(stage.settings())
    _, supervised = stage.started(SHELL, "-c", ignored, env={"PATH": "/bin:/usr/bin"})
    assert int(output(supervised)[0].split()[1], 16) & (1 << 12) == 0


def test_a_damaged_launcher_still_starts_the_engine(stage: Stage):
    source = (stage.control / "launcher.py").read_bytes()
    (stage.control / "launcher.py").write_bytes(source.replace(b"class Launch:", b"class Launch("))
    process = stage.launch(SHELL, "-c", "echo on; exit 4")
    out, err = output(process)
    assert (out, process.returncode) == (b"on\n", 4)
    assert "Traceback" not in err


def test_wrong_use_is_one_sentence_and_exit_code_2(stage: Stage):
    process = subprocess.Popen([*QUICK, str(stage.control / "launcher.py"), "vllm"], stderr=subprocess.PIPE)
    _, err = output(process)
    assert (process.returncode, err.count("\n")) == (2, 1)
    assert "usage" in err


def test_a_cache_that_cant_be_written_leaves_the_engine_its_default(tmp_path: Path):
    (tmp_path / "file").write_text("")
    stage = Stage(tmp_path, {"environment": {"TRITON_CACHE_DIR": f"{tmp_path}/file/triton", "CUDA_CACHE_MAXSIZE": "9"}})
    try:
        attempt, process = stage.started(SHELL, "-c", 'echo "[$TRITON_CACHE_DIR]$CUDA_CACHE_MAXSIZE"')
        assert output(process)[0] == b"[]9\n"
        started = stage.sidecar.state(attempt).started
        assert started is not None
        assert "TRITON_CACHE_DIR" in started.failed
    finally:
        stage.close()


def test_a_home_that_cant_be_written_is_moved_and_weights_stay_where_they_are(stage: Stage):
    # As root every existing home is writable, so it is one that doesn't exist.
    home = stage.root / "nohome"
    _, process = stage.started(SHELL, "-c", 'echo "$HOME [$HF_HOME]"', env={"HOME": str(home)})
    assert output(process)[0].decode() == f"{stage.live}/home []\n"


def test_only_the_last_five_attempts_are_kept(stage: Stage):
    for _ in range(8):
        _, process = stage.started("/bin/true")
        output(process)
    assert len(list((stage.control / "attempts").iterdir())) == 6


def test_a_restart_opens_a_new_attempt_in_the_same_process_and_nobody_is_gone_in_between(stage: Stage):
    first, process = stage.started(SHELL, "-c", "echo $TRITON_CACHE_DIR $A; exec /bin/sleep 100")
    assert stage.sidecar.request_restart(first, "retry cold")
    assert not stage.sidecar.request_restart(first, "again")
    gaps = 0

    def second() -> str | None:
        nonlocal gaps
        state = stage.sidecar.current()
        gaps += state is None
        return state.attempt if state is not None and state.waiting and state.attempt != first else None

    attempt = until(second, "a second attempt")
    exited = stage.sidecar.state(first).exited
    assert exited is not None
    assert (exited.restarting, exited.signal) == (True, 15)
    assert stage.sidecar.decide(attempt, Decision("miss", environment={"A": "second"}))
    stage.state(attempt, lambda state: state.started, "the second engine")
    assert not stage.sidecar.state(first).alive
    assert process.poll() is None
    process.terminate()
    out, _ = output(process)
    assert (process.returncode, gaps) == (143, 0)
    assert out.decode().splitlines() == [f"{stage.live}/triton", f"{stage.live}/triton second"]


def test_facts_are_there_before_the_decision_and_hold_no_secret(stage: Stage):
    process = stage.launch(
        SHELL,
        "-c",
        "exec /bin/true --api-key sk-in-a-shell",
        "--api-key",
        "sk-first",
        "sk-second",
        "--port=1",
        "--hf-token=hf_secret",
        "--max-num-batched-tokens",
        "8192",
        env={"VLLM_API_KEY": "sk-environment", "VLLM_USE_V1": "1", "UNRELATED": "x"},
    )
    state = stage.waiting()
    text = json.dumps(state.facts)
    stage.sidecar.decide(state.attempt, Decision("miss"))
    output(process)
    text += json.dumps(stage.sidecar.state(state.attempt).started, default=vars)
    for secret in ("sk-first", "sk-second", "sk-in-a-shell", "hf_secret", "sk-environment", "UNRELATED"):
        assert secret not in text
    assert state.facts is not None
    assert state.facts["environment"]["VLLM_USE_V1"] == "1"
    assert state.facts["argv"][-2:] == ["--max-num-batched-tokens", "8192"]
    assert state.facts["environment"]["VLLM_API_KEY"].startswith("sha256:")
