"""Each field of a GPU as NVML gives it, turned into base units; every one is optional on its own.

Which GPUs are read, and what a failure of all of them means, is decided in `nvml.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sidecar.gpu.reading import MemoryKind
from sidecar.gpu.sm import BY_NAME

#: nvml.h, NVML_ERROR_GPU_IS_LOST: fallen off the bus or otherwise inaccessible.
GPU_IS_LOST = 15

#: Why clocks are held down. nvml.h, nvmlClocksEventReasons (called ThrottleReasons before driver 535); an idle GPU
#: lowers its clocks too, which is no throttling.
THROTTLE_REASONS: Mapping[str, int] = {
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clock_setting": 0x100,
}
CLOCKS: Mapping[str, int] = {"sm": 1, "memory": 2}
#: nvml.h, nvmlMemoryErrorType_t and nvmlEccCounterType_t.
ECC_ERRORS: Mapping[str, tuple[int, int]] = {
    "corrected_volatile": (0, 0),
    "uncorrected_volatile": (1, 0),
    "corrected_aggregate": (0, 1),
    "uncorrected_aggregate": (1, 1),
}
#: nvml.h, NVML_FI_DEV_*: asked all at once, each with its own answer. Scope 0xFFFFFFFF: all links together.
_ALL_LINKS = 0xFFFFFFFF
_FIELDS: Mapping[str, tuple[int, int]] = {
    "memory_temperature": (82, 0),
    "pcie_sent": (197, 0),
    "pcie_received": (198, 0),
    "nvlink_sent": (138, _ALL_LINKS),
    "nvlink_received": (139, _ALL_LINKS),
    "nvlink_crc": (38, 0),
    "nvlink_replay": (52, 0),
    "nvlink_recovery": (59, 0),
    "nvlink_count": (91, 0),
}
#: nvml.h, nvmlValueType_t.
_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
KIB = 1024
#: A GPU whose memory is as large as the machine's, within this share, has none of its own.
SAME_SIZE = 0.05


class Asker:
    """Asks NVML about one device; gives None for what it refuses, and remembers how it refused."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self.nvml = nvml
        self._handle = handle
        self.codes: list[int] = []
        self.answers = 0

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml with the device's handle."""
        try:
            answer = getattr(self.nvml, name)(self._handle, *arguments)
        except self.nvml.NVMLError as error:
            self.codes.append(error.value)
            return None
        except (UnicodeDecodeError, AttributeError):
            return None
        self.answers += 1
        return answer

    @property
    def lost(self) -> bool:
        """Say whether the driver answered that this GPU is lost."""
        return GPU_IS_LOST in self.codes


def scaled(value: Any, factor: float) -> float | None:
    """Turn a number into base units; None stays None."""
    return None if value is None else float(value * factor)


def sm_of(ask: Asker) -> str | None:
    """Name the SM version: (9, 0) is `sm90`."""
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    return None if capability is None else f"sm{capability[0]}{capability[1]}"


