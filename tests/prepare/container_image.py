"""Build the image of k8s/Containerfile without a container engine's daemon and without a registry: buildah on a base of Debian's.

For the slow tests only. How the image is run is in tests/kubernetes/test_image.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.prepare.engine import cache_folder
from tests.prepare.outcome import Outcome, passed, skipped
from tests.prepare.running import run

STAGE = "image"
#: Debian packages by the program that shows that they are there.
PROGRAMS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "runc": "runc"}
#: What docker.io/library/python:3.11-slim-bookworm has and this build uses, from the same distribution.
BASE_PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
BASE, IMAGE = "localhost/python-base", "localhost/warmup-sidecar:test"
#: How this machine reaches the package index; the build sees it and the image does not.
TRUST = ("/etc/ssl/certs", "/etc/pip.conf")


class BuildFailed(Exception):
    """A program of the build ended badly; the message is the end of what it said."""


def folder() -> Path:
    """Give the folder of base and image."""
    return cache_folder() / "container-image"


def why_not() -> str:
    """Say why no image can be built here; empty: it can."""
    if os.geteuid() != 0:
        return "an image is built and run by root only"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}"
    return "" if _has(BASE) else "no base image"


def prepare_image() -> Outcome:
    """Install what builds and runs images, and make the base; what can't be had is a skip with its reason."""
    started = time.monotonic()
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120", "install", "--no-install-recommends"]
        run(["apt-get", "-q", "update"], folder=Path("/"), deadline_s=300)
        run([*install, *missing], folder=Path("/"), deadline_s=600)
    if why_not() == "no base image":
        try:
            _make_base()
        except BuildFailed as error:
            return skipped(STAGE, " ".join(str(error).split()), time.monotonic() - started)
    reason, seconds = why_not(), time.monotonic() - started
    return skipped(STAGE, reason, seconds) if reason else passed(STAGE, seconds)


def buildah(*words: str, deadline_s: float = 600) -> str:
    """Run buildah on our own storage and give what it prints. Raises BuildFailed."""
    place = ["--root", str(folder() / "storage"), "--runroot", str(folder() / "run"), "--storage-driver", "vfs"]
    return _said(["buildah", *place, *words], deadline_s)


def build(checkout: Path) -> str:
    """Build the image as it is shipped, on the local base; give its name. Raises BuildFailed."""
    volumes = [word for path in TRUST if os.path.exists(path) for word in ("--volume", f"{path}:{path}:ro")]
    file = str(checkout / "k8s" / "Containerfile")
    words = ["bud", "--isolation", "chroot", "--file", file, "--build-arg", f"BASE={BASE}", *volumes]
    buildah(*words, "--tag", IMAGE, str(checkout), deadline_s=1200)
    return IMAGE


def _has(image: str) -> bool:
    try:
        buildah("inspect", "--type", "image", image)
    except BuildFailed:
        return False
    return True


def _make_base() -> None:
    folder().mkdir(parents=True, exist_ok=True)
    tree = folder() / "base.tar"
    try:
        words = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm"]
        _said([*words, str(tree)], 600)
        container = buildah("from", "scratch")
        buildah("add", container, str(tree), "/")
        buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container)
        buildah("commit", "--rm", container, BASE)
    finally:
        tree.unlink(missing_ok=True)


def _said(command: Sequence[str], deadline_s: float) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(str(error)) from error
    if done.returncode:
        raise BuildFailed(f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout.strip()
