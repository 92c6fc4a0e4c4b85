"""Lock files that an engine left when it was killed: removed before the next one starts, which might wait for them for ever.

The sidecar does the same where there is no launcher (`caches/live_cache.py`), and a test compares both; what else lies in a
cache is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

#: What the sidecar is laying down or taking away at this moment.
OURS = (".staging", ".trash")


def remove_orphans(live_cache: str) -> int:
    """Remove the compilers' lock files that no process holds, and say how many.

    filelock locks with flock(2), so what a killed process left can be taken. torch's FileBaton (torch/utils/file_baton.py)
    takes the mere existence of a file named `lock` for held; its holder keeps it open, which a lease (fcntl(2)) finds out.
    """
    removed = 0
    for folder, folders, names in os.walk(live_cache):
        if folder == live_cache:
            folders[:] = [name for name in folders if name not in OURS]
            continue
        for name in names:
            if name == "lock" or name.endswith(".lock") or os.path.basename(folder) == "locks":
                removed += _removed(os.path.join(folder, name))
    return removed


def _removed(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_open_elsewhere(descriptor):
            return False
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_open_elsewhere(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        # Other errors: not our file, or a filesystem without leases. Then flock alone has to do.
        return error.errno == errno.EAGAIN
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
