"""Reads the GPUs through NVML: which are visible, which of them the engine uses, and every field of those.

Runs in a process of its own (`worker.py`), because a call may never return; the daemon talks to it through
`reader.py`. Processes on the GPU are never listed: the driver's lock is held for that for milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sidecar.gpu import fields
from sidecar.gpu.fields import Asker
from sidecar.gpu.reading import Gpu, GpuSnapshot, Seen, names

MEMINFO = Path("/proc/meminfo")
#: nvml.h, NVML_ERROR_*: what stands for a lost GPU when its handle is asked for.
_LOST = (15, 16)
#: nvml.h, NVML_ERROR_INVALID_ARGUMENT and NVML_ERROR_NOT_FOUND: no GPU that this container sees has such a UUID.
_NOT_HERE = (2, 6)
#: nvml.h, NVML_ERROR_*: what a GPU that is there and can't be read is in need of.
_ADVICE: Mapping[int, str] = {
    4: "the sidecar's user may not open its device file: compare the rights of /dev/nvidia* with the user and the groups "
    "of the sidecar's container.",
    fields.GPU_IS_LOST: "NVML can't count the GPUs while one of the node is lost.",
    999: "after `systemctl daemon-reload` a container loses its device files on some nodes: if it stays so, recreate the "
    "pod. The engine may go on with the files it has open.",
}
UNKNOWN = 999


class NvmlTroubleError(Exception):
    """No GPU can be read. `code` is NVML's, or 0 when NVML is well and shows no GPU."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class _Device:
    seen: Seen
    handle: Any
    code: int


