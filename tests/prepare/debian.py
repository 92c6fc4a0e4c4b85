"""Install the distribution's packages that the tests need, where this is Debian or Ubuntu and we are root.

Python packages belong to pyproject.toml, the engine to `engine.py`. No service is ever started: a package
that brings one is unpacked into the cache folder instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.prepare.engine import cache_folder
from tests.prepare.outcome import Outcome, failed, passed, skipped
from tests.prepare.running import run

STAGE = "packages"


@dataclass(frozen=True)
class Package:
    """One package, why the tests need it, and how to see that it is there already."""

    name: str
    why: str
    is_there: Callable[[], bool]
    unpacked: bool = False


def search_path() -> str:
    """Give the PATH of the stages: the usual one, then the programs of unpacked packages."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(_unpacked() / "usr" / "bin")])


def _unpacked() -> Path:
    return cache_folder() / "debian"


def _on_path(*programs: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(program, path=search_path()) for program in programs)


PACKAGES = (
    Package("g++", "torch compiles kernels with it while the engine runs", _on_path("g++")),
    Package(
        f"python{sys.version_info[0]}.{sys.version_info[1]}-dev",
        "those kernels are compiled against Python.h",
        lambda: Path(sysconfig.get_path("include"), "Python.h").is_file(),
    ),
    Package("zstd", "packs must be readable with standard tools, so a test reads one with them", _on_path("zstd")),
    Package("chromium", "the status page is looked at in a real browser", _on_path("chromium", "chromium-browser")),
    Package("prometheus", "its promtool checks our metrics", _on_path("promtool"), unpacked=True),
    Package("skopeo", "it copies images to a registry and back", _on_path("skopeo")),
    Package("docker-registry", "a real registry takes such an image", _on_path("docker-registry"), unpacked=True),
    Package("etcd-server", "a real API server keeps its objects in etcd", _on_path("etcd"), unpacked=True),
    Package("dpkg-dev", "it unpacks the source that a real API server is built from", _on_path("dpkg-source")),
)


def install(folder: Path) -> Outcome:
    """Install what is missing; say what could not be had and what for."""
    started = time.monotonic()
    missing = [package for package in PACKAGES if not package.is_there()]
    if not missing:
        return passed(STAGE, time.monotonic() - started, "all there")
    wanted = "; ".join(f"{package.name} ({package.why})" for package in missing)
    if not shutil.which("apt-get"):
        return skipped(STAGE, f"not there and no apt-get to install them: {wanted}")
    if os.geteuid() != 0:
        return skipped(STAGE, f"not there, and only root may install them: {wanted}")
    code = _apt(folder, 300, "update")
    if names := [package.name for package in missing if not package.unpacked]:
        code = _apt(folder, 900, "install", "--no-install-recommends", *names) or code
    for package in missing:
        code = (package.unpacked and _unpack(package.name)) or code
    still = [package for package in missing if not package.is_there()]
    seconds = time.monotonic() - started
    if still:
        lacking = "; ".join(f"{package.name} ({package.why})" for package in still)
        return skipped(STAGE, f"apt-get (exit code {code}) did not bring {lacking}", seconds)
    if code != 0:
        return failed(STAGE, seconds, f"apt-get ended with exit code {code}")
    return passed(STAGE, seconds, f"installed {', '.join(package.name for package in missing)}")


def _apt(folder: Path, deadline_s: float, *arguments: str) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120", *arguments]
    return run(command, folder=folder, deadline_s=deadline_s, environment=environment)


def _unpack(name: str) -> int:
    with tempfile.TemporaryDirectory(prefix="warmup-sidecar-debian-") as scratch:
        folder = Path(scratch)
        code = _apt(folder, 300, "download", name)
        for archive in folder.glob("*.deb"):
            _unpacked().mkdir(parents=True, exist_ok=True)
            command = ["dpkg", "--extract", str(archive), str(_unpacked())]
            code = run(command, folder=folder, deadline_s=120) or code
        return code
