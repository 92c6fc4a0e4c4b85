"""Where a restore puts files before they are committed: confined, verified while they are written, shared by group.

Which files come here is decided in `restore`; nothing here reads the store's layout.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sidecar.caches.families import BY_NAME, directories
from sidecar.caches.file_table import StoredFile
from sidecar.caches.live_cache import DIRECTORY_MODE, make_directory
from sidecar.caches.selection import Selection

BLOCK = 4096
# Folders that are remembered as made: what all of them take would grow with the cache.
FOLDERS = 10_000
# A name that no family has.
PROBE = ".probe"
WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StagingArea:
    """The staged families of one attempt, under one directory that nobody else writes to.

    Operations raise OSError of the live cache's disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[str] = {""}
        self._at = -1

    def open(self) -> None:
        """Start empty, whatever an earlier try under the same name left. Files are made until `close`."""
        shutil.rmtree(self.root, ignore_errors=True)
        make_directory(self.root)
        self._at = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # With this, a file has its mode from the start and needs no second call.
        self._umask = os.umask(0)
        self._inherits = self._is_inherited()

    def close(self) -> None:
        """Make no more files; what is staged stays."""
        if self._at >= 0:
            os.umask(self._umask)
            os.close(self._at)
            self._at = -1

    def write(self, file: StoredFile, pieces: Iterable[memoryview]) -> bool:
        """Write a file with its mode and time; False, and no file, when the bytes are not what the manifest says."""
        path = self._place(file)
        descriptor = os.open(path, WRITING, shared_mode(file.mode), dir_fd=self._at)
        digest, good = hashlib.sha256(), False
        try:
            for piece in pieces:
                digest.update(piece)
                while piece:
                    piece = piece[os.write(descriptor, piece) :]
            good = digest.hexdigest() == file.sha256
            if good:
                os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
        finally:
            os.close(descriptor)
            if not good:
                os.unlink(path, dir_fd=self._at)
        return good

    def write_whole(self, file: StoredFile, data: memoryview) -> bool:
        """Do the same with a file whose bytes are all here: a wrong one is not even begun."""
        if hashlib.sha256(data).hexdigest() != file.sha256:
            return False
        descriptor = os.open(self._place(file), WRITING, shared_mode(file.mode), dir_fd=self._at)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
        finally:
            os.close(descriptor)
        return True

    def link(self, file: StoredFile) -> None:
        """Write a symbolic link, whose target the manifest's checks have confined."""
        path = self._place(file)
        os.symlink(file.link, path, dir_fd=self._at)
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns), dir_fd=self._at, follow_symlinks=False)

    def drop_family(self, family: str) -> None:
        """Remove everything of a family."""
        shutil.rmtree(self.root / family, ignore_errors=True)

    def drop(self, family: str, paths: Iterable[str]) -> None:
        """Remove some files of a family, and the folders that are empty then."""
        for path in paths:
            (self.root / family / path).unlink(missing_ok=True)
            _remove_empty(self.root / family, path)

    def drop_files(self, files: Iterable[StoredFile]) -> None:
        """Remove files that may be there in part."""
        for file in files:
            self.drop(file.family, [file.path])

    def finish(self, family: str, live_cache: str) -> None:
        """Add the family's directories that the engine expects to find (such as one for temporary files)."""
        prefix = f"{live_cache.rstrip('/')}/{BY_NAME[family].directory}/"
        for folder in directories(live_cache):
            if folder.startswith(prefix):
                make_directory(self.root / family / folder.removeprefix(prefix))

    def remove(self) -> None:
        """Remove the whole area."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _is_inherited(self) -> bool:
        """Try whether a directory that is made here has its mode at once, as where the group's bit of its parent is passed on."""
        os.mkdir(PROBE, DIRECTORY_MODE & 0o777, dir_fd=self._at)
        mode = os.stat(PROBE, dir_fd=self._at).st_mode
        os.rmdir(PROBE, dir_fd=self._at)
        return stat.S_IMODE(mode) == DIRECTORY_MODE

    def _place(self, file: StoredFile) -> str:
        path = f"{file.family}/{file.path}"
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            if len(self._made) > FOLDERS:
                # Files come folder by folder: one that was forgotten is looked at once more, and no harm is done.
                self._made = {""}
            for missing in reversed(list(self._missing(folder))):
                self._make(missing)
        return path

    def _make(self, folder: str) -> None:
        # Another process of this restore may have made it just now.
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, DIRECTORY_MODE & 0o777, dir_fd=self._at)
            if not self._inherits:
                os.chmod(folder, DIRECTORY_MODE, dir_fd=self._at)
        self._made.add(folder)

    def _missing(self, folder: str) -> Iterator[str]:
        while folder not in self._made:
            yield folder
            folder = folder.rpartition("/")[0]


def shared_mode(mode: int) -> int:
    """Give the group what the owner has, and others no way to write; never setuid, setgid or sticky."""
    return (mode & 0o755) | ((mode & 0o700) >> 3)


def bytes_needed(selections: Iterable[Selection]) -> int:
    """Say how many bytes the files take on disk, rounded up to whole blocks."""
    return sum(-(-files.table.sizes[row] // BLOCK) * BLOCK + BLOCK // 8 for files in selections for row in files.rows)


def _remove_empty(root: Path, path: str) -> None:
    folder = (root / path).parent
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
