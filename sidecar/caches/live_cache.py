"""The live cache as a place: its lock, its filesystem, and the marker that says whose files lie in it.

What the files are is not known here (`families`), and none of them is moved (`commit`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sidecar.caches.live_file import STAGING_NAME as STAGING_NAME
from sidecar.caches.live_file import LiveFile as LiveFile
from sidecar.caches.live_file import disk_trouble as disk_trouble
from sidecar.errors import FileUnreadable, LiveCacheUnusable
from sidecar.files import DIRECTORY_MODE as DIRECTORY_MODE
from sidecar.files import make_directory as make_directory
from sidecar.files import open_shared, read_json, write_json_durably

LOCK_NAME = ".warmup.lock"
MARKER_NAME = ".warmup-live.json"
TRASH_NAME = ".trash"
MOUNTINFO = Path("/proc/self/mountinfo")

# Filesystems over a network, as mountinfo names them (Linux 6.x, and the FUSE names of common object-store mounts).
# FUSE overlays of rootless container runtimes are local disks.
NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb3 smbfs ceph lustre gpfs glusterfs 9p beegfs afs orangefs pvfs2 ocfs2 gfs2 panfs wekafs".split()
)
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs"})


class LiveCacheLock:
    """Hold a live cache for one daemon, until closed or until the process ends."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    def close(self) -> None:
        """Let another daemon have the live cache. The lock file stays: removing it would let two hold it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def lock_live_cache(live_cache: Path | str) -> LiveCacheLock:
    """Take the live cache for this daemon, creating it if need be. Raises LiveCacheUnusable with a sentence."""
    path = Path(live_cache, LOCK_NAME)
    try:
        make_directory(path.parent)
        descriptor = open_shared(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o660)
    except OSError as error:
        raise LiveCacheUnusable(
            f"The live cache {live_cache} can't be written ({error.strerror}); mount a writable volume there, "
            "or set WARMUP_LIVE_CACHE to a writable directory."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LiveCacheUnusable(
            f"The live cache {live_cache} is in use by another daemon; give each pod or engine a live cache of its "
            "own (WARMUP_LIVE_CACHE), or stop the other daemon."
        ) from error
    return LiveCacheLock(descriptor, path)


@dataclass(frozen=True)
class Locks:
    """Lock files found in a live cache, by absolute path: those that nobody held and that are gone, and those held."""

    removed: tuple[str, ...]
    held: tuple[str, ...]


def remove_orphan_locks(live_cache: Path | str) -> Locks:
    """Remove the compilers' lock files that no process holds. Only before the engine starts. Never raises OSError.

    filelock locks with flock(2), so what is left by a process that was killed can be taken. torch's FileBaton
    (torch/utils/file_baton.py) takes the mere existence of a file named `lock` for held, and an orphan makes its next
    user wait for ever; its holder keeps it open, which a lease (fcntl(2), F_SETLEASE) finds out.
    """
    removed, held = list[str](), list[str]()
    for folder, folders, names in os.walk(live_cache):
        if folder == os.fspath(live_cache):
            folders[:] = [name for name in folders if name not in (STAGING_NAME, TRASH_NAME)]
            continue
        for name in names:
            if name == "lock" or name.endswith(".lock") or os.path.basename(folder) == "locks":
                path = os.path.join(folder, name)
                (removed if _removed_as_orphan(path) else held).append(path)
    return Locks(tuple(removed), tuple(held))


def _removed_as_orphan(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_open_elsewhere(descriptor):
            os.unlink(path)
            return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _is_open_elsewhere(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        # Other errors: not our file, or a filesystem without leases. Then flock alone has to do.
        return error.errno == errno.EAGAIN
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def network_filesystem(path: Path | str, mountinfo: Path = MOUNTINFO) -> str | None:
    """Name the network filesystem that `path` lies on, None when it is a local disk or can't be known."""
    kind = filesystem_type(path, mountinfo)
    if kind is None or kind in LOCAL_FUSE:
        return None
    return kind if kind in NETWORK_TYPES or kind == "fuse" or kind.startswith("fuse.") else None


def filesystem_type(path: Path | str, mountinfo: Path = MOUNTINFO) -> str | None:
    """Name the type of the filesystem at `path` as mountinfo does (proc(5)); None when it can't be known."""
    mount = mount_of(path, mountinfo)
    return mount.kind if mount else None


@dataclass(frozen=True)
class Mount:
    """A mounted filesystem as mountinfo tells of it: its type, and the options that it was made with."""

    kind: str
    options: tuple[str, ...]


def mount_of(path: Path | str, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """Find the filesystem at `path` (proc(5), mountinfo); None when it can't be known."""
    try:
        lines = mountinfo.read_text("utf-8", "surrogateescape").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return None
    best, found = "", None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = _unescaped(fields[4])
        # Later lines lie on top of earlier ones with the same mount point.
        if _is_within(real, point) and len(point) >= len(best):
            kind, _, rest = right.partition(" ")
            best, found = point, Mount(kind, tuple(rest.rpartition(" ")[2].split(",")))
    return found


def _unescaped(field_text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), field_text)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, kw_only=True)
class LiveMarker:
    """Whose files lie in the live cache: the keys they belong to and the generations they came from.

    `host_boot` is the kernel's boot ID: files written before a reboot may have been cut by it.
    """

    exact_key: str
    toolchain_key: str
    attempt: str
    host_boot: str = ""
    generations: Mapping[str, str] = field(default_factory=dict)


def write_marker(live_cache: Path | str, marker: LiveMarker) -> None:
    """Record whose files lie in the live cache: after the commit, when the engine starts. Raises OSError."""
    value = {
        "format": 1,
        "exact_key": marker.exact_key,
        "toolchain_key": marker.toolchain_key,
        "attempt": marker.attempt,
        "host_boot": marker.host_boot,
        "generations": dict(marker.generations),
    }
    write_json_durably(Path(live_cache, MARKER_NAME), value)


def read_marker(live_cache: Path | str) -> LiveMarker | None:
    """Read whose files lie in the live cache; None when nobody said so in a form that can be believed."""
    try:
        value = read_json(Path(live_cache, MARKER_NAME))
    except (OSError, FileUnreadable):
        return None
    words = {name: value.get(name) for name in ("exact_key", "toolchain_key", "attempt", "host_boot")}
    generations = value.get("generations")
    if value.get("format") != 1 or not all(isinstance(word, str) for word in words.values()):
        return None
    if not isinstance(generations, dict) or not all(isinstance(name, str) for name in generations.values()):
        return None
    known: dict[str, Any] = {**words, "generations": generations}
    return LiveMarker(**known)


def remove_marker(live_cache: Path | str) -> None:
    """Forget whose files lie in the live cache, before anything in it is replaced. Raises OSError."""
    Path(live_cache, MARKER_NAME).unlink(missing_ok=True)
