"""Where a restore puts files before they are committed: confined, verified while they are written, shared by group.

Which files come here is decided in `restore`; nothing here reads the store's layout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from sidecar.caches.families import BY_NAME, directories
from sidecar.caches.live_cache import DIRECTORY_MODE, make_directory
from sidecar.caches.manifest import StoredFile

BLOCK = 4096


class StagingArea:
    """The staged families of one attempt, under one directory that nobody else writes to.

    Operations raise OSError of the live cache's disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[str] = set()

    def open(self) -> None:
        """Start empty, whatever an earlier try under the same name left."""
        shutil.rmtree(self.root, ignore_errors=True)
        make_directory(self.root)

    def write(self, file: StoredFile, pieces: Iterable[memoryview]) -> bool:
        """Write a file with its mode and time; False, and no file, when the bytes are not what the manifest says."""
        path = self._place(file)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        digest, good = hashlib.sha256(), False
        try:
            for piece in pieces:
                digest.update(piece)
                _write_all(descriptor, piece)
            good = digest.hexdigest() == file.sha256
            if good:
                os.fchmod(descriptor, shared_mode(file.mode))
                os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
        finally:
            os.close(descriptor)
            if not good:
                os.unlink(path)
        return good

    def link(self, file: StoredFile) -> None:
        """Write a symbolic link, whose target the manifest's checks have confined."""
        path = self._place(file)
        os.symlink(file.link, path)
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns), follow_symlinks=False)

    def drop_family(self, family: str) -> None:
        """Remove everything of a family."""
        shutil.rmtree(self.root / family, ignore_errors=True)

    def drop(self, family: str, paths: Iterable[str]) -> None:
        """Remove some files of a family, and the folders that are empty then."""
        for path in paths:
            (self.root / family / path).unlink(missing_ok=True)
            _remove_empty(self.root / family, path)

    def finish(self, family: str, live_cache: str) -> None:
        """Add the family's directories that the engine expects to find (such as one for temporary files)."""
        prefix = f"{live_cache.rstrip('/')}/{BY_NAME[family].directory}/"
        for folder in directories(live_cache):
            if folder.startswith(prefix):
                make_directory(self.root / family / folder.removeprefix(prefix))

    def remove(self) -> None:
        """Remove the whole area."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _place(self, file: StoredFile) -> str:
        path = f"{self.root}/{file.family}/{file.path}"
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            for missing in reversed(list(self._missing(folder))):
                os.mkdir(missing)
                os.chmod(missing, DIRECTORY_MODE)
                self._made.add(missing)
        return path

    def _missing(self, folder: str) -> Iterator[str]:
        while folder not in self._made and folder != os.fspath(self.root):
            yield folder
            folder = folder.rpartition("/")[0]


def shared_mode(mode: int) -> int:
    """Give the group what the owner has, and others no way to write; never setuid, setgid or sticky."""
    return (mode & 0o755) | ((mode & 0o700) >> 3)


def bytes_needed(files: Iterable[StoredFile]) -> int:
    """Say how many bytes the files take on disk, rounded up to whole blocks."""
    return sum(-(-file.size // BLOCK) * BLOCK + BLOCK // 8 for file in files)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _remove_empty(root: Path, path: str) -> None:
    folder = (root / path).parent
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
