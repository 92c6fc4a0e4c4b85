"""Small files that survive a crash: durable writes, exclusive creation, bounded JSON reads.

What the files mean is not known here, and no directory tree is walked.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sidecar.errors import FileUnreadable

JSON_LIMIT = 4 * 1024 * 1024
FILE_MODE = 0o664
DIRECTORY_MODE = 0o2775
NO_LINKS_HERE = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
# What mounts of buckets say to the rename of a directory; gcsfuse says EMFILE (rename-dir-limit).
NO_FOLDER_RENAME = NO_LINKS_HERE | {errno.EXDEV, errno.EMFILE, errno.EINVAL}
NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})


# What to write: bytes, or what gives them piece by piece each time it is called.
Content = bytes | Callable[[], Iterable[bytes]]
NOTHING: Mapping[str, Content] = MappingProxyType({})
# What is no path: the URL of a bucket.
BUCKETS = ("s3://", "gs://", "az://")


def temporary_name(path: Path) -> Path:
    """Name a temporary file beside `path` that nobody else uses, in this pod or another."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")


def is_temporary(name: str) -> bool:
    """Say whether a file name is one that `temporary_name` makes."""
    return name.startswith(".") and name.endswith(".tmp")


def sync_directory(path: Path) -> None:
    """Make names in a directory durable, where the filesystem can do that. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        # Names were made in it a moment ago: another client of a network volume made it, and we don't see it yet.
        return
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


def create_exclusively(path: Path, data: Content, mode: int = FILE_MODE) -> None:
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


def create_folder_exclusively(
    path: Path, name: str, data: Content, prepare_in: Path, beside: Mapping[str, Content] = NOTHING
) -> None:
    """Create a directory that holds one file, whole, unless there is one that is not empty. Raises FileExistsError, else OSError.

    Files `beside` that one are written after it; where directories can't be renamed, they come into sight after it, too.

    The finished directory is renamed to its name, which fails where one with anything in it is (rename(2), ENOTEMPTY).
    That holds between the mounts of a network volume, too, where of two links or O_EXCL both may succeed (seen in every
    second race with `weed mount` of SeaweedFS 4.48). Where directories can't be renamed, `create_exclusively` decides.
    `prepare_in` must be on the same filesystem; what a crash leaves there has a temporary name.
    """
    prepared = temporary_name(prepare_in / path.name)
    try:
        os.mkdir(prepared)
        share_with_group(prepared)
        _fill(prepared / name, data, FILE_MODE)
        for other, content in beside.items():
            _fill(prepared / other, content, FILE_MODE)
        sync_directory(prepared)
        if not _renamed_folder(prepared, path, name, data):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            share_with_group(path)
            create_exclusively(path / name, data)
            for other, content in beside.items():
                write_durably(path / other, b"".join(pieces(content)))
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Create a directory and its parents so that the engine's group can write too. Raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        # Not `exist_ok`, which looks again: on a network volume another client's directory may stay unseen for a while.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        share_with_group(folder)


def share_with_group(folder: Path) -> None:
    """Give a directory of ours the mode 2775: the engine may run as another user of the same group."""
    # Some network mounts have no modes; what they allow is decided by their mount options.
    with contextlib.suppress(OSError):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(DIRECTORY_MODE)


def write_json_durably(path: Path, value: Mapping[str, Any], mode: int = FILE_MODE) -> None:
    """Replace a JSON file in one step, readable by people. Raises OSError."""
    write_durably(path, json_bytes(value), mode)


def create_json_exclusively(path: Path, value: Mapping[str, Any], mode: int = FILE_MODE) -> None:
    """Create a JSON file unless it exists. Raises FileExistsError, else OSError."""
    create_exclusively(path, json_bytes(value), mode)


def open_plain(path: Path, limit: int) -> io.BufferedReader:
    """Open a plain file of at most `limit` bytes for reading. Raises FileUnreadable with a sentence, else OSError."""
    # O_NONBLOCK: a FIFO under this name must not hold the reader for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return stream
    stream.close()
    if not stat.S_ISREG(status.st_mode):
        raise FileUnreadable(f"{path} is not a plain file.")
    raise FileUnreadable(f"{path} is larger than the {limit} bytes allowed for such a file.")


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes. Raises FileUnreadable with a sentence, else OSError."""
    with open_plain(path, limit) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise FileUnreadable(f"{path} is larger than the {limit} bytes allowed for such a file.")
    return json_object(data, str(path))


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Read a JSON object that was found somewhere. Raises FileUnreadable with a sentence."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileUnreadable(f"{where} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise FileUnreadable(f"{where} holds {type(value).__name__} where a JSON object is expected.")
    return value


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Write a JSON object so that people can read it, too."""
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _write_temporary(path: Path, data: Content, mode: int) -> Path:
    temporary = temporary_name(path)
    try:
        _fill(temporary, data, mode)
    except OSError:
        _remove(temporary)
        raise
    return temporary


def open_shared(path: Path | str, flags: int, mode: int) -> int:
    """Open a file and, where this creates it, give its group what `mode` says, whatever the umask. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if flags & os.O_CREAT:
        # Fails where the file is another user's, and on network mounts without modes.
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and mode & 0o070 & ~status.st_mode:
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | mode & 0o070)
    return descriptor


def _fill(path: Path, data: Content, mode: int) -> None:
    descriptor = open_shared(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        for piece in pieces(data):
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())


def _link_or_create(temporary: Path, path: Path, data: Content, mode: int) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno == errno.EEXIST and os.stat(temporary).st_nlink == 2:
            # NFS may answer EEXIST to a repeated request whose first copy linked our file (link(2), BUGS).
            return
        if error.errno not in NO_LINKS_HERE:
            raise
        _fill_or_remove(path, data, mode)


def _renamed_folder(prepared: Path, path: Path, name: str, data: Content) -> bool:
    """Rename a finished directory to its name; False where directories can't be renamed."""
    try:
        os.rename(prepared, path)
    except OSError as error:
        if error.errno in TAKEN:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        if error.errno == errno.ENOENT and not prepared.exists() and _holds(path / name, data):
            # A server may get a request twice, and deny the second what the first one did.
            return True
        if error.errno not in NO_FOLDER_RENAME:
            raise
        return False
    return True


def _holds(path: Path, data: Content) -> bool:
    try:
        with open(path, "rb") as stream:
            return all(stream.read(len(piece)) == piece for piece in pieces(data)) and not stream.read(1)
    except OSError:
        return False


def pieces(data: Content) -> Iterable[bytes]:
    return (data,) if isinstance(data, bytes) else data()


def _fill_or_remove(path: Path, data: Content, mode: int) -> None:
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


def in_words(size: int) -> str:
    """Write bytes as people read them: kB below 100 kB, MB from there on (powers of ten)."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
