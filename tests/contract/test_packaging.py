"""What is shipped: the built wheel holds the code and the profiles, and CI installs what the README says.

The wheel is built from a copy of the tree, without asking a package index.
"""

from __future__ import annotations

import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from sidecar import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: What a build needs of the tree; a missing README is told by the test of the commands.
BUILT_FROM = ("pyproject.toml", "README.md", "sidecar", "warmup_profiles")


def normal(requirement: str) -> str:
    """Give a requirement's distribution name as package indexes compare it (PEP 503)."""
    name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "built"],
        cwd=tree,
        check=True,
        capture_output=True,
        timeout=300,
    )
    [built] = (tree / "built").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as an installation has it, in a folder that comes before the editable one."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def ask(installed: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")}
    environment["PYTHONPATH"] = str(installed)
    shown = subprocess.run(
        [sys.executable, *arguments],
        cwd=installed,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sidecar").rglob("*.py")}
    profiles = {f"sidecar/_profiles/{path.name}" for path in (ROOT / "warmup_profiles").glob("*.yaml")}
    assert profiles, "no profile is shipped"
    schemas = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sidecar").rglob("*.schema.json")}
    assert len(schemas) == 3, "the schemas of golden files, manifests and profiles"
    assert shipped == modules | profiles | schemas | {"sidecar/py.typed", "sidecar/golden/starter.yaml"}


def test_the_wheel_is_named_and_numbered_as_declared(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = email.message_from_bytes(archive.read(metadata))
    assert (told["Name"], told["Version"]) == ("vllm-warmup-sidecar", __version__)
    assert told["Requires-Python"] == ">=3.11"
    assert set(told.get_all("Provides-Extra", [])) == {"bucket", "test", "vllm"}


def test_the_wheel_brings_the_command(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        [points] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        parsed = configparser.ConfigParser()
        parsed.read_string(archive.read(points).decode())
    assert dict(parsed["console_scripts"]) == {"warmup-sidecar": "sidecar.cli:main"}


def test_an_installation_runs_its_own_code(installed: Path):
    where = ask(installed, "-c", "import sidecar; print(sidecar.__file__)").strip()
    assert Path(where).is_relative_to(installed)
    assert __version__ in ask(installed, "-m", "sidecar", "--version")


def test_an_installation_knows_the_profiles(installed: Path):
    listed = ask(installed, "-m", "sidecar", "profiles")
    for path in (ROOT / "warmup_profiles").glob("*.yaml"):
        assert path.stem in listed


def test_every_runtime_dependency_has_its_reason():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for requirement in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]:
        [line] = [line for line in lines if line.strip().startswith(f'"{requirement}"')]
        assert re.search(r"# \S+ \S+", line), f"{requirement} is asked for without a reason"


def test_ci_pins_everything_that_is_asked_for():
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    assert {normal(requirement) for requirement in asked} - {normal(line) for line in pins} == set()


@pytest.mark.parametrize("name", ["run", "long"])
def test_a_ci_script_can_be_executed(name: str):
    script = ROOT / ".ci" / name
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True, timeout=10)


def test_ci_runs_the_test_command_of_the_readme():
    command = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert command.endswith("-m tests")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
