"""What lies in a live cache, and what is new, changed or gone since an earlier look.

Nothing is read but names and status; whether a file is whole is decided in `validity`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.families import Family, is_kernel, is_left_out, stored_families
from sidecar.caches.folder_tree import FolderTree
from sidecar.caches.live_file import LATEST_NS
from sidecar.caches.packed_folder import Entry, PackedFolder

Tree = Mapping[str, Entry]


@dataclass(frozen=True)
class Changes:
    """Files of one family that appeared, changed or went between two scans; kernels are among the files."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    new_kernels: tuple[str, ...] = ()
    changed_kernels: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """Count the kernels compiled between the scans: new ones and rebuilt ones."""
        return len(self.new_kernels) + len(self.changed_kernels)

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


def scan_tree(root: Path | str) -> FolderTree:
    """List every file and link below `root` by relative path; a missing root is an empty tree.

    Files and folders that vanish meanwhile are passed over: compilers rename all the time. Raises OSError for
    anything else, such as a folder that can't be read.
    """
    return FolderTree(_folders(root))


def changes_since(family: Family, before: FolderTree, root: Path | str) -> Changes:
    """Say what changed in a family's directory since an earlier scan, without keeping a second one. Raises OSError."""
    old: dict[str, Entry] = {}
    new: dict[str, Entry] = {}
    held = iter(before.folders)
    known = next(held, None)
    # Both are in the order of their paths.
    for prefix, folder in _folders(root):
        while known and known.prefix < prefix:
            old.update(known.folder.items(known.prefix))
            known = next(held, None)
        if known and known.prefix == prefix:
            if known.folder != folder:
                old.update(known.folder.items(prefix))
                new.update(folder.items(prefix))
            known = next(held, None)
        else:
            new.update(folder.items(prefix))
    while known:
        old.update(known.folder.items(known.prefix))
        known = next(held, None)
    return _changes(family, old, new)


def _folders(root: Path | str) -> Iterator[tuple[str, PackedFolder]]:
    """Go through the folders in the order of their paths, each of which has a slash at its end, but for the root's."""
    pending = [("", iter([""]))]
    while pending:
        above, names = pending[-1]
        for name in names:
            prefix = above + name
            found = listed(f"{os.fspath(root)}/{prefix}")
            if found is not None:
                folder, inner = found
                yield prefix, folder
                pending.append((prefix, iter(inner)))
                break
        else:
            pending.pop()


def listed(path: str) -> tuple[PackedFolder, list[str]] | None:
    """List one folder: its files, and the names of its folders in order, each with a slash at its end.

    None when it is gone; files that vanish meanwhile are passed over. Raises OSError for anything else.
    """
    files: list[tuple[str, Entry]] = []
    folders: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{entry.name}/")
                elif (seen := entry_of(entry)) is not None:
                    files.append((entry.name, seen))
    except (FileNotFoundError, NotADirectoryError):
        return None
    folders.sort()
    return PackedFolder.of(files), folders


def entry_of(entry: os.DirEntry[str]) -> Entry | None:
    """Look at one file or link; None when it is gone, or something else."""
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry.path)
        elif stat.S_ISREG(status.st_mode):
            target = ""
        else:
            return None
    except FileNotFoundError:
        return None
    # Some filesystems keep times beyond what 64 bits hold in ns (the year 2262); for a comparison the end of it will do.
    mtime_ns = max(-LATEST_NS, min(status.st_mtime_ns, LATEST_NS))
    return Entry(status.st_size, mtime_ns, status.st_ino, status.st_mode, target)


def scan_live_cache(live_cache: Path | str, families: Iterable[Family] | None = None) -> dict[str, FolderTree]:
    """Scan each family's directory of a live cache, every family that may travel by default. Raises OSError."""
    chosen = stored_families() if families is None else families
    return {family.name: scan_tree(Path(live_cache, family.directory)) for family in chosen}


def compare(before: Mapping[str, Tree], after: Mapping[str, Tree]) -> dict[str, Changes]:
    """Say for each family what changed between two scans; families without a change are left out.

    Locks and temporary names are no evidence of anything and don't count.
    """
    found: dict[str, Changes] = {}
    for family in stored_families():
        changes = _changes(family, before.get(family.name, {}), after.get(family.name, {}))
        if changes:
            found[family.name] = changes
    return found


def count_kernels(family: Family, tree: Iterable[str]) -> int:
    """Count the compiled kernels among the paths of one family."""
    return sum(1 for path in tree if is_kernel(family, path))


def has_kernels_since(live_cache: Path | str, families: Iterable[Family], since_ns: int) -> bool:
    """Say whether a kernel of any family was written since; ends at the first, restored ones are older. Raises OSError."""
    return any(
        entry.mtime_ns >= since_ns and is_kernel(family, path)
        for family in families
        for prefix, folder in _folders(Path(live_cache, family.directory))
        for path, entry in folder.items(prefix)
    )


def _changes(family: Family, before: Tree, after: Tree) -> Changes:
    # Nearly always nothing differs between two looks, and comparing whole folders finds that out far faster than a loop.
    if before == after:
        return Changes()
    if isinstance(before, FolderTree) and isinstance(after, FolderTree):
        return _changes(family, before.unlike(after), after.unlike(before))
    new = _travelling(family, after.keys() - before.keys())
    changed = _travelling(
        family, (path for path in after.keys() & before.keys() if _differs(before[path], after[path]))
    )
    gone = _travelling(family, before.keys() - after.keys())
    return Changes(
        new=new,
        changed=changed,
        gone=gone,
        new_kernels=tuple(path for path in new if is_kernel(family, path)),
        changed_kernels=tuple(path for path in changed if is_kernel(family, path)),
    )


def _travelling(family: Family, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(path for path in paths if not is_left_out(family, path)))


def _differs(before: Entry, after: Entry) -> bool:
    return before[:3] != after[:3] or before.link != after.link
