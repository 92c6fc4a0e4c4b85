"""What the demo finds out: figures of one start and of its live requests, with a JSON form.

Nothing is measured and nothing is shown here.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CaseFigures:
    """One kind of live request: time to first token of the first one and of the later ones, in seconds."""

    name: str
    first_s: float | None
    later_s: tuple[float, ...]
    error: str = ""

    @property
    def typical_s(self) -> float | None:
        """Give the median of the later requests."""
        return statistics.median(self.later_s) if self.later_s else None


@dataclass
class StartFigures:
    """One start. Wall seconds count from the start of the command, CPU seconds are those of the engine's
    processes.

    `kernels_before` were compiled before live requests came (`kernels_at_health` of them before the first
    200), `kernels_after` while they ran; all are counted as files of the live cache. `status` is the
    sidecar's own last word; empty for the engine alone.
    """

    title: str
    health_wall_s: float | None = None
    health_cpu_s: float | None = None
    ready_wall_s: float | None = None
    ready_cpu_s: float | None = None
    sidecar_cpu_s: float | None = None
    kernels_at_health: int | None = None
    kernels_before: int | None = None
    kernels_after: int | None = None
    cases: tuple[CaseFigures, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)

    def case(self, name: str) -> CaseFigures | None:
        """Give the live requests of one kind."""
        return next((case for case in self.cases if case.name == name), None)

    def part(self, name: str) -> Mapping[str, Any]:
        """Give a part of the sidecar's status, such as `restore`; empty when there is none."""
        found = self.status.get(name)
        return found if isinstance(found, Mapping) else {}

    def to_json(self) -> dict[str, Any]:
        """Give all figures."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Machine:
    """Where the figures were made: they mean nothing without it. `load` is the load average of one minute."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    load_before: float
    load_after: float
    date: str
    python: str
    engine: str
    product: str


@dataclass(frozen=True)
class DemoFigures:
    """Everything that one demo found out."""

    machine: Machine
    starts: tuple[StartFigures, ...]

    def to_json(self) -> dict[str, Any]:
        """Give all figures, for `--json`."""
        return {
            "machine": dataclasses.asdict(self.machine),
            "starts": [start.to_json() for start in self.starts],
        }
