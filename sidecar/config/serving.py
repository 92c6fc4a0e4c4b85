"""Settings about a pod that serves: probes and log, when traffic is withdrawn, how it drains.

What Kubernetes is told besides the probes is declared in `kubernetes.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sidecar.config.group import Group


class ServingSettings(Group):
    """Probes, status page, log, GPU readings, stall and drain."""

    listen: str = Field(
        "0.0.0.0:9797",
        pattern=r"^(\[[0-9a-fA-F:]*\]|[^:\s]*):\d{1,5}$",
        description="Address and port of probes, status page and metrics; `[::]:9797` for IPv6.",
    )
    stall_s: float = Field(
        120, gt=0, le=86400, description="No progress with requests running for this long: traffic is withdrawn."
    )
    drain_s: float = Field(
        25,
        ge=0,
        le=3600,
        description="How long the launcher holds SIGTERM for in-flight requests; below the pod's grace period of 30 s.",
    )
    settle_s: float = Field(
        2,
        ge=0,
        le=300,
        description="How long the launcher waits at SIGTERM before it believes that no request is in flight, "
        "because endpoints are updated a moment after readiness.",
    )
    gpu_interval_s: float = Field(10, ge=0, le=3600, description="Time between two NVML readings; 0: NVML is not used.")
    gpu_release: bool = Field(
        False,
        description="`true`: NVML is closed between two readings, so that a driver upgrade isn't blocked; each reading then "
        "opens all GPUs anew.",
    )
    gpus: str = Field(
        "",
        pattern=r"^(\s*(GPU|MIG)-[0-9A-Za-z/-]+\s*(,\s*(GPU|MIG)-[0-9A-Za-z/-]+\s*)*)?$",
        description="UUIDs of the GPUs or MIG instances that the engine uses, separated by commas; empty: as the launcher "
        "saw them in the engine's container.",
    )
    log_format: Literal["json", "text"] = Field("json", description="Log lines as JSON or as text.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @property
    def engine_gpus(self) -> tuple[str, ...]:
        """Give the UUIDs of `gpus`."""
        return tuple(uuid for word in self.gpus.split(",") if (uuid := word.strip()))

    @property
    def listen_host(self) -> str:
        """Give the host part of `listen`, without brackets; empty means all addresses."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """Give the port of `listen`; 0 lets the system choose."""
        return int(self.listen.rpartition(":")[2])
