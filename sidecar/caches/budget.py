"""How many bytes a restore may lay down, and which families stay out when not all fit.

What is free is only looked at; nothing is written, and what is laid down is decided in `restore`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.live_cache import MOUNTINFO, mount_of

CGROUPS = Path("/sys/fs/cgroup")
#: In memory: files count against the limit of the container that writes them, so that many end it (kernel documentation,
#: admin-guide/cgroup-v2.rst, "memory.stat", `shmem`).
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
#: Left of this container's memory for the daemon and its worker.
MEMORY_SPARE = 64 * 1024 * 1024
# memory.max of a cgroup of version 1 without a limit: the largest multiple of a page.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Budget:
    """How many bytes may be laid down; 0 when nothing may, and in a clause what allows no more."""

    bytes: int
    why: str


def budget(
    live_cache: Path,
    limit_bytes: int,
    free: Callable[[Path], int],
    memory: Callable[[], int | None] | None = None,
    mountinfo: Path = MOUNTINFO,
) -> Budget:
    """Give the least of what the disk, the volume's size limit (0: none known) and, for files in memory, this container leave.

    The kubelet ends a pod whose emptyDir on disk grows beyond its sizeLimit, and no filesystem tells of that limit:
    it has to be given. Raises OSError.
    """
    known = [Budget(free(live_cache), "free on its volume")]
    if limit_bytes > 0:
        known.append(Budget(limit_bytes - used_bytes(live_cache), "left of its volume's size limit"))
    mount = mount_of(live_cache, mountinfo)
    if mount is not None and mount.kind in IN_MEMORY:
        left = (memory or memory_left)()
        if left is not None:
            known.append(Budget(left - MEMORY_SPARE, "left of the sidecar's memory limit, for it lies in memory"))
        elif not any(option.startswith("size=") for option in mount.options) and limit_bytes <= 0:
            known.append(Budget(0, "that it may take, for it lies in memory without a size limit"))
    least = min(known, key=lambda one: one.bytes)
    return Budget(max(0, least.bytes), least.why)


def fitting(sizes: Mapping[str, int], room: int) -> tuple[str, ...]:
    """Name the families to leave out, the largest first, so that the rest takes no more than `room` bytes."""
    left_out = []
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        if total <= room:
            break
        left_out.append(name)
        total -= sizes[name]
    return tuple(left_out)


def used_bytes(folder: Path) -> int:
    """Add up what files take on disk, as du(1) does; what can't be looked at counts as nothing."""
    total = 0
    seen = set()
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            try:
                status = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            if status.st_nlink == 1 or name == "." or (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def memory_left(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Give the bytes of memory that this container may still take; None where it has no limit, or none that can be read.

    File pages that nobody has used for long are given back by the kernel, so they count as free: what the kubelet
    calls the working set.
    """
    found = [
        left
        for folder, limit, usage, cache in _places(root, own)
        if (left := _left(folder, limit, usage, cache)) is not None
    ]
    return min(found, default=None)


def _places(root: Path, own: Path) -> list[tuple[Path, str, str, str]]:
    """List the cgroups that this process is in, as far as they are mounted here."""
    try:
        lines = own.read_text("ascii", "replace").splitlines()
    except OSError:
        lines = []
    two, one = {root}, {root / "memory"}
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            two.add(root / path.lstrip("/"))
        elif "memory" in controllers.split(","):
            one.add(root / "memory" / path.lstrip("/"))
    return [
        *((folder, "memory.max", "memory.current", "inactive_file") for folder in sorted(two)),
        *((folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file") for folder in sorted(one)),
    ]


def _left(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most, taken = (folder / limit).read_text("ascii"), int((folder / usage).read_text("ascii"))
        rows = dict(
            line.split(" ", 1) for line in (folder / "memory.stat").read_text("ascii").splitlines() if " " in line
        )
        if most.strip() == "max" or int(most) >= _NO_LIMIT:
            return None
        return int(most) - max(0, taken - int(rows.get(cache, "0")))
    except (OSError, ValueError):
        return None
