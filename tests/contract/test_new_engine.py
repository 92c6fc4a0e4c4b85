"""Adding an engine takes one file and its scripted server: tried on a copy of the project, with the suite of all adapters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = ROOT / "tests/fakes/new_engine"
#: The suite on the new engines alone, then the table that the README is given.
RUN = """
import sys, pytest
suite = "tests/contract/test_engine_adapters.py"
pytest.main(["-q", "-rA", "-p", "no:cacheprovider", "--noconftest", suite, "-k", "tiny or hasty or every_engine"])
from sidecar.commands import reference
print(reference.markdown(next(each for each in reference.REFERENCES if each.name == "engines")))
"""


def copied(root: Path) -> None:
    """Copy what the suite of adapters needs."""
    leave = shutil.ignore_patterns("__pycache__", "_profiles", "new_engine")
    shutil.copytree(ROOT / "sidecar", root / "sidecar", ignore=leave)
    shutil.copytree(ROOT / "warmup_profiles", root / "sidecar/_profiles")
    shutil.copytree(ROOT / "tests/fakes", root / "tests/fakes", ignore=leave)
    (root / "tests/contract").mkdir()
    for name in (
        "pyproject.toml",
        "tests/__init__.py",
        "tests/contract/__init__.py",
        "tests/contract/test_engine_adapters.py",
    ):
        shutil.copy(ROOT / name, root / name)


def add(root: Path, name: str, adapter: str) -> None:
    """Add an engine: these two files and nothing else."""
    (root / f"sidecar/engines/adapters/{name}.py").write_text(adapter, encoding="utf-8")
    server = (MADE / "server.py").read_text(encoding="utf-8")
    (root / f"tests/fakes/scripted/{name}.py").write_text(server.replace("tiny", name), encoding="utf-8")


def test_an_engine_of_one_file_passes_the_suite_and_a_careless_one_is_found_out(tmp_path: Path):
    copied(tmp_path)
    tiny = (MADE / "adapter.py").read_text(encoding="utf-8")
    add(tmp_path, "tiny", tiny)
    hasty = tiny.replace("tiny", "hasty").replace(
        '    title = "Tiny"\n', '    title = "Hasty"\n    health_path = "/health_generate"\n'
    )
    add(tmp_path, "hasty", hasty.replace('title="Tiny"', 'title="Hasty"'))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ended = _ended(ran.stdout)
    of_tiny = {name: state for name, state in ended.items() if "tiny" in name and "hasty" not in name}
    assert len(of_tiny) > 20, ran.stdout + ran.stderr
    assert set(of_tiny.values()) == {"PASSED"}, ran.stdout
    assert ended["test_every_engine_is_a_file_a_word_of_the_setting_and_a_scripted_server"] == "PASSED"
    found = [name for name, state in ended.items() if "[hasty]" in name and state == "FAILED"]
    assert "test_watching_and_learning_are_no_work_for_the_gpu[hasty]" in found
    headings = next(line for line in ran.stdout.splitlines() if line.startswith("| what |"))
    assert "Tiny (`tiny`)" in headings


def _ended(output: str) -> dict[str, str]:
    """Give how each test ended, as pytest sums it up."""
    found = re.findall(r"^(PASSED|FAILED|ERROR) tests/\S+?::(\S+)", output, re.MULTILINE)
    return {name: state for state, name in found}
