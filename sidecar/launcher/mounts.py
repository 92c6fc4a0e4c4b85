"""Which filesystem a place lies on, as far as it is one over a network.

The sidecar has the same rules (caches/live_cache.py), and a test compares both; what it means is said there.
"""

from __future__ import annotations

import contextlib
import os
import re

MOUNTINFO = "/proc/self/mountinfo"
#: As mountinfo names them (Linux 6.x, and the FUSE names of common object-store mounts).
NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb3 smbfs ceph lustre gpfs glusterfs 9p beegfs afs orangefs pvfs2 ocfs2 gfs2 panfs wekafs".split()
)
#: Overlays of rootless container runtimes, which are local disks.
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs"})


def network_filesystem(path: str, mountinfo: str = MOUNTINFO) -> str:
    """Name the network filesystem that a place lies on; empty when it is a local disk or can't be known."""
    best = kind = ""
    with contextlib.suppress(OSError), open(mountinfo, encoding="utf-8", errors="surrogateescape") as stream:
        real = os.path.realpath(path)
        for line in stream:
            left, _, right = line.rstrip("\n").partition(" - ")
            fields = left.split(" ")
            if len(fields) < 5 or not right:
                continue
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), fields[4])
            # Later lines lie on top of earlier ones with the same mount point.
            if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, right.partition(" ")[0]
    network = kind in NETWORK_TYPES or kind == "fuse" or kind.startswith("fuse.")
    return kind if network and kind not in LOCAL_FUSE else ""
