"""One start of the demo, with a scripted engine in place of vLLM and everything else as it is."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.figures import StartFigures
from sidecar.demo.starts import Start, Surroundings
from sidecar.demo.view import PlainView
from sidecar.demo.workplace import ENGINE_VARIABLES, Workplace, free_ports, serve_command
from sidecar.errors import DemoFailed
from tests.unit.commands import CHECKOUT, end_of
from tests.unit.commands import start as start_command

#: Stands where `vllm` would: serves the scripted engine on the port it is given, after saying what it was given.
_VLLM = """#!{python}
import json, os, sys
sys.path.insert(0, {checkout!r})
print("environment", json.dumps(dict(os.environ)), flush=True)
if {code!r}:
    print("ValueError: no such model", flush=True)
    sys.exit(int({code!r}))
port = sys.argv[sys.argv.index("--port") + 1]
sys.argv = ["engine", "--port", port, "--script", json.dumps({{"model": "tiny", "compile_seconds": 0.3}})]
import runpy
runpy.run_module("tests.fakes.engine", run_name="__main__")
"""


def make_engine(folder: Path, code: str = "") -> EnginePaths:
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    vllm = programs / "vllm"
    vllm.write_text(_VLLM.format(python=sys.executable, checkout=str(CHECKOUT), code=code))
    vllm.chmod(0o755)
    return EnginePaths(folder, Path(sys.executable), vllm, "0.32.0+cpu", folder / "install.log")


@pytest.fixture
def around(tmp_path_factory):
    """Give a workplace whose path is short enough for a unix socket, and the lines that were shown."""
    root = tmp_path_factory.mktemp("d")
    lines: list[str] = []
    place = Workplace(root, *free_ports(2))
    place.make_empty()

    def make(code: str = "") -> Surroundings:
        engine = make_engine(root / "engine", code)
        environment = place.environment(engine, os.environ)
        return Surroundings(place, engine, root / "model", environment, PlainView(lines.append), time.monotonic)

    return make


def closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_the_engine_alone_is_measured_and_ended(around):
    surroundings = around()
    start = Start(surroundings, "alone", "alone", 3)
    await start.alone()
    figures: StartFigures = start.figures
    assert figures.health_wall_s is not None
    assert (figures.health_cpu_s or 0) > 0
    assert all(not case.error for case in figures.cases)
    assert (figures.kernels_after or 0) > 0
    assert figures.ready_wall_s is None
    assert closed(surroundings.workplace.engine_port)


async def test_an_engine_that_ends_is_a_failure_with_the_end_of_its_log(around):
    with pytest.raises(DemoFailed) as failure:
        await Start(around(code="7"), "alone", "alone", 3).alone()
    assert "exit code 7" in str(failure.value)
    assert "alone.log" in str(failure.value)
    assert "ValueError: no such model" in str(failure.value)


async def test_two_starts_through_the_sidecar_the_second_restored(around):
    surroundings = around()
    empty = Start(surroundings, "first", "first", 1)
    files = await empty.through_the_sidecar()
    assert empty.figures.part("restore")["outcome"] == "miss"
    assert empty.figures.part("publish")["outcome"] == "published"
    assert (empty.figures.kernels_before or 0) > 0
    surroundings.workplace.make_empty()
    restored = Start(surroundings, "second", "second", 2)
    await restored.through_the_sidecar(known=files)
    assert restored.figures.part("restore")["outcome"] == "hit"
    assert restored.figures.ready_wall_s is not None
    assert (restored.figures.sidecar_cpu_s or 0) > 0
    assert (restored.figures.kernels_before or 0) < (empty.figures.kernels_before or 0)
    assert closed(surroundings.workplace.engine_port)
    assert closed(surroundings.workplace.sidecar_port)


def test_nothing_of_the_users_engine_settings_reaches_a_start(tmp_path):
    place = Workplace(tmp_path, 1, 2)
    given = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "WARMUP_STORE": "/x",
        "VLLM_USE_V1": "0",
        "TORCHINDUCTOR_CACHE_DIR": "/y",
        "HF_TOKEN": "secret",
        "PYTHONPATH": "/z",
    }
    found = place.environment(make_engine(tmp_path / "engine"), given)
    assert found["LANG"] == "C.UTF-8"
    assert found["PATH"].endswith(":/bin")
    assert not {"WARMUP_STORE", "VLLM_USE_V1", "TORCHINDUCTOR_CACHE_DIR", "HF_TOKEN", "PYTHONPATH"} & set(found)
    assert found.items() >= ENGINE_VARIABLES.items()
    assert Path(found["TMPDIR"]).is_relative_to(tmp_path)


def test_emptying_the_workplace_keeps_the_store_alone(tmp_path):
    place = Workplace(tmp_path, 1, 2)
    place.make_empty()
    for folder in (place.live, place.store, place.control, tmp_path / "tmp"):
        (folder / "file").write_text("x")
    place.make_empty()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("file")) == ["store/file"]


def test_both_starts_have_the_same_command_line_because_the_key_holds_it(tmp_path):
    engine = make_engine(tmp_path / "engine")
    assert serve_command(engine, tmp_path, 5) == serve_command(engine, tmp_path, 5)


async def test_a_demo_that_is_told_to_end_ends_its_processes(tmp_path):
    engine = make_engine(tmp_path / "engine")
    (tmp_path / "engine" / "ready.json").write_text(
        json.dumps({"steps": 1, "version": "0.32.0", "python": sys.executable})
    )
    (tmp_path / "engine" / "venv" / "bin" / "python").symlink_to(sys.executable)
    model = tmp_path / "warmup-sidecar" / "models" / "tiny-qwen3-1"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    variables = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    process = await start_command("demo", "--engine-dir", str(engine.root), "--no-baseline", variables=variables)
    assert process.stdout is not None
    while b"Warming up" not in (line := await process.stdout.readline()):
        assert line, (await end_of(process)).err
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(signal.SIGTERM)
    ended = await end_of(process)
    assert ended.code == 3
    assert "ended by SIGTERM" in ended.err
    assert "Traceback" not in ended.err
    assert not [one for one in family if one.is_running() and one.status() != "zombie"]


async def test_a_machine_without_what_the_engine_needs_is_told_what_and_how(tmp_path):
    variables = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    process = await start_command("demo", variables=variables)
    ended = await end_of(process)
    assert ended.code == 3
    assert "g++" in ended.err
    assert "apt-get install g++" in ended.err
    assert "Traceback" not in ended.err
