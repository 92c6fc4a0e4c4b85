"""Which child processes a test has left: servers that stand for the whole session are not among them.

Nothing is started or ended here.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

#: Process IDs of servers that several test modules share.
STANDING: set[int] = set()


def children() -> list[psutil.Process]:
    """List this process's children and theirs, zombies included, without standing servers and what those started."""
    standing = set(STANDING)
    for pid in STANDING:
        with suppress(psutil.NoSuchProcess):
            standing |= {each.pid for each in psutil.Process(pid).children(recursive=True)}
    return [each for each in psutil.Process().children(recursive=True) if each.pid not in standing]
