"""The stub libnvidia-ml of the tests: compiled with gcc, driven by a scenario file, loaded by the real pynvml.

Nothing is asserted here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SOURCE = Path(__file__).with_name("nvml_stub.c")
#: Why tests with the stub are skipped, where they are.
NEEDS_GCC = "gcc is missing, and the stub libnvidia-ml can't be compiled without it"


def compile_stub(folder: Path) -> bool:
    """Compile the library into a folder; say whether there is a compiler."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return False
    command = [gcc, "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True)
    return True


class NvmlStub:
    """One machine's NVML. `library` is the folder of the compiled stub, `state` a folder for its scenario."""

    def __init__(self, library: Path, state: Path) -> None:
        self._library = library
        self._file = state / "nvml_scenario"
        self._calls = state / "nvml_calls"
        self.set()

    def set(self, **scenario: object) -> None:
        """Set the scenario anew, for processes that run too; the names are those of nvml_stub.c."""
        lines = [f"{name}={value}\n" for name, value in scenario.items()]
        fresh = self._file.with_suffix(".new")
        fresh.write_text("".join([*lines, f"COUNT={self._calls}\n"]), encoding="ascii")
        fresh.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """Give the variables under which a process finds the stub."""
        return {"LD_LIBRARY_PATH": str(self._library), "STUB_FILE": str(self._file)}

    @property
    def command(self) -> list[str]:
        """Give the command of the NVML process, as `GpuReader` takes it."""
        return ["env", *(f"{k}={v}" for k, v in self.environment.items()), sys.executable, "-m", "sidecar.gpu.worker"]

    def calls(self) -> list[str]:
        """Give the calls so far, oldest first, and forget them."""
        try:
            return self._calls.read_text(encoding="ascii").split()
        finally:
            self._calls.unlink(missing_ok=True)


class Worker:
    """The real NVML process over the stub, asked line by line; one that has ended is started anew."""

    def __init__(self, stub: NvmlStub, *options: str) -> None:
        self.stub = stub
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, *want: str) -> dict[str, Any]:
        """Send one wish and give the answer; no UUIDs: nobody says which GPUs the engine uses."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = subprocess.Popen(
                [*self.stub.command, *self._options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(os.environ),
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"want": list(want) or None}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        if (
            "reading" not in answer
            or answer["reading"]["troubles"]
            or any(g["lost"] for g in answer["reading"]["gpus"])
        ):
            process.wait(10)
        return answer
