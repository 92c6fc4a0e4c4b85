"""Asking the NVML process: deadlines, troubles that pass, and nothing that the daemon would wait for."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from sidecar.errors import GpuUnavailable
from sidecar.gpu.reader import GpuReader
from sidecar.gpu.reading import Gpu, GpuSnapshot, Wish
from tests.fakes.nvml import NEEDS_GCC, NvmlStub, compile_stub

FIRST = Wish(("GPU-stub-0",))
#: A worker that answers each wish as the words behind it say, one word a wish.
SCRIPTED = """
import sys, json, time
for word in sys.argv[1:]:
    if not sys.stdin.readline(): break
    if word == "die": sys.exit(1)
    if word == "hang": time.sleep(600)
    if word == "half": print('{"reading"', end="", flush=True); sys.exit(1)
    print(json.dumps({"reading": json.loads(word)}), flush=True)
"""
FINE = '{"driver":"1","cuda":null,"gpus":[],"seen":[],"expected":0,"troubles":[],"seconds":0.0}'


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    if not compile_stub(folder):
        pytest.skip(NEEDS_GCC)
    return folder


@pytest.fixture
def stub(library: Path, tmp_path: Path) -> NvmlStub:
    return NvmlStub(library, tmp_path)


def scripted(*words: str, deadline_s: float = 20.0) -> GpuReader:
    return GpuReader(command=[sys.executable, "-c", SCRIPTED, *words], deadline_s=deadline_s, opening_s=deadline_s)


async def trouble(reader: GpuReader) -> GpuUnavailable:
    with pytest.raises(GpuUnavailable) as raised:
        await reader.read(FIRST)
    return raised.value


async def test_one_process_answers_reading_after_reading(stub: NvmlStub) -> None:
    reader = GpuReader(command=stub.command)
    first, second = await reader.read(FIRST), await reader.read(FIRST)
    await reader.close()
    assert [gpu.power_watts for gpu in first.gpus + second.gpus] == [412.5, 412.5]
    assert stub.calls().count("init") == 1


async def test_a_driver_that_forgets_its_clients_is_asked_anew_and_comes_back(stub: NvmlStub) -> None:
    reader = GpuReader(command=stub.command)
    assert (await reader.read(FIRST)).gpus
    stub.set(FAIL="count=999")
    for _ in range(2):
        assert (await trouble(reader)).kind == "unknown"
    stub.set()
    assert (await reader.read(FIRST)).gpus
    await reader.close()


async def test_a_gpu_that_gets_lost_keeps_its_place_and_its_name(stub: NvmlStub) -> None:
    stub.set(GPUS=2)
    reader = GpuReader(command=stub.command)
    second = Wish(("GPU-stub-1",))
    await reader.read(second)
    stub.set(GPUS=2, FAIL="handle@1=15,by_uuid=15")
    (gpu,) = (await reader.read(second)).gpus
    await reader.close()
    assert (gpu.lost, gpu.index, gpu.name, gpu.power_watts) == (True, 1, "NVIDIA H200", None)


async def test_the_only_gpu_whom_nobody_named_keeps_its_uuid_when_it_gets_lost(stub: NvmlStub) -> None:
    reader = GpuReader(command=stub.command)
    await reader.read()
    stub.set(FAIL="handle=15,by_uuid=15")
    (gpu,) = (await reader.read()).gpus
    await reader.close()
    assert (gpu.lost, gpu.uuid, gpu.index) == (True, "GPU-stub-0", 0)


async def test_a_lost_gpu_named_by_the_beginning_of_its_uuid_is_shown_under_the_whole(stub: NvmlStub) -> None:
    reader = GpuReader(command=stub.command)
    beginning = Wish(("GPU-stub",))
    await reader.read(beginning)
    stub.set(FAIL="handle=15")
    (gpu,) = (await reader.read(beginning)).gpus
    await reader.close()
    assert (gpu.lost, gpu.uuid, gpu.index) == (True, "GPU-stub-0", 0)


async def test_each_trouble_says_what_to_do(stub: NvmlStub) -> None:
    said = {}
    for code in (9, 12, 18, 999):
        stub.set(FAIL=f"init={code}")
        said[code] = str(await trouble(GpuReader(command=stub.command)))
    assert all("GPU metrics are left out until" in each for each in said.values())
    assert "NVIDIA_VISIBLE_DEVICES" in said[12]
    assert "restart the pod when the upgrade has ended" in said[18]
    assert "daemon-reload" in said[999]


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has the library")
async def test_a_machine_without_the_library_is_a_sentence_that_says_what_the_container_needs() -> None:
    empty = GpuReader(command=["env", "LD_LIBRARY_PATH=/nonexistent", sys.executable, "-m", "sidecar.gpu.worker"])
    found = await trouble(empty)
    assert found.kind == "no_library"
    assert "NVIDIA_VISIBLE_DEVICES" in str(found)


async def test_a_call_that_never_returns_is_given_up_and_its_process_killed(stub: NvmlStub) -> None:
    stub.set(HANG="utilization")
    reader = GpuReader(command=stub.command, opening_s=2.0)
    began = time.monotonic()
    found = await trouble(reader)
    assert found.kind == "no_answer"
    assert time.monotonic() - began < 20
    stub.set()
    assert (await reader.read(FIRST)).gpus
    await reader.close()


async def test_the_loop_is_never_held_by_a_call_that_hangs(stub: NvmlStub) -> None:
    stub.set(HANG="init")
    reader = GpuReader(command=stub.command, opening_s=1.0)
    reading = asyncio.ensure_future(reader.read(FIRST))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert isinstance(reading.exception(), GpuUnavailable)
    assert turns > 10


async def test_no_second_process_is_started_beside_one_that_can_not_be_killed() -> None:
    reader = scripted(FINE)

    class InTheDriver:
        returncode = None

    reader._hanging = InTheDriver()  # type: ignore[assignment]
    found = await trouble(reader)
    assert (found.kind, "still hangs" in str(found)) == ("no_answer", True)
    assert reader._process is None
    InTheDriver.returncode = -9  # type: ignore[assignment]
    assert (await reader.read(FIRST)).driver == "1"
    await reader.close()


async def test_a_process_that_died_between_readings_is_replaced_at_once() -> None:
    reader = scripted(FINE, "die")
    await reader.read(FIRST)
    assert (await reader.read(FIRST)).driver == "1"
    await reader.close()


async def test_a_process_that_dies_at_every_start_is_told() -> None:
    assert "ended without an answer" in str(await trouble(scripted("die")))


async def test_half_an_answer_is_no_answer() -> None:
    assert "ended without an answer" in str(await trouble(scripted("half")))


async def test_an_answer_to_a_reading_that_was_cancelled_is_not_taken_for_the_next() -> None:
    reader = scripted("hang")
    reading = asyncio.ensure_future(reader.read(FIRST))
    while reader._process is None:
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reader._process is None
    await reader.close()


def test_a_reading_survives_its_way_as_json() -> None:
    gpu = Gpu(0, "GPU-0", "NVIDIA H200", "sm90", clock_hertz={"sm": 1.0}, memory="device", memory_size_bytes=5 << 30)
    snapshot = GpuSnapshot("570", "12.8", (gpu,), (), 1, ("one sentence",), 0.1)
    assert GpuSnapshot.from_json(snapshot.to_json()) == snapshot
    assert (snapshot.sm, snapshot.memory_size_bytes) == ("sm90", 5 << 30)


def test_the_sm_version_of_unlike_gpus_is_not_guessed() -> None:
    assert GpuSnapshot(gpus=(Gpu(0, "a", sm="sm90"), Gpu(1, "b", sm="sm89"))).sm == ""
