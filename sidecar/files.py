"""Small files that survive a crash: durable writes, exclusive creation, bounded JSON reads.

What the files mean is not known here, and no directory tree is walked.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.errors import FileUnreadable

JSON_LIMIT = 4 * 1024 * 1024
FILE_MODE = 0o664
NO_LINKS_HERE = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})


def temporary_name(path: Path) -> Path:
    """Name a temporary file beside `path` that nobody else uses, in this pod or another."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}.tmp")


def is_temporary(name: str) -> bool:
    """Say whether a file name is one that `temporary_name` makes."""
    return name.startswith(".") and name.endswith(".tmp")


def sync_directory(path: Path) -> None:
    """Make names in a directory durable, where the filesystem can do that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Replace a file in one step: temporary name, fsync, rename, fsync of the directory. Raises OSError."""
    temporary = _write_temporary(path, data, mode)
    try:
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        raise
    sync_directory(path.parent)


def create_exclusively(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Create a file with its whole content, unless it exists. Raises FileExistsError, else OSError.

    The finished temporary file is linked to its name. Where links are not supported, the name is created with
    O_EXCL and then filled: a reader may see it half-written, and must take that as damaged.
    """
    temporary = _write_temporary(path, data, mode)
    try:
        _link_or_create(temporary, path, data, mode)
    finally:
        _remove(temporary)
    sync_directory(path.parent)


def write_json_durably(path: Path, value: Mapping[str, Any], mode: int = FILE_MODE) -> None:
    """Replace a JSON file in one step, readable by people. Raises OSError."""
    write_durably(path, _json_bytes(value), mode)


def create_json_exclusively(path: Path, value: Mapping[str, Any], mode: int = FILE_MODE) -> None:
    """Create a JSON file unless it exists. Raises FileExistsError, else OSError."""
    create_exclusively(path, _json_bytes(value), mode)


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes. Raises FileUnreadable with a sentence, else OSError."""
    # O_NONBLOCK: a FIFO under this name must not hold the reader for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FileUnreadable(f"{path} is not a plain file.")
        data = stream.read(limit + 1) if status.st_size <= limit else b""
    if status.st_size > limit or len(data) > limit:
        raise FileUnreadable(f"{path} is larger than the {limit} bytes allowed for such a file.")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileUnreadable(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise FileUnreadable(f"{path} holds {type(value).__name__} where a JSON object is expected.")
    return value


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _write_temporary(path: Path, data: bytes, mode: int) -> Path:
    temporary = temporary_name(path)
    try:
        _fill(temporary, data, mode)
    except OSError:
        _remove(temporary)
        raise
    return temporary


def _fill(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _link_or_create(temporary: Path, path: Path, data: bytes, mode: int) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno == errno.EEXIST and os.stat(temporary).st_nlink == 2:
            # NFS may answer EEXIST to a repeated request whose first copy linked our file (link(2), BUGS).
            return
        if error.errno not in NO_LINKS_HERE:
            raise
        _fill_or_remove(path, data, mode)


def _fill_or_remove(path: Path, data: bytes, mode: int) -> None:
    try:
        _fill(path, data, mode)
    except FileExistsError:
        raise
    except OSError:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        # A temporary file that stays is swept later; the caller's own error is the one that matters.
        return
