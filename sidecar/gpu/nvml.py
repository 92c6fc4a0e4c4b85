"""Readings of the GPUs through NVML, in a thread with a deadline: a call that never returns must not hold the
daemon.

What the numbers mean for anybody is not decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sidecar.errors import GpuUnavailable
from sidecar.gpu.sm import from_capability

#: The name under which NVIDIA's container toolkit mounts it. NVML API reference, "Known issues and linking".
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class Gpu:
    """One GPU: ratios 0..1, bytes, watts, degrees Celsius. None: this GPU or driver does not show it."""

    index: int
    uuid: str | None
    name: str | None
    sm: str | None
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None


@dataclass(frozen=True)
class GpuSnapshot:
    """One reading: versions of driver and CUDA (as the driver supports it), and all GPUs that are visible
    here.
    """

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]

    @property
    def sm(self) -> str:
        """Give the SM version of the first GPU, or an empty string."""
        return next((gpu.sm for gpu in self.gpus if gpu.sm), "")

    def to_json(self) -> dict[str, Any]:
        """Give the reading as it stands in `/status`."""
        return {
            "driver": self.driver,
            "cuda": self.cuda,
            "sm": self.sm,
            "gpus": [dataclasses.asdict(gpu) for gpu in self.gpus],
        }


class GpuReader:
    """Reads all GPUs on demand.

    NVML is opened and closed for each reading: an error that stays (a lost device after a daemon-reload of
    systemd) is mended by the next one, and no driver upgrade is blocked in between. `deadline_s` in seconds;
    NVML's own calls were seen to block for over 45 s on faulty GPUs.
    """

    def __init__(self, deadline_s: float = 5.0, read: Callable[[], GpuSnapshot] | None = None) -> None:
        self._deadline_s = deadline_s
        self._read = read or _read_nvml
        self._hanging = False

    async def read(self) -> GpuSnapshot:
        """Read all GPUs once. Raises GpuUnavailable when there is no NVML or GPU, or no answer within the
        deadline.
        """
        if self._hanging:
            raise GpuUnavailable(
                "NVML still hangs in an earlier call: GPU metrics are left out. If it stays so, look for "
                "Xid errors in the "
                "node's kernel log."
            )
        answer: asyncio.Future[GpuSnapshot] = asyncio.get_running_loop().create_future()
        # A daemon thread, not an executor: the interpreter waits for an executor's threads at its end.
        self._hanging = True
        threading.Thread(target=self._work, args=(answer,), name="nvml", daemon=True).start()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError as error:
            raise GpuUnavailable(
                f"NVML did not answer within {self._deadline_s:g} s: GPU metrics are left out until it does."
            ) from error

    def _work(self, answer: asyncio.Future[GpuSnapshot]) -> None:
        """Read in a thread of its own and settle the answer on its loop."""
        result, error = None, None
        try:
            result = self._read()
        except GpuUnavailable as unavailable:
            error = unavailable
        finally:
            self._hanging = False
        # The daemon may have ended while the call hung; nobody waits for the answer then.
        with contextlib.suppress(RuntimeError):
            answer.get_loop().call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[GpuSnapshot], result: GpuSnapshot | None, error: GpuUnavailable | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    elif result is not None:
        answer.set_result(result)


def _read_nvml() -> GpuSnapshot:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise GpuUnavailable(
            f"NVML can't be loaded ({error}): GPU metrics are left out. With GPUs on this node, the "
            "sidecar's container needs "
            "NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES=utility, or set WARMUP_SM and "
            "WARMUP_GPU_INTERVAL_S=0."
        ) from error
    try:
        import pynvml
    except ImportError as error:
        raise GpuUnavailable("The package nvidia-ml-py is not installed: GPU metrics are left out.") from error
    try:
        pynvml.nvmlInit()
        try:
            return _snapshot(pynvml)
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise GpuUnavailable(
            f"NVML answers with an error ({error}): GPU metrics are left out until it recovers."
        ) from error


def _snapshot(nvml: ModuleType) -> GpuSnapshot:
    count = nvml.nvmlDeviceGetCount()
    gpus = tuple(gpu for gpu in (_gpu(nvml, index) for index in range(count)) if gpu is not None)
    if not gpus:
        raise GpuUnavailable("NVML is there and shows no GPU that works: GPU metrics are left out.")
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return GpuSnapshot(
        driver=_ask(nvml, nvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=gpus,
    )


def _ask(nvml: ModuleType, call: Callable[..., Any], *arguments: Any) -> Any:
    """Give what a call answers, or None: each field is optional on its own, since old GPUs and MIG refuse
    some.
    """
    try:
        return call(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _gpu(nvml: ModuleType, index: int) -> Gpu | None:
    handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    busy = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    # Version 2 doesn't count what the driver reserves as used. NVML API reference, nvmlMemory_v2_t.
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2) or _ask(
        nvml, nvml.nvmlDeviceGetMemoryInfo, handle
    )
    milliwatts = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    celsius = _ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    return Gpu(
        index=index,
        uuid=_ask(nvml, nvml.nvmlDeviceGetUUID, handle),
        name=_ask(nvml, nvml.nvmlDeviceGetName, handle),
        sm=None if capability is None else from_capability(*capability),
        utilization_ratio=None if busy is None else busy.gpu / 100,
        memory_used_bytes=None if memory is None else memory.used,
        memory_size_bytes=None if memory is None else memory.total,
        power_watts=None if milliwatts is None else milliwatts / 1000,
        temperature_celsius=None if celsius is None else float(celsius),
    )