class Session:
    """NVML as one process sees it, opened before the first reading.

    `release` closes it after each reading, so that a driver upgrade isn't blocked in between. `clock` gives seconds.
    """

    def __init__(self, nvml: ModuleType, clock: Callable[[], float], *, release: bool, meminfo: Path = MEMINFO) -> None:
        self._nvml = nvml
        self._clock = clock
        self._release = release
        self._meminfo = meminfo
        self._open = False
        self._static: dict[str, tuple[str | None, str | None]] = {}

    def read(self, want: Sequence[str] | None) -> GpuSnapshot:
        """Read the wanted GPUs once. Raises NvmlTroubleError when none of any kind can be read."""
        began = self._clock()
        nvml = self._nvml
        try:
            if not self._open:
                nvml.nvmlInit()
                self._open = True
            snapshot = self._snapshot(want)
            if self._release:
                nvml.nvmlShutdown()
                self._open = False
        except nvml.NVMLError as error:
            raise NvmlTroubleError(error.value, str(error)) from error
        return replace(snapshot, seconds=round(self._clock() - began, 4))

    def _snapshot(self, want: Sequence[str] | None) -> GpuSnapshot:
        nvml = self._nvml
        devices = self._devices(want)
        if devices and all(device.code for device in devices) and not any(device.code in _LOST for device in devices):
            raise NvmlTroubleError(devices[0].code, str(nvml.NVMLError(devices[0].code)))
        cuda = self._system("nvmlSystemGetCudaDriverVersion_v2")
        gpus, troubles = self._chosen(devices, want)
        if not devices and not gpus:
            raise NvmlTroubleError(fields.GPU_IS_LOST, str(nvml.NVMLError(fields.GPU_IS_LOST)))
        return GpuSnapshot(
            driver=self._system("nvmlSystemGetDriverVersion"),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(gpus),
            seen=tuple(device.seen for device in devices),
            expected=len(want) if want is not None else 1 if len(devices) == 1 else None,
            troubles=tuple(troubles),
        )

    def _devices(self, want: Sequence[str] | None) -> list[_Device]:
        """Look at every visible GPU; empty where a lost one spoils the count and wanted ones can be asked for by UUID."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            if error.value in _LOST and want:
                return []
            raise
        if not count:
            raise NvmlTroubleError(0, "it shows no GPU")
        return [self._device(index) for index in range(count)]

    def _system(self, name: str) -> Any:
        try:
            return getattr(self._nvml, name)()
        except (self._nvml.NVMLError, UnicodeDecodeError, AttributeError):
            return None

    def _device(self, index: int) -> _Device:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            return _Device(Seen(index, None, None, None), None, error.value)
        ask = Asker(self._nvml, handle)
        uuid = ask("nvmlDeviceGetUUID")
        name, sm = self._static.get(uuid or "", (None, None))
        if uuid is None or name is None or sm is None:
            name, sm = self._static[uuid or ""] = (ask("nvmlDeviceGetName"), fields.sm_of(ask))
        return _Device(Seen(index, uuid, name, sm), handle, fields.GPU_IS_LOST if ask.lost else 0)

    def _chosen(self, devices: Sequence[_Device], want: Sequence[str] | None) -> tuple[list[Gpu], list[str]]:
        """Read the engine's GPUs. Where nobody says which they are, only a single one is certain."""
        if want is None:
            if len(devices) > 1:
                return [], []
            return self._read(devices[0])
        gpus: list[Gpu] = []
        troubles: list[str] = []
        refused: list[NvmlTroubleError] = []
        for uuid in want:
            try:
                found, more = self._find(devices, uuid)
            except NvmlTroubleError as error:
                refused.append(error)
                found, more = [], [self._unreadable(uuid, error.code)]
            gpus += [gpu for gpu in found if not any(gpu.uuid and gpu.uuid == other.uuid for other in gpus)]
            troubles += more
        if refused and not gpus:
            raise refused[0]
        return gpus, troubles

    def _find(self, devices: Sequence[_Device], uuid: str) -> tuple[list[Gpu], list[str]]:
        """Read one GPU or MIG instance by its UUID; with a MIG instance comes the GPU that it is a part of."""
        if uuid.startswith("MIG-"):
            return self._instance(devices, uuid)
        named = [device for device in devices if device.seen.uuid and names(uuid, device.seen.uuid)]
        if len(named) == 1:
            return self._read(named[0])
        code = self._code_of(uuid)
        # NVML may not know the UUID of one that it can't reach; then it is one of those that have no name.
        unnamed = [device.code or UNKNOWN for device in devices if device.seen.uuid is None]
        unnamed = unnamed if devices else [fields.GPU_IS_LOST]
        if code in _LOST or (code in _NOT_HERE and any(each in _LOST for each in unnamed)):
            return [Gpu(None, uuid, lost=True)], []
        if code not in (0, *_NOT_HERE):
            return [], [self._unreadable(uuid, code)]
        return [], [self._unreadable(uuid, unnamed[0]) if unnamed else _unseen(uuid)]

    def _code_of(self, uuid: str) -> int:
        try:
            self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        except self._nvml.NVMLError as error:
            return int(error.value)
        return 0

    def _unreadable(self, uuid: str, code: int) -> str:
        advice = _ADVICE.get(code, "its numbers are left out until it can.")
        return f"{uuid}, which the engine uses, is there and can't be read ({self._nvml.NVMLError(code)}): {advice}"

    def _instance(self, devices: Sequence[_Device], uuid: str) -> tuple[list[Gpu], list[str]]:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except nvml.NVMLError as error:
            if error.value in _LOST:
                return [Gpu(None, uuid, lost=True)], []
            return [], [_unseen(uuid) if error.value in _NOT_HERE else self._unreadable(uuid, error.value)]
        parent = Asker(nvml, whole)("nvmlDeviceGetUUID")
        owner = next((device for device in devices if device.seen.uuid == parent), None)
        seen = owner.seen if owner else Seen(-1, parent, None, None)
        instance = self._read_instance(handle, uuid, seen)
        return ([instance, self._shared(owner)] if owner else [instance]), []

    def _read(self, device: _Device) -> tuple[list[Gpu], list[str]]:
        """Read one GPU whole; of one that is split into MIG instances only what they share, and the single instance."""
        if device.code:
            return [Gpu(device.seen.index, device.seen.uuid, device.seen.name, device.seen.sm, lost=True)], []
        mode = Asker(self._nvml, device.handle)("nvmlDeviceGetMigMode")
        if mode and mode[0]:
            instances = list(self._instances(device))
            if len(instances) == 1:
                return [self._read_instance(*instances[0], device.seen), self._shared(device)], []
            return [self._shared(device)], [_split(device.seen.uuid, len(instances))]
        ask = Asker(self._nvml, device.handle)
        return [self._filled(device.seen, ask, self._own(ask, device.seen) | _shared_fields(ask))], []

    def _instances(self, device: _Device) -> Iterable[tuple[Any, str | None]]:
        ask = Asker(self._nvml, device.handle)
        for index in range(ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            if handle is not None:
                yield handle, Asker(self._nvml, handle)("nvmlDeviceGetUUID")

    def _read_instance(self, handle: Any, uuid: str | None, whole: Seen) -> Gpu:
        ask = Asker(self._nvml, handle)
        name = ask("nvmlDeviceGetName") or ""
        seen = Seen(whole.index, uuid, whole.name or name, whole.sm or fields.sm_of(ask))
        found = self._filled(seen, ask, self._own(ask, seen))
        # NVML names an instance after its GPU and its profile: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
        return replace(found, mig=name.rpartition("MIG ")[2] or "unknown")

    def _own(self, ask: Asker, seen: Seen) -> dict[str, Any]:
        return fields.utilization(ask) | fields.memory(ask, seen.sm, self._meminfo)

    def _shared(self, device: _Device) -> Gpu:
        ask = Asker(self._nvml, device.handle)
        return self._filled(device.seen, ask, _shared_fields(ask))

    def _filled(self, seen: Seen, ask: Asker, found: dict[str, Any]) -> Gpu:
        index = seen.index if seen.index >= 0 else None
        if ask.lost:
            return Gpu(index, seen.uuid, seen.name, seen.sm, lost=True)
        if not ask.answers and ask.codes:
            raise NvmlTroubleError(ask.codes[0], str(self._nvml.NVMLError(ask.codes[0])))
        return Gpu(index, seen.uuid, seen.name, seen.sm, **found)


def _shared_fields(ask: Asker) -> dict[str, Any]:
    return fields.power(ask) | fields.clocks(ask) | fields.errors(ask) | fields.links(ask)


def _unseen(uuid: str) -> str:
    return (
        f"{uuid}, which the engine uses, can't be seen from the sidecar's container: give it the same "
        "NVIDIA_VISIBLE_DEVICES."
    )


def _split(uuid: str | None, instances: int) -> str:
    return (
        f"{uuid} is split into {instances} MIG instances and nobody says which one the engine uses: name it by its "
        "MIG-… UUID in WARMUP_GPUS."
    )
