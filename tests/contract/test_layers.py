"""The shape of the code: layers, owners of libraries, and the house rules that a tool can see.

The layers themselves are declared in pyproject.toml.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "sidecar").rglob("*.py"))

#: Places that may read the environment and the clock: entry points, which hand both on to constructors.
# `caches/bucket.py`: a bucket is opened with the variables of its own tools (AWS_*), which are no settings of ours.
ENTRY_POINTS = (
    "cli.py",
    "config/",
    "daemon/",
    "caches/worker.py",
    "caches/bucket.py",
    "commands/",
    "launcher/",
    "demo/",
)

#: What a daemon that only answers probes must not carry: together more than its 64 MiB. rich is not among them,
#: because structlog imports a part of it by itself.
HEAVY = ("kubernetes", "cryptography", "click", "zstandard")


def named(path: Path) -> str:
    return path.relative_to(ROOT / "sidecar").as_posix()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    # A wide terminal, so that each contract and its verdict stand on one line.
    wide = {**os.environ, "COLUMNS": "400"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120, env=wide)


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_every_import_keeps_to_the_layers():
    linted = lint_imports(ROOT)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("engines/planted.py", "import sidecar.supervisor", "Imports point downwards"),
        ("gpu/planted.py", "import sidecar.engines", "Imports point downwards"),
        ("brandnew.py", "", "Imports point downwards"),
        ("commands/planted.py", "import sidecar.launcher", "never imported"),
        ("launcher/planted.py", "import sidecar.errors", "imports nothing of the project"),
        ("web/planted.py", "def f():\n    import prometheus_client", "prometheus_client belongs to metrics"),
        ("engines/planted.py", "from pynvml import nvmlInit", "NVML belongs to gpu"),
        ("supervisor/planted.py", "import kubernetes.client", "API-server client belongs to kube"),
        ("caches/planted.py", "import aiohttp", "Engine HTTP belongs to engines"),
        ("supervisor/planted.py", "import rich.table", "click and rich belong"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str):
    shutil.copytree(ROOT / "sidecar", tmp_path / "sidecar", ignore=shutil.ignore_patterns("__pycache__", "_profiles"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "sidecar" / file).write_text(line + "\n", encoding="utf-8")
    linted = lint_imports(tmp_path)
    assert linted.returncode != 0
    broken = [line for line in linted.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), linted.stdout + linted.stderr


def test_the_launcher_needs_the_standard_library_alone():
    used = set()
    for path in SOURCES:
        if named(path).startswith("launcher/"):
            used |= imported(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    assert used - {"sidecar"} <= set(sys.stdlib_module_names)


def test_the_daemon_loads_no_heavy_library():
    asked = f"import sys, sidecar.daemon; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.split() == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_stays_within_the_house_rules(path: Path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says in one sentence what lives in it"
    assert len(text.splitlines()) <= 400, "a file per idea: at most 400 lines"
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > 40
    ]
    assert long == [], "a function has at most 40 lines"


@pytest.mark.parametrize("path", [path for path in SOURCES if not named(path).startswith(ENTRY_POINTS)], ids=named)
def test_a_part_is_given_environment_and_clock_instead_of_reading_them(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert calls & {"time.time", "time.time_ns", "time.monotonic", "datetime.now", "os.getenv"} == set()
    assert "os.environ" not in names


@pytest.mark.parametrize("word", ["utils", "helpers", "core", "manager", "base", "common"])
def test_no_file_has_a_name_that_says_nothing(word: str):
    assert [named(path) for path in SOURCES if word in path.with_suffix("").parts] == []
