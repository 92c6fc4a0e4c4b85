"""NVML readings, driven through the real pynvml against a stub libnvidia-ml.so.1 that gcc makes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import GpuUnavailable
from sidecar.gpu.nvml import GpuReader, GpuSnapshot

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "fakes" / "nvml_stub.c"
READ = """
import asyncio, json, os
from sidecar.errors import GpuUnavailable
from sidecar.gpu.nvml import GpuReader
async def main():
    reader, answers = GpuReader(deadline_s=float(os.environ["DEADLINE"])), []
    for _ in range(2):
        try:
            answers.append((await reader.read()).to_json())
        except GpuUnavailable as error:
            answers.append(str(error))
    print(json.dumps(answers))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stub library; the directory that holds it."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is missing, and the stub libnvidia-ml can't be compiled without it")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([gcc, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def read_twice(folder: Path, **stub: str) -> list[Any]:
    """Read twice with one reader in a process of its own; each answer is a snapshot's JSON or the error's
    sentence.
    """
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
        "DEADLINE": "10",
        **stub,
    }
    ended = subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    answers: list[Any] = json.loads(ended.stdout)
    return answers


def test_every_field_of_a_gpu_is_read_in_base_units(stub: Path) -> None:
    first, second = read_twice(stub)
    assert (
        first
        == second
        == {
            "driver": "570.133.20",
            "cuda": "12.8",
            "sm": "sm90",
            "gpus": [
                {
                    "index": 0,
                    "uuid": "GPU-stub-0",
                    "name": "NVIDIA H200",
                    "sm": "sm90",
                    "utilization_ratio": 0.63,
                    "memory_used_bytes": 1_400_000_000,
                    "memory_size_bytes": 150_754_820_096,
                    "power_watts": 412.5,
                    "temperature_celsius": 54.0,
                }
            ],
        }
    )


def test_eight_gpus_are_all_read(stub: Path) -> None:
    gpus = read_twice(stub, STUB_GPUS="8")[0]["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [f"GPU-stub-{index}" for index in range(8)]


def test_a_field_that_is_not_supported_is_left_out_and_the_others_stay(stub: Path) -> None:
    gpu = read_twice(stub, STUB_FAIL="power=3,utilization=3")[0]["gpus"][0]
    assert (gpu["power_watts"], gpu["utilization_ratio"], gpu["temperature_celsius"]) == (None, None, 54.0)


def test_memory_falls_back_to_the_first_version_of_the_call(stub: Path) -> None:
    assert read_twice(stub, STUB_FAIL="memory_v2=13")[0]["gpus"][0]["memory_used_bytes"] == 2_000_000_000


def test_memory_that_no_version_knows_is_left_out(stub: Path) -> None:
    gpu = read_twice(stub, STUB_FAIL="memory_v2=3,memory=3")[0]["gpus"][0]
    assert (gpu["memory_used_bytes"], gpu["memory_size_bytes"]) == (None, None)


def test_a_lost_gpu_is_left_out_and_its_neighbour_stays(stub: Path) -> None:
    gpus = read_twice(stub, STUB_GPUS="2", STUB_FAIL="second=15")[0]["gpus"]
    assert [gpu["index"] for gpu in gpus] == [0]


@pytest.mark.parametrize(
    ("wrong", "words"), [("9", "Driver Not Loaded"), ("18", "version mismatch"), ("999", "Unknown Error")]
)
def test_an_error_at_the_start_of_nvml_is_a_sentence(stub: Path, wrong: str, words: str) -> None:
    assert all(
        words in answer and "GPU metrics are left out" in answer
        for answer in read_twice(stub, STUB_INIT=wrong)
    )


def test_no_gpu_at_all_is_a_sentence(stub: Path) -> None:
    assert "shows no GPU" in read_twice(stub, STUB_GPUS="0")[0]


def test_a_call_that_never_returns_is_given_up_and_the_process_can_still_end(stub: Path) -> None:
    first, second = read_twice(stub, STUB_HANG="utilization", DEADLINE="0.3")
    assert "did not answer within 0.3 s" in first
    assert "still hangs" in second


def test_no_library_is_a_sentence_that_says_what_the_container_needs(tmp_path: Path) -> None:
    assert "NVIDIA_VISIBLE_DEVICES" in read_twice(tmp_path)[0]


async def test_a_late_answer_of_a_call_that_hung_is_dropped() -> None:
    released = threading.Event()
    answers = iter([GpuSnapshot("late", None, ()), GpuSnapshot("fresh", None, ())])

    def read() -> GpuSnapshot:
        answer = next(answers)
        if answer.driver == "late":
            released.wait(10)
        return answer

    reader = GpuReader(deadline_s=0.05, read=read)
    with pytest.raises(GpuUnavailable):
        await reader.read()
    hung = next(thread for thread in threading.enumerate() if thread.name == "nvml")
    released.set()
    await asyncio.to_thread(hung.join, 5)
    assert (await reader.read()).driver == "fresh"


async def test_a_hung_call_holds_the_loop_at_no_time() -> None:
    released = threading.Event()

    def read() -> GpuSnapshot:
        released.wait(10)
        return GpuSnapshot(None, None, ())

    reading = asyncio.ensure_future(GpuReader(deadline_s=5, read=read).read())
    longest = 0.0
    for _ in range(50):
        began = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - began)
    released.set()
    await reading
    assert longest < 0.5
