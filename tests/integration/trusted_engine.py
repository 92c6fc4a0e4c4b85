"""A bare vLLM on CPU whose weights can be exchanged while it runs, as golden checks need one: no launcher, no daemon.

Models are made by `golden_models.py`; no test lives here.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.workplace import Workplace, free_ports, serve_command
from tests.integration.pod import HEALTH_S, EngineProcess

MODELS = Path(__file__).with_name("golden_models.py")
MAKE_S = 300.0
#: Enough at once for a batch of the default size; short prompts only.
LIMITS = ("--max-model-len", "2048", "--max-num-seqs", "48")


def make_model(paths: EnginePaths, *words: str) -> Path:
    """Run `golden_models.py` with these words in the engine's Python; give its folder, the third of them."""
    command = [os.fspath(paths.python), os.fspath(MODELS), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_S, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return Path(words[2])


class TrustedEngine:
    """One engine in development mode, without graphs and compilation, which would take minutes more."""

    def __init__(self, root: Path, paths: EnginePaths, model: Path, *words: str, eager: bool = True) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.workplace = Workplace(root, *free_ports(2))
        self.workplace.make_empty()
        eagerly = ("--enforce-eager",) if eager else ()
        command = [*serve_command(paths, model, self.workplace.engine_port), *LIMITS, *eagerly, *words]
        variables = self.workplace.environment(paths, os.environ) | self.workplace.cache_environment()
        self.model = model
        self.url = self.workplace.engine_url
        self.log = self.workplace.log("engine")
        self._process = EngineProcess(command, {**variables, "VLLM_SERVER_DEV_MODE": "1"}, self.log)

    def wait(self) -> None:
        """Wait until it answers."""
        ends = time.monotonic() + HEALTH_S
        while not self._answers():
            assert self._process.runs, self.log.read_text()[-3000:]
            assert time.monotonic() < ends, self.log.read_text()[-3000:]
            time.sleep(0.5)

    def load(self, model: Path) -> None:
        """Put the weights of another model of the same shape into the running engine."""
        self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": os.fspath(model)}})

    def post(self, path: str, body: Any) -> bytes:
        """Send JSON and give what comes back."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=MAKE_S) as answer:
            found: bytes = answer.read()
            return found

    def end(self) -> None:
        """Stop it."""
        self._process.end()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False
