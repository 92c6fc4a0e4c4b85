"""What one reading of the GPUs holds: frozen types with a JSON form, which travels from the NVML process to the daemon.

Nothing is asked of a GPU here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Whose memory the numbers are about: the GPU's own, or the machine's, which a GPU without its own shares.
MemoryKind = Literal["device", "unified"]
#: So much of a UUID is needed at least to name a GPU; CUDA itself takes any beginning that is one GPU's.
SHORTEST_UUID = 8


@dataclass(frozen=True)
class Gpu:
    """One GPU or MIG instance: ratios 0..1, bytes, watts, joules, hertz, degrees Celsius. None: it does not show it.

    `mig` is the profile of a MIG instance such as `1g.10gb`, empty for a whole GPU. `lost`: the driver can't reach it
    any more, and nothing else of it is known. Counters count since the driver was loaded, except ECC errors, which are
    given for that time (`volatile`) and for the GPU's whole life (`aggregate`).
    """

    index: int | None
    uuid: str | None
    name: str | None = None
    sm: str | None = None
    mig: str = ""
    lost: bool = False
    memory: MemoryKind | None = None
    utilization_ratio: float | None = None
    memory_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_size_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    clock_hertz: Mapping[str, float] | None = None
    clock_max_hertz: Mapping[str, float] | None = None
    throttled: Mapping[str, float] | None = None
    ecc_errors: Mapping[str, float] | None = None
    remapped_rows: Mapping[str, float] | None = None
    row_remap_pending: float | None = None
    row_remap_failed: float | None = None
    pcie_link_generation: int | None = None
    pcie_link_width: int | None = None
    pcie_replays: int | None = None
    pcie_bytes: Mapping[str, float] | None = None
    nvlink_links: Mapping[str, float] | None = None
    nvlink_bytes: Mapping[str, float] | None = None
    nvlink_errors: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the GPU as it stands in `/status`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Gpu:
        """Read a GPU; names that this version doesn't know are passed over."""
        known = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in known})


@dataclass(frozen=True)
class Seen:
    """One GPU that the sidecar's container can see, whoever uses it."""

    index: int
    uuid: str | None
    name: str | None
    sm: str | None


@dataclass(frozen=True)
class GpuSnapshot:
    """One reading: versions of the driver and of CUDA (the newest that this driver supports), and GPUs.

    `gpus` are those of the engine, `seen` all that are visible here. `expected` is how many the engine uses, None when
    that isn't known. `troubles` are sentences about what could not be read, `seconds` is how long the reading took.
    """

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    seen: tuple[Seen, ...] = ()
    expected: int | None = None
    troubles: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def sm(self) -> str:
        """Give the SM version of the engine's GPUs, of all that are visible when they are alike; else empty."""
        names = {gpu.sm for gpu in self.gpus if gpu.sm} or {seen.sm for seen in self.seen if seen.sm}
        return names.pop() if len(names) == 1 else ""

    @property
    def lost(self) -> tuple[Gpu, ...]:
        """Give those of the engine's GPUs that the driver can't reach any more."""
        return tuple(gpu for gpu in self.gpus if gpu.lost)

    @property
    def memory_size_bytes(self) -> int:
        """Give the memory of the largest GPU of the engine; 0 when unknown."""
        return max((gpu.memory_size_bytes or 0 for gpu in self.gpus), default=0)

    def to_json(self) -> dict[str, Any]:
        """Give the reading as it stands in `/status`."""
        return {
            "driver": self.driver,
            "cuda": self.cuda,
            "sm": self.sm,
            "expected": self.expected,
            "seen": [dataclasses.asdict(each) for each in self.seen],
            "troubles": list(self.troubles),
            "seconds": self.seconds,
            "gpus": [gpu.to_json() for gpu in self.gpus],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> GpuSnapshot:
        """Read what `to_json` gave. Raises KeyError or TypeError when it is anything else."""
        return cls(
            driver=found["driver"],
            cuda=found["cuda"],
            gpus=tuple(map(Gpu.from_json, found["gpus"])),
            seen=tuple(Seen(**each) for each in found["seen"]),
            expected=found["expected"],
            troubles=tuple(found["troubles"]),
            seconds=found["seconds"],
        )


@dataclass(frozen=True)
class Wish:
    """Which GPUs to read: UUIDs of GPUs and MIG instances, or their beginnings; None: not known which the engine uses.

    `why` says in a sentence why it isn't known.
    """

    uuids: tuple[str, ...] | None = None
    why: str = field(default="", compare=False)


def names(word: str, uuid: str) -> bool:
    """Say whether a word is a GPU's UUID or a beginning of it that is long enough."""
    return uuid == word or (len(word) >= SHORTEST_UUID and uuid.startswith(word))
