"""Where the demo works: a folder of its own, two free ports, and an environment that owes nothing to the
user's.

No process is started here.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches import families
from sidecar.demo.engine_setup import EnginePaths

MODEL_NAME = "tiny"

#: Variables that would make one machine's demo another one than the next machine's.
LEFT_OUT = (
    "WARMUP_",
    "VLLM_",
    "TORCH",
    "PYTORCH_",
    "INDUCTOR_",
    "TRITON_",
    "FLASHINFER_",
    "HF_",
    "CUDA_",
    "OMP_",
    "MKL_",
    "KMP_",
    "PYTHON",
    "VIRTUAL_ENV",
    "XDG_",
    "LD_PRELOAD",
    "CFLAGS",
    "CXXFLAGS",
    "CXX",
    "CC",
)

#: vLLM 0.32.0's ahead-of-time cache never loads on CPU and is rewritten at each start; 1 GiB is the least KV
#: cache; nothing is asked from the network.
ENGINE_VARIABLES: Mapping[str, str] = {
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True)
class Workplace:
    """The demo's folder and ports. The live cache keeps its path in all starts, as it does in pods."""

    root: Path
    engine_port: int
    sidecar_port: int

    @property
    def live(self) -> Path:
        """Give the live cache, which is wiped between starts."""
        return self.root / "live"

    @property
    def store(self) -> Path:
        """Give the store, which is kept between starts."""
        return self.root / "store"

    @property
    def control(self) -> Path:
        """Give the control directory, wiped between starts."""
        return self.root / "run"

    @property
    def engine_url(self) -> str:
        """Give the engine's address."""
        return f"http://127.0.0.1:{self.engine_port}"

    @property
    def sidecar_url(self) -> str:
        """Give the sidecar's address."""
        return f"http://127.0.0.1:{self.sidecar_port}"

    def log(self, name: str) -> Path:
        """Give the file for the output of one start."""
        return self.root / f"{name}.log"

    def make_empty(self) -> None:
        """Make all folders, and wipe all but the store: what a new pod on another node would find."""
        for folder in (self.live, self.control, self.root / "tmp", self.root / "home"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.store.mkdir(exist_ok=True)

    def environment(self, engine: EnginePaths, given: Mapping[str, str]) -> dict[str, str]:
        """Give the environment of a start: the user's without what concerns engines, and our folders."""
        kept = {name: value for name, value in given.items() if not name.startswith(LEFT_OUT)}
        programs = os.fspath(engine.vllm.parent)
        return {
            **kept,
            **ENGINE_VARIABLES,
            "PATH": f"{programs}{os.pathsep}{given.get('PATH') or os.defpath}",
            "HOME": os.fspath(self.root / "home"),
            "TMPDIR": os.fspath(self.root / "tmp"),
        }

    def cache_environment(self) -> dict[str, str]:
        """Give the variables that put the engine's caches where the sidecar would, and make the folders."""
        for folder in families.directories(os.fspath(self.live)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        return families.environment(os.fspath(self.live))


def serve_command(engine: EnginePaths, model: Path, port: int) -> list[str]:
    """Give the engine's command line; the same in all starts, because it is a part of the cache's key."""
    return [
        os.fspath(engine.vllm),
        "serve",
        os.fspath(model),
        "--served-model-name",
        MODEL_NAME,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "4096",
        "--max-num-seqs",
        "8",
    ]


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on at this moment."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
