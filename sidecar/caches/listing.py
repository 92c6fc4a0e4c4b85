"""Every file of one family in a live cache, column by column and in the order of a manifest, to publish from.

Nothing is read but names and status, and nothing is left out here (`snapshot`). What the daemon compares is in `scan`.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator

from sidecar.caches.file_table import CHUNK, Paths
from sidecar.caches.live_file import LATEST_NS


class Listing:
    """Files and links, sorted by path: sizes in bytes, times in ns, inodes, permission bits, targets of links by row.

    A file from before 1970, or after 2262, has no time that could be stored, so `before_1970` only counts those.
    """

    def __init__(self) -> None:
        self.paths = Paths()
        self.sizes, self.mtimes, self.inodes = array("Q"), array("Q"), array("Q")
        self.modes = array("H")
        self.links: dict[int, str] = {}
        self.before_1970 = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def seen(self, row: int) -> tuple[int, int, int]:
        """Give size, time and inode of a file, as they were."""
        return self.sizes[row], self.mtimes[row], self.inodes[row]


def listing_of(root: str) -> Listing:
    """List every file and link below a folder; a missing one is empty.

    Files and folders that vanish meanwhile are passed over: compilers rename all the time. Raises OSError for
    anything else, such as a folder that can't be read.
    """
    found = Listing()
    added = _adder(found)
    pending = [("", _sorted(root))]
    paths: list[str] = []
    while pending:
        prefix, names = pending[-1]
        for name in names:
            path = prefix + name
            if name[-1] == "/":
                pending.append((path, _sorted(f"{root}/{path}")))
                break
            if added(f"{root}/{path}"):
                paths.append(path)
        else:
            pending.pop()
        if len(paths) >= CHUNK or not pending:
            found.paths.extend(paths)
            paths.clear()
    return found


def _sorted(folder: str) -> Iterator[str]:
    """List a folder in the order in which whole paths are sorted: a folder's name counts with the slash after it."""
    try:
        with os.scandir(folder) as entries:
            # Names alone: an entry takes five times as much, and a folder may have hundreds of thousands.
            names = [f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    names.sort()
    return iter(names)


def _adder(found: Listing) -> Callable[[str], bool]:
    """Give a function that adds a file or link by its whole path, and says whether there was one."""
    # It is called for every file of a cache, so what it needs is looked up once.
    sizes, mtimes, inodes, modes = (column.append for column in (found.sizes, found.mtimes, found.inodes, found.modes))
    lstat, kind_of, plain = os.lstat, stat.S_IFMT, stat.S_IFREG

    def added(path: str) -> bool:
        try:
            status = lstat(path)
            mode = status.st_mode
            if kind_of(mode) != plain:
                if not stat.S_ISLNK(mode):
                    return False
                found.links[len(found)] = os.readlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        mtime_ns = status.st_mtime_ns
        if not 0 <= mtime_ns <= LATEST_NS:
            found.before_1970 += 1
            found.links.pop(len(found), None)
            return False
        sizes(status.st_size)
        mtimes(mtime_ns)
        inodes(status.st_ino)
        modes(mode & 0o777)
        return True

    return added
