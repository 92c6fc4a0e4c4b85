"""Prepare the CPU engine and its tiny model for the integration tests, outside the checkout, once.

How it is installed: `sidecar/demo/engine_setup.py`.
"""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from sidecar.demo.engine_setup import EnginePaths, Progress, find_engine, prepare
from sidecar.demo.tiny_model import make_tiny_model
from sidecar.errors import EngineInstallError, EngineNotAvailable
from tests.prepare.outcome import Outcome, failed, passed, skipped

STAGE = "engine"

#: Seconds between two lines about the same phase: a log, not a live view.
TELL_EVERY = 15.0


def cache_folder() -> Path:
    """Give the folder outside the checkout that keeps the engine and the model between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "warmup-sidecar")


def engine_folder() -> Path:
    """Give the folder of the engine; `warmup-sidecar demo` uses the same."""
    return cache_folder() / "engine"


def model_folder() -> Path:
    """Give the folder in which the tiny model's directory is made."""
    return cache_folder() / "models"


def found() -> EnginePaths | None:
    """Give the engine that is there, without preparing one."""
    return find_engine(engine_folder())


class Teller:
    """Print progress: each new phase, and the same phase again every 15 s."""

    def __init__(self) -> None:
        self._phase = ""
        self._told = 0.0

    def __call__(self, progress: Progress) -> None:
        """Print one line when it is time for one."""
        if progress.phase == self._phase and progress.seconds - self._told < TELL_EVERY:
            return
        self._phase, self._told = progress.phase, progress.seconds
        amount = ""
        if progress.done:
            whole = f" of {progress.total}" if progress.total else ""
            amount = f"{progress.done / 1e6:.0f} MB" if progress.unit == "bytes" else f"{progress.done}{whole} packages"
        words = " ".join(word for word in (progress.phase, progress.detail, amount) if word)
        print(f"engine: {progress.seconds:6.1f} s  {words}", flush=True)


def prepare_engine() -> Outcome:
    """Prepare engine and model, or say why this machine can't have them."""
    started = time.monotonic()
    print(
        f"\nThe CPU engine is prepared in {engine_folder()} (2.5 GB, a few minutes the first time).",
        flush=True,
    )
    there = found() is not None
    try:
        engine = prepare(
            engine_folder(), Teller(), pip_arguments=shlex.split(os.environ.get("WARMUP_DEMO_PIP_ARGS", ""))
        )
        make_tiny_model(engine, model_folder())
    except EngineNotAvailable as error:
        return skipped(STAGE, " ".join(str(error).split()), time.monotonic() - started)
    except EngineInstallError as error:
        return failed(STAGE, time.monotonic() - started, str(error))
    note = f"vLLM {engine.version}, {'was there' if there else 'installed'}"
    return passed(STAGE, time.monotonic() - started, note)
