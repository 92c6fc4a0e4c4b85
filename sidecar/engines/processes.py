"""The engine as the kernel shows it: memory, CPU time and open files of its processes together.

Which process is the engine's first is told by the launcher; none is ever guessed by its name or its port.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from sidecar.engines.protocol import Plain

#: The launcher's file; its process starts the engine and stays its parent.
LAUNCHER = "launcher.py"


@dataclass(frozen=True, slots=True)
class Usage(Plain):
    """What the engine's processes use together. None: the kernel doesn't show it to this user.

    `resident_bytes` counts memory that processes share once for each. `cpu_seconds` includes processes that have ended.
    """

    processes: int
    resident_bytes: int | None
    cpu_seconds: float | None
    open_files: int | None


def find(pid: int) -> psutil.Process | None:
    """Give the engine's first process; None when it can't be seen from here.

    The launcher reports a number of its own PID namespace. Without a shared one (shareProcessNamespace) it names nobody
    here, or somebody else: only a child of a launcher is believed.
    """
    try:
        process = psutil.Process(pid)
        parent = process.parent()
        words = parent.cmdline() if parent is not None else []
    except (psutil.Error, OSError, ValueError):
        return None
    return process if any(word.rpartition("/")[2] == LAUNCHER for word in words) else None


def usage(first: psutil.Process) -> Usage | None:
    """Add up a process and all that it started; None when it has ended."""
    try:
        if not first.is_running() or first.status() == psutil.STATUS_ZOMBIE:
            return None
        tree = [first, *first.children(recursive=True)]
    except (psutil.Error, OSError):
        return None
    resident, cpu, files, count = 0, 0.0, 0, 0
    hidden = set[str]()
    for process in tree:
        try:
            with process.oneshot():
                times = process.cpu_times()
                cpu += times.user + times.system + times.children_user + times.children_system
                resident += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            hidden |= {"resident", "cpu"}
        count += 1
        try:
            files += process.num_fds()
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            hidden.add("files")
    return Usage(
        count,
        None if "resident" in hidden else resident,
        None if "cpu" in hidden else round(cpu, 2),
        None if "files" in hidden else files,
    )
