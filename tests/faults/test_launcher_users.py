"""Sidecar and engine as different users with a common group, as in a pod: both sides can do what they have to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

GROUP, SIDECAR = 64321, 64322
REPOSITORY = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"

#: What a sidecar does, from laying the launcher to reading how the engine ended.
SIDECAR_SCRIPT = """
import json, os, sys, time
from pathlib import Path
from sidecar.handshake import CommitEntry, ControlDirectory, Decision, LauncherSettings
os.umask(0o077)
control, live = Path(sys.argv[1]), Path(sys.argv[2])
sidecar = ControlDirectory(control, "b007")
sidecar.prepare(LauncherSettings("1", "http://127.0.0.1:9", str(live), {"X_CACHE": f"{live}/x"}, (f"{live}/y",)))
print("laid", flush=True)
def shared(path):
    if not path.is_dir():
        shared(path.parent)
        path.mkdir()
        path.chmod(0o2775)
while not (state := sidecar.current()) or not state.waiting:
    if state and state.problem:
        print(json.dumps({"problem": state.problem}), flush=True)
        raise SystemExit
    time.sleep(0.01)
entries = []
for name in ("x", "nested/z"):
    staged = live / ".staging" / state.attempt / name
    shared(staged)
    (staged / "k").write_text("new")
    (staged / "k").chmod(0o664)
    entries.append(CommitEntry(name, str(staged), f"{live}/{name}"))
assert sidecar.decide(state.attempt, Decision("hit", tuple(entries), clear=(f"{live}/old",)))
while not (exited := sidecar.state(state.attempt).exited):
    time.sleep(0.01)
started = sidecar.state(state.attempt).started
(live / "x" / "by-sidecar").write_text("")
(live / "x" / "made-by-engine" / "by-sidecar").write_text("")
print(json.dumps({"code": exited.code, "lines": exited.last_lines, "failed": started.failed,
                  "old": sorted(os.listdir(live / "old")) if (live / "old").exists() else []}), flush=True)
"""
ENGINE_SCRIPT = 'echo "$(cat $X_CACHE/k) $(id -u)"; mkdir $X_CACHE/made-by-engine; touch $X_CACHE/made-by-engine/f'


@pytest.fixture
def volume():
    """Give a volume as a pod with fsGroup has it."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    root = Path(tempfile.mkdtemp())
    for path in (root, root / "run", root / "live", root / "live" / "old"):
        path.mkdir(exist_ok=True)
        os.chown(path, 0, GROUP)
        path.chmod(0o2775)
    (root / "live" / "old" / "f").write_text("")
    (root / "live" / "old" / "f").chmod(0o664)
    shutil.copytree(REPOSITORY / "sidecar" / "handshake", root / "code" / "sidecar" / "handshake")
    shutil.copytree(REPOSITORY / "sidecar" / "launcher", root / "code" / "sidecar" / "launcher")
    for name in ("__init__.py", "errors.py", "files.py"):
        shutil.copy(REPOSITORY / "sidecar" / name, root / "code" / "sidecar" / name)
    yield root
    shutil.rmtree(root)


def sidecar_on(volume: Path, uid: int, groups: list[int]) -> subprocess.Popen[str]:
    """Start a sidecar as this user and wait until it has laid the launcher down."""
    process = subprocess.Popen(
        [PYTHON, "-c", SIDECAR_SCRIPT, str(volume / "run"), str(volume / "live")],
        env={"PYTHONPATH": str(volume / "code")},
        user=uid,
        group=uid,
        extra_groups=groups,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    if first != "laid\n":
        _, err = process.communicate()
        if "SyntaxError" in err or "ImportError" in err or "AttributeError" in err:
            pytest.skip(f"{PYTHON} is too old for the sidecar")
        raise AssertionError(err)
    return process


@pytest.mark.parametrize("engine", [0, SIDECAR, SIDECAR + 1], ids=["root", "same user", "another user"])
def test_users_with_a_common_group_can_hand_over_commit_clear_and_write(volume: Path, engine: int):
    sidecar = sidecar_on(volume, SIDECAR, [GROUP])
    launched = subprocess.run(
        [PYTHON, str(volume / "run" / "launcher.py"), "--", "/bin/sh", "-c", ENGINE_SCRIPT],
        cwd="/",
        env={"PATH": "/bin:/usr/bin", "HOME": "/"},
        user=engine,
        group=engine,
        extra_groups=[GROUP],
        capture_output=True,
        text=True,
        timeout=60,
        umask=0o022,
    )
    out, err = sidecar.communicate(timeout=60)
    assert launched.stdout == f"new {engine}\n", (launched.stderr, err)
    told = json.loads(out)
    assert told == {"code": 0, "lines": [f"new {engine}"], "failed": {}, "old": []}, err


def test_an_engine_that_is_not_in_the_group_starts_without_the_sidecar(volume: Path):
    sidecar = sidecar_on(volume, SIDECAR, [GROUP])
    stranger = SIDECAR + 7
    launched = subprocess.run(
        [PYTHON, str(volume / "run" / "launcher.py"), "--", "/bin/sh", "-c", "id -u"],
        cwd="/",
        env={"PATH": "/bin:/usr/bin", "HOME": "/"},
        user=stranger,
        group=stranger,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
    )
    sidecar.kill()
    sidecar.communicate()
    assert (launched.stdout, launched.returncode) == (f"{stranger}\n", 0)
    assert "can't be written" in launched.stderr
