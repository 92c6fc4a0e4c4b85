"""Make the tiny model that the demo and the tests serve, with the engine's own Python.

What the model looks like is decided in `tiny_model_script.py`, which runs where torch and transformers are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sidecar.demo.engine_setup import EnginePaths
from sidecar.errors import EngineInstallError

SCRIPT = Path(__file__).with_name("tiny_model_script.py")

#: Raised when the script makes another model, so that an older one is not taken for it.
MODEL_NAME = "tiny-qwen3-1"

#: Seconds. Importing torch and transformers costs most of it: about 15 s on two busy cores.
DEADLINE = 600


def make_tiny_model(engine: EnginePaths, folder: Path) -> Path:
    """Give the tiny model's directory under `folder`, made now when it is not there.

    About 7 MB; blocks for up to a minute. Raises EngineInstallError when the script fails.
    """
    model = folder / MODEL_NAME
    # The directory appears by rename, so one that exists is complete.
    if (model / "config.json").is_file():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{MODEL_NAME}.{os.getpid()}"
    command = [os.fspath(engine.python), os.fspath(SCRIPT), os.fspath(unfinished)]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=DEADLINE,
            env={**_QUIET, "PATH": os.defpath, "HOME": os.fspath(folder)},
        )
        if ended.returncode != 0:
            last = ended.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
            raise EngineInstallError(f"The tiny model can't be made with {engine.python}: {last[0]}")
        _take_its_place(unfinished, model)
    except subprocess.TimeoutExpired as error:
        raise EngineInstallError(f"Making the tiny model with {engine.python} took more than {DEADLINE} s.") from error
    except OSError as error:
        raise EngineInstallError(f"The tiny model can't be put into {folder}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return model


#: No look at a model hub, and no progress bars in the output.
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def _take_its_place(unfinished: Path, model: Path) -> None:
    try:
        unfinished.rename(model)
    except OSError:
        # Another process made the same model meanwhile; a directory that is not empty can't be renamed over.
        if not (model / "config.json").is_file():
            raise
