"""Readings of a real GPU against what nvidia-smi says of it. Skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sidecar.gpu.reader import GpuReader
from sidecar.gpu.reading import Gpu, GpuSnapshot, Wish

MIB = 1 << 20
#: nvidia-smi's name of a field → ours, how many of our units are one of its, and by how much they may differ, since the
#: two readings are moments apart.
FIELDS: dict[str, tuple[str, float, float]] = {
    "memory.total": ("memory_size_bytes", MIB, MIB),
    "memory.used": ("memory_used_bytes", MIB, 64 * MIB),
    "memory.reserved": ("memory_reserved_bytes", MIB, 8 * MIB),
    "power.draw": ("power_watts", 1, 40),
    "enforced.power.limit": ("power_limit_watts", 1, 0.5),
    "temperature.gpu": ("temperature_celsius", 1, 5),
    "temperature.memory": ("memory_temperature_celsius", 1, 5),
    "pcie.link.gen.current": ("pcie_link_generation", 1, 0),
    "pcie.link.width.current": ("pcie_link_width", 1, 0),
}
NESTED: dict[str, tuple[str, str, float, float]] = {
    "clocks.max.sm": ("clock_max_hertz", "sm", 1e6, 0),
    "clocks.max.memory": ("clock_max_hertz", "memory", 1e6, 0),
    "ecc.errors.corrected.volatile.total": ("ecc_errors", "corrected_volatile", 1, 0),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_errors", "uncorrected_aggregate", 1, 0),
}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="nvidia-smi is missing: no NVIDIA GPU here"),
]


def asked(*fields: str) -> list[dict[str, str]]:
    """Ask nvidia-smi; a row for each GPU."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [dict(zip(fields, (value.strip() for value in line.split(",")), strict=True)) for line in said.splitlines()]


async def reading(wish: Wish) -> GpuSnapshot:
    reader = GpuReader()
    try:
        return await reader.read(wish)
    finally:
        await reader.close()


async def the_first() -> Gpu:
    (first, *_) = asked("uuid")
    (gpu,) = (await reading(Wish((first["uuid"],)))).gpus
    return gpu


async def test_the_gpus_and_the_driver_are_those_of_nvidia_smi():
    rows = asked("index", "uuid", "name", "driver_version")
    found = await reading(Wish(tuple(row["uuid"] for row in rows)))
    assert [(str(gpu.index), gpu.uuid, gpu.name) for gpu in found.gpus] == [
        (row["index"], row["uuid"], row["name"]) for row in rows
    ]
    assert (found.driver, found.lost, found.troubles) == (rows[0]["driver_version"], (), ())


@pytest.mark.parametrize("field", FIELDS)
async def test_a_field_is_what_nvidia_smi_says(field: str):
    name, unit, tolerance = FIELDS[field]
    theirs = asked(field)[0][field]
    ours = getattr(await the_first(), name)
    if "N/A" in theirs:
        assert ours is None
    else:
        assert ours == pytest.approx(float(theirs) * unit, abs=tolerance)


@pytest.mark.parametrize("field", NESTED)
async def test_a_field_with_several_values_is_what_nvidia_smi_says(field: str):
    name, key, unit, tolerance = NESTED[field]
    theirs = asked(field)[0][field]
    ours = (getattr(await the_first(), name) or {}).get(key)
    if "N/A" in theirs:
        assert ours is None
    else:
        assert ours == pytest.approx(float(theirs) * unit, abs=tolerance)


async def test_a_reading_takes_less_than_a_tenth_of_a_second_once_nvml_is_open():
    reader = GpuReader()
    await reader.read()
    seconds = [(await reader.read()).seconds for _ in range(5)]
    await reader.close()
    assert min(seconds) < 0.1
