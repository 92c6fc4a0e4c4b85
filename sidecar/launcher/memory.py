"""How many of this container's processes the kernel has ended because main memory was not enough.

Only counters are read; what an end of the engine means is the sidecar's business.
"""

from __future__ import annotations

import contextlib
import os

CGROUPS = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"


def oom_kills(root: str = CGROUPS, own: str = OWN) -> int:
    """Give the kernel's count for the cgroup of this process; 0 where it can't be read.

    Source: kernel documentation, admin-guide/cgroup-v2.rst, `memory.events`; of version 1, `memory.oom_control`.
    """
    for place in places(root, own):
        with contextlib.suppress(OSError), open(place, encoding="ascii", errors="replace") as stream:
            for line in stream:
                name, _, count = line.strip().partition(" ")
                if name == "oom_kill" and count.isdigit():
                    return int(count)
    return 0


def places(root: str, own: str) -> list[str]:
    """List the files that may hold the count, the nearest first: a whole machine's tells of other containers too.

    Where the container sees nothing but its own cgroup, it lies at the root, whatever the path is called outside.
    """
    found = []
    with contextlib.suppress(OSError), open(own, encoding="ascii", errors="replace") as stream:
        for line in stream:
            _, controllers, path = [*line.rstrip("\n").split(":", 2), "", ""][:3]
            if not controllers:
                found.append(os.path.join(root, path.lstrip("/"), "memory.events"))
            elif "memory" in controllers.split(","):
                found.append(os.path.join(root, "memory", path.lstrip("/"), "memory.oom_control"))
    return [*found, os.path.join(root, "memory.events"), os.path.join(root, "memory", "memory.oom_control")]
