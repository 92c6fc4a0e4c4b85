"""Finds what changed in the families of a live cache, at a cost that follows the folders and not the files.

A new or renamed file changes its folder's time, so only such folders are listed; all of them from time to time, because
a file that is written over in its place changes none. Decides nothing about kernels.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches.families import Family
from sidecar.caches.folder_tree import Entry, PackedFolder
from sidecar.caches.scan import count_kernels, entry_of

Files = dict[str, Entry]


@dataclass(slots=True)
class _Folder:
    """One folder as last listed. `restless`: it had changed then, and within one tick of its clock may have again."""

    mtime_ns: int
    files: PackedFolder
    folders: tuple[str, ...]
    restless: bool = True


@dataclass
class TreeWatch:
    """Remembers the folders of each family. Not for several threads at once."""

    live_cache: Path
    families: Sequence[Family]
    _known: dict[str, dict[str, _Folder]] = field(default_factory=dict)

    def forget(self) -> None:
        """Take the next look as the first."""
        self._known = {}

    @property
    def empty(self) -> bool:
        """Say whether no family held a file at the last look."""
        return not any(folder.files for folders in self._known.values() for folder in folders.values())

    def sizes(self) -> dict[str, dict[str, int]]:
        """Count files, bytes and kernels of each family that held any at the last look."""
        found: dict[str, dict[str, int]] = {}
        for family in self.families:
            known = self._known.get(family.name, {})
            held = {prefix: folder.files for prefix, folder in known.items() if folder.files}
            if held:
                found[family.name] = {
                    "files": sum(map(len, held.values())),
                    "bytes": sum(files.bytes() for files in held.values()),
                    "kernels": count_kernels(
                        family, (f"{at}{name}" for at, files in held.items() for name in files.names())
                    ),
                }
        return found

    def look(self, *, thorough: bool) -> tuple[dict[str, Files], dict[str, Files]]:
        """Give the files of all folders that changed, as they were and as they are, by family; the first look gives none.

        `thorough` lists every folder. Raises OSError; then nothing counts as seen.
        """
        first = not self._known
        before: dict[str, Files] = {}
        after: dict[str, Files] = {}
        seen: dict[str, dict[str, _Folder]] = {}
        for family in self.families:
            known = self._known.get(family.name, {})
            root = os.fspath(Path(self.live_cache, family.directory))
            old, new, folders = _look(root, known, thorough=thorough, first=first)
            if old or new:
                before[family.name], after[family.name] = old, new
            seen[family.name] = folders
        self._known = seen
        return before, after


def _look(
    root: str, known: dict[str, _Folder], *, thorough: bool, first: bool
) -> tuple[Files, Files, dict[str, _Folder]]:
    before: Files = {}
    after: Files = {}
    seen: dict[str, _Folder] = {}
    pending = [""]
    while pending:
        prefix = pending.pop()
        folder = known.get(prefix)
        path = f"{root}/{prefix}" if prefix else root
        mtime_ns = _mtime_ns(path, follow=not prefix)
        if mtime_ns is None:
            continue
        if folder is None or thorough or folder.restless or folder.mtime_ns != mtime_ns:
            fresh = _list(path, prefix, mtime_ns)
            if fresh is None:
                continue
            if folder is not None and fresh.files == folder.files and fresh.folders == folder.folders:
                # The one that is known stays: a thorough look would hold every folder twice.
                fresh = _Folder(mtime_ns, folder.files, folder.folders, folder.mtime_ns != mtime_ns)
            elif not first:
                before.update(folder.files.items(prefix) if folder else ())
                after.update(fresh.files.items(prefix))
            folder = fresh
        seen[prefix] = folder
        pending.extend(folder.folders)
    for prefix in known.keys() - seen.keys():
        before.update(known[prefix].files.items(prefix))
    return before, after, seen


def _mtime_ns(path: str, *, follow: bool) -> int | None:
    try:
        status = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else None


def _list(path: str, prefix: str, mtime_ns: int) -> _Folder | None:
    """List one folder; None when it is gone, files that vanish meanwhile are passed over. Raises OSError."""
    files: list[tuple[str, Entry]] = []
    folders: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                    continue
                if (found := entry_of(entry)) is not None:
                    files.append((entry.name, found))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _Folder(mtime_ns, PackedFolder.of(files), tuple(sorted(folders)))
