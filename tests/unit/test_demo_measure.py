"""What the demo measures by itself: CPU seconds of real processes, kernels in real directories, live requests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sidecar.demo.measure import CASES, LATER, Kernels, cpu_seconds, live_requests, own_cpu_seconds
from sidecar.demo.processes import Program, engine_root
from sidecar.engines.vllm import VllmEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script

#: Burns a third of a CPU second in a grandchild that has ended, then says so and waits for its end of input.
_FAMILY = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.35: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
print("burnt", flush=True)
sys.stdin.read()
"""


def burnt(code: str = _FAMILY) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "burnt\n"
    return process


def test_cpu_seconds_of_a_tree_hold_those_of_children_that_have_ended():
    with burnt() as process:
        assert 0.35 <= cpu_seconds(process.pid) < 5
        assert (own_cpu_seconds(process.pid) or 0) >= 0.35
        process.communicate()


def test_cpu_seconds_of_a_tree_hold_those_of_children_that_live():
    outer = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys, time\\n"
        'while time.process_time() < 0.35: pass\\nprint("burnt", flush=True)\\nsys.stdin.read()\'])\n'
        "child.wait()"
    )
    with burnt(outer) as process:
        assert cpu_seconds(process.pid) >= 0.35
        assert (own_cpu_seconds(process.pid) or 0) < 0.3
        process.communicate()


def test_a_process_that_is_gone_has_no_cpu_seconds():
    with burnt() as process:
        process.communicate()
    assert cpu_seconds(process.pid) == 0
    assert own_cpu_seconds(process.pid) is None


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_only_kernels_count_and_not_what_lies_beside_them(tmp_path):
    kernels = Kernels(tmp_path)
    write(tmp_path / "inductor" / "ab" / "one.so")
    write(tmp_path / "inductor" / "ab" / "one.cpp")
    write(tmp_path / "triton" / "HASH" / "two.cubin")
    write(tmp_path / "triton" / "HASH" / "two.json")
    assert kernels.compiled(kernels.look()) == 2


def test_restored_kernels_do_not_count_and_rebuilt_ones_do(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("one.so", "two.so"):
        write(first / "inductor" / "ab" / name)
    known = Kernels(first).look()
    shutil.copytree(first, second)
    kernels = Kernels(second, known)
    assert kernels.compiled(kernels.look()) == 0
    rebuilt = second / "inductor" / "ab" / "two.so"
    os.utime(rebuilt, ns=(0, 0))
    assert kernels.compiled(kernels.look()) == 1


def test_a_live_cache_that_is_not_there_holds_no_kernels(tmp_path):
    kernels = Kernels(tmp_path / "nowhere")
    assert kernels.compiled(kernels.look()) == 0


async def test_live_requests_measure_the_first_and_the_later_ones_of_every_case():
    async with FakeEngine(Script(model="tiny")) as fake:
        engine = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        try:
            found = await live_requests(engine, "tiny", seed=1)
        finally:
            await engine.close()
    assert [case.name for case in found] == [case.name for case in CASES]
    assert all(case.first_s is not None and len(case.later_s) == LATER and not case.error for case in found)


async def test_the_first_request_that_compiles_is_seen_as_the_slow_one():
    script = Script(model="tiny", compile_seconds=0.3)
    async with FakeEngine(script) as fake:
        engine = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        try:
            found = await live_requests(engine, "tiny", seed=1)
        finally:
            await engine.close()
    assert found[0].first_s is not None
    assert found[0].first_s >= 0.3
    assert (found[0].typical_s or 1) < 0.3


async def test_a_live_request_that_fails_is_told_with_what_the_engine_said():
    async with FakeEngine(Script(model="tiny", generation="500")) as fake:
        engine = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        try:
            found = await live_requests(engine, "tiny", seed=1)
        finally:
            await engine.close()
    assert all(case.first_s is None and case.error for case in found)


def test_the_engine_is_found_among_the_sidecars_children_by_its_launcher(tmp_path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text("import sys\nsys.stdin.read()\n")
    code = (
        "import subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        f"launcher = subprocess.Popen([sys.executable, {str(launcher)!r}, '--', 'vllm'])\n"
        "print('burnt', flush=True)\nlauncher.wait(); worker.wait()"
    )
    with burnt(code) as process:
        found = engine_root(process.pid)
        assert found is not None
        assert str(launcher) in Path(f"/proc/{found}/cmdline").read_text()
        process.communicate()


def test_ending_a_program_ends_what_it_started_even_if_they_refuse(tmp_path):
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('stubborn', flush=True)\nsys.stdin.read(); time.sleep(600)"
    )
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {stubborn!r}])\ntime.sleep(600)"
    program = Program([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    deadline = time.monotonic() + 30
    while "stubborn" not in "".join(program.last_lines()) and time.monotonic() < deadline:
        time.sleep(0.02)
    family = program.tree()
    assert len(family) == 2
    program.end()
    assert program.exit_code is not None
    assert not [process for process in family if process.is_running() and process.status() != "zombie"]


def test_the_end_of_a_log_is_given_even_if_it_is_not_text(tmp_path):
    command = [sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'one\n\xff\xfe\nthree\n')"]
    program = Program(command, dict(os.environ), tmp_path / "log")
    deadline = time.monotonic() + 30
    while program.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert program.last_lines(2)[-1] == "three"