def utilization(ask: Asker) -> dict[str, Any]:
    """Give the shares of time in which a kernel ran, and in which memory was read or written."""
    rates = ask("nvmlDeviceGetUtilizationRates")
    if rates is None:
        return {}
    return {"utilization_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def memory(ask: Asker, sm: str | None, meminfo: Path) -> dict[str, Any]:
    """Give memory and whose it is: version 2 counts what the driver reserves apart (nvml.h, nvmlMemory_v2_t).

    A GPU without memory of its own answers NotSupported, success with 0, or success with the size of the machine's
    memory, by product and driver (seen on GB10): then the numbers are the machine's, from /proc/meminfo.
    """
    found = ask("nvmlDeviceGetMemoryInfo", ask.nvml.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo")
    row = BY_NAME.get(sm or "")
    size, available = _machine(meminfo)
    guessed = row is None and found is not None and size and abs(found.total - size) <= SAME_SIZE * size
    if (row is not None and row.unified) or guessed:
        kind: MemoryKind = "unified"
        return {"memory": kind, "memory_used_bytes": size - available, "memory_size_bytes": size} if size else {}
    if found is None or not found.total:
        return {}
    kind = "device"
    reserved = getattr(found, "reserved", None)
    return {
        "memory": kind,
        "memory_used_bytes": found.used,
        "memory_size_bytes": found.total,
        "memory_reserved_bytes": reserved,
    }


def _machine(meminfo: Path) -> tuple[int, int]:
    """Give size and what is available of the machine's memory in bytes; zeros where the kernel doesn't say."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        return tuple(int(rows[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (OSError, ValueError, KeyError):
        return 0, 0


def power(ask: Asker) -> dict[str, Any]:
    """Give power, its limit and the energy used, from milliwatts and millijoules; and temperature."""
    return {
        "power_watts": scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
        "power_limit_watts": scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        "energy_joules": scaled(ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
        "temperature_celsius": scaled(ask("nvmlDeviceGetTemperature", 0), 1),
    }


def clocks(ask: Asker) -> dict[str, Any]:
    """Give clocks, from MHz, and which reasons hold them down."""
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "clock_hertz": _each(CLOCKS, lambda kind: scaled(ask("nvmlDeviceGetClockInfo", kind), 1e6)),
        "clock_max_hertz": _each(CLOCKS, lambda kind: scaled(ask("nvmlDeviceGetMaxClockInfo", kind), 1e6)),
        "throttled": None
        if reasons is None
        else {name: float(bool(reasons & bit)) for name, bit in THROTTLE_REASONS.items()},
    }


def errors(ask: Asker) -> dict[str, Any]:
    """Give ECC errors and rows of memory that were replaced, or should be at the next reset."""
    rows = ask("nvmlDeviceGetRemappedRows")
    remapped: dict[str, Any] = {}
    if rows is not None:
        remapped = {
            "remapped_rows": {"corrected": rows[0], "uncorrected": rows[1]},
            "row_remap_pending": float(bool(rows[2])),
            "row_remap_failed": float(bool(rows[3])),
        }
    return {"ecc_errors": _each(ECC_ERRORS, lambda kind: ask("nvmlDeviceGetTotalEccErrors", *kind)), **remapped}


def links(ask: Asker) -> dict[str, Any]:
    """Give PCIe and NVLink: width, traffic and errors, and the memory's temperature, which comes with them.

    Not nvmlDeviceGetPcieThroughput: each call of it samples for 20 ms (nvml.h); the counters tell the same for nothing.
    """
    found = _field_values(ask)
    count = int(found.get("nvlink_count") or 0)
    states = [ask("nvmlDeviceGetNvLinkState", link) for link in range(count)]
    known = [state for state in states if state is not None]
    return {
        "memory_temperature_celsius": found.get("memory_temperature"),
        "pcie_link_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_link_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter"),
        "pcie_bytes": _some({"sent": found.get("pcie_sent"), "received": found.get("pcie_received")}),
        "nvlink_links": {"active": sum(map(bool, known)), "inactive": len(known) - sum(map(bool, known))}
        if known
        else None,
        "nvlink_bytes": _some(
            {
                "sent": scaled(found.get("nvlink_sent"), KIB),
                "received": scaled(found.get("nvlink_received"), KIB),
            }
        ),
        "nvlink_errors": _some({name: found.get(f"nvlink_{name}") for name in ("crc", "replay", "recovery")}),
    }


def _field_values(ask: Asker) -> dict[str, float]:
    values = ask("nvmlDeviceGetFieldValues", list(_FIELDS.values()))
    found: dict[str, float] = {}
    for name, value in zip(_FIELDS, values or (), strict=False):
        if value.nvmlReturn == 0 and value.valueType < len(_VALUE_TYPES):
            found[name] = float(getattr(value.value, _VALUE_TYPES[value.valueType]))
    return found


def _each(kinds: Mapping[str, Any], ask: Callable[[Any], float | None]) -> dict[str, float] | None:
    return _some({name: ask(kind) for name, kind in kinds.items()})


def _some(values: Mapping[str, float | None]) -> dict[str, float] | None:
    """Keep what is known; None when nothing is."""
    return {name: value for name, value in values.items() if value is not None} or None
