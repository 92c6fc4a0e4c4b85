"""The metrics of the engine's processes, and of the room that caches have on disks.

How they are measured is the business of `supervisor/usage.py`; no number lives here.
"""

from __future__ import annotations

from sidecar.metrics.declaration import Metric

#: Fields of a reading of the engine's processes → metric.
PROCESS_SERIES = {
    "resident_bytes": "engine_resident_memory_bytes",
    "cpu_seconds": "engine_cpu_seconds_total",
    "open_files": "engine_open_files",
    "processes": "engine_processes",
}
#: Disks whose room is watched.
DISKS = ("live_cache", "store")

PROCESS_TABLE: tuple[Metric, ...] = (
    Metric(
        "engine_resident_memory_bytes",
        "gauge",
        "Resident memory of the engine's processes together; what they share counts once for each.",
        "bytes",
        optional=True,
    ),
    Metric(
        "engine_cpu_seconds_total",
        "counter",
        "CPU time of the engine's processes together, those that have ended included.",
        "seconds",
        optional=True,
    ),
    Metric("engine_open_files", "gauge", "Files and sockets the engine's processes have open together.", optional=True),
    Metric("engine_processes", "gauge", "Processes the engine consists of.", optional=True),
    Metric(
        "disk_free_bytes",
        "gauge",
        "Room left for the live cache and in the store; absent when it isn't a directory, or doesn't answer.",
        "bytes",
        {"disk": DISKS},
        optional=True,
    ),
    Metric(
        "disk_size_bytes",
        "gauge",
        "Size of the filesystems of live cache and store.",
        "bytes",
        {"disk": DISKS},
        optional=True,
    ),
)
