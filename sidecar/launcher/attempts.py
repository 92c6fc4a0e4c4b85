"""The files of one start of the engine, and the lock which says that its launcher lives.

What the files mean is not known here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from typing import Any

FORMAT = 1
ATTEMPTS_KEPT = 5

ATTEMPT = re.compile(r"\d{1,20}-\d+-[0-9a-f]{8}")

Json = dict[str, Any]


class Attempt:
    """One start of the engine: a directory whose lock is held for as long as this launcher lives."""

    def __init__(self, control: str) -> None:
        """Open a new attempt. It gets its name last, so nobody sees it unlocked. Raises OSError."""
        self.name = f"{time.time_ns()}-{os.getpid()}-{secrets.token_hex(4)}"
        attempts = os.path.join(control, "attempts")
        hidden = os.path.join(attempts, f".{self.name}")
        self.path = os.path.join(attempts, self.name)
        make_shared(attempts)
        make_shared(hidden)
        self._lock = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o664)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(hidden, self.path)

    def read(self, name: str) -> Json | None:
        """Read a JSON file of this attempt; None when it isn't there or isn't one."""
        return read_json(os.path.join(self.path, name))

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""
        return os.path.exists(os.path.join(self.path, name))

    def write(self, name: str, value: Json) -> None:
        """Write a JSON file in one step. Raises OSError."""
        os.replace(self._finished(name, value), os.path.join(self.path, name))

    def create(self, name: str, value: Json) -> bool:
        """Write a JSON file unless it exists; tell whether it is ours. Raises OSError."""
        finished = self._finished(name, value)
        try:
            os.link(finished, os.path.join(self.path, name))
        except FileExistsError:
            return False
        finally:
            os.unlink(finished)
        return True

    def close(self) -> None:
        """Let go of the attempt: from now on it is history."""
        os.close(self._lock)

    def _finished(self, name: str, value: Json) -> str:
        path = os.path.join(self.path, f".{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"format": FORMAT, **value}, stream, indent=1, sort_keys=True)
        return path


def make_shared(path: str) -> None:
    """Make a directory, and its parents, that the sidecar's user can write through the common group."""
    if not os.path.isdir(path):
        make_shared(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        # For whoever is not in the group, chmod(2) drops the bit that hands the group on.
        if os.stat(path).st_gid in (os.getegid(), *os.getgroups()):
            os.chmod(path, 0o2775)


def read_json(path: str) -> Json | None:
    """Read a JSON object; None when it isn't there or isn't one."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, encoding="utf-8") as stream:
        found = json.load(stream)
        return found if isinstance(found, dict) else None
    return None


def is_held(lock: str) -> bool | None:
    """Tell whether somebody holds this lock; None when there is no such file."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def dead_attempts(control: str) -> list[str]:
    """Name the attempts whose launcher is gone, oldest first; a dot marks one that was never opened."""
    attempts = os.path.join(control, "attempts")
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(attempts) if ATTEMPT.fullmatch(name.lstrip("."))]
        dead = [name for name in names if not is_held(os.path.join(attempts, name, "lock"))]
        return sorted(dead, key=lambda name: name.lstrip("."))
    return []


def prune(control: str) -> None:
    """Remove all but the last attempts that are history."""
    for name in dead_attempts(control)[:-ATTEMPTS_KEPT]:
        shutil.rmtree(os.path.join(control, "attempts", name), ignore_errors=True)
