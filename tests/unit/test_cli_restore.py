"""`restore` as an init container runs it: it ends with 0 whatever happened, and says what did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = f"registry.example.com/engine@sha256:{'1' * 64}"


def restore(tmp_path: Path, *flags: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command with directories of its own; `settings` are WARMUP_ variables by name."""
    given = {
        "live_cache": str(tmp_path / "live"),
        "control_dir": str(tmp_path / "control"),
        "store": str(tmp_path / "store"),
        "engine_url": "http://127.0.0.1:9",
        "gpu_interval_s": "0",
        "log_format": "text",
        **settings,
    }
    (tmp_path / "store").mkdir(exist_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    environment = plain | {f"WARMUP_{name.upper()}": value for name, value in given.items()}
    words = [sys.executable, "-m", "sidecar.cli", "restore", *flags]
    return subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120)


def said(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def test_a_miss_is_said_and_left_for_the_sidecar_that_comes_after(tmp_path: Path):
    done = restore(tmp_path, image=IMAGE, sm="cpu")
    assert done.returncode == 0, said(done)
    assert "cold" in said(done)
    assert (tmp_path / "control" / "restored.json").is_file()
    assert (tmp_path / "control" / "released").is_file()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "WARMUP_IMAGE"),
        ({"image": IMAGE}, "WARMUP_SM"),
        ({"image": "latest", "sm": "cpu"}, "WARMUP_IMAGE"),
        ({"image": IMAGE, "sm": "cpu", "live_cache": "/proc/nowhere"}, "/proc/nowhere"),
        ({"image": IMAGE, "sm": "cpu", "control_dir": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
def test_whatever_is_wrong_is_said_and_the_engine_is_not_kept_waiting(
    tmp_path: Path, settings: dict[str, str], sentence: str
):
    done = restore(tmp_path, **settings)
    assert done.returncode == 0, said(done)
    assert sentence in said(done)


def test_flags_that_are_none_and_a_command_are_said_and_left_out(tmp_path: Path):
    done = restore(tmp_path, "--no-such-flag", image=IMAGE, sm="cpu")
    assert done.returncode == 0
    assert "--no-such-flag is not a flag" in said(done)


def test_with_the_launcher_asked_for_there_is_nothing_to_do(tmp_path: Path):
    done = restore(tmp_path, image=IMAGE, sm="cpu", launcher="true")
    assert done.returncode == 0
    assert "warmup-sidecar launcher" in said(done)
    assert not (tmp_path / "control").exists()
