"""Finds what changed in the families of a live cache, at a cost that follows the folders and not the files.

A new or renamed file changes its folder's time, so only such folders are listed; all of them from time to time, because
a file that is written over in its place changes none. Decides nothing about kernels.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches.families import Family
from sidecar.caches.folder_blocks import Block, FolderBlocks, Row
from sidecar.caches.packed_folder import Entry
from sidecar.caches.scan import count_kernels, listed

Files = dict[str, Entry]
#: The files of all folders that changed, by family: as they were, and as they are.
Look = tuple[dict[str, Files], dict[str, Files]]
NOTHING: Look = ({}, {})


@dataclass
class TreeWatch:
    """Remembers the folders of each family. Not for several threads at once."""

    live_cache: Path
    families: Sequence[Family]
    _known: dict[str, FolderBlocks] = field(default_factory=dict)

    def forget(self) -> None:
        """Take the next look as the first."""
        self._known = {}

    @property
    def empty(self) -> bool:
        """Say whether no family held a file at the last look."""
        return not any(folders.files for folders in self._known.values())

    def sizes(self) -> dict[str, dict[str, int]]:
        """Count files, bytes and kernels of each family that held any at the last look."""
        found: dict[str, dict[str, int]] = {}
        for family in self.families:
            known = self._known.get(family.name)
            if known and known.files:
                found[family.name] = {
                    "files": known.files,
                    "bytes": sum(row.folder.bytes() for row in known),
                    "kernels": count_kernels(
                        family, (f"{row.prefix}{name}" for row in known for name in row.folder.names())
                    ),
                }
        return found

    def look(self, *, thorough: bool) -> Look:
        """Give the files of all folders that changed, as they were and as they are, by family; the first look gives none.

        `thorough` lists every folder. Raises OSError; then nothing counts as seen.
        """
        first = not self._known
        before: dict[str, Files] = {}
        after: dict[str, Files] = {}
        seen: dict[str, FolderBlocks] = {}
        for family in self.families:
            known = self._known.get(family.name) or FolderBlocks()
            root = os.fspath(Path(self.live_cache, family.directory))
            looking = _Look(root, known, thorough=thorough, first=first)
            seen[family.name] = looking.folders()
            if looking.before or looking.after:
                before[family.name], after[family.name] = looking.before, looking.after
        self._known = seen
        return before, after


def joined(earlier: Look, later: Look) -> Look:
    """Make one look of two that followed each other."""
    before, after = dict[str, Files](), dict[str, Files]()
    for family in earlier[0].keys() | later[0].keys():
        was, then = (part.get(family, {}) for part in earlier)
        known, now = (part.get(family, {}) for part in later)
        before[family] = {**{path: entry for path, entry in known.items() if path not in then}, **was}
        after[family] = {**{path: entry for path, entry in then.items() if path not in known}, **now}
    return before, after


class _Look:
    """One look at the folders below a root, those that are known and those that came since, in the order of their paths.

    The note of a folder: its time when it was listed, how many folders it holds, and whether it is `restless`: it had
    changed then, and within one tick of its clock may have again.
    """

    def __init__(self, root: str, known: FolderBlocks, *, thorough: bool, first: bool) -> None:
        self.before: Files = {}
        self.after: Files = {}
        self._root = root
        self._known = known
        self._thorough = thorough
        self._first = first
        # Folders that nobody knew, the first one last: those of a folder come right after it.
        self._new = [] if known.get("") else [""]
        self._gone: str | None = None

    def folders(self) -> FolderBlocks:
        """Look, and give the folders that are there."""
        seen = FolderBlocks()
        for block in self._known.blocks():
            if self._is_quiet(block):
                seen.append_block(block)
                continue
            same, rows = True, list[Row]()
            for row in block.rows():
                for one in (*self._came(row.prefix), self._again(row)):
                    same = same and one is row
                    rows.extend((one,) if one else ())
            if same:
                seen.append_block(block)
            else:
                for row in rows:
                    seen.append(row)
        for row in self._came(None):
            seen.append(row)
        return seen

    def _is_quiet(self, block: Block) -> bool:
        """Say whether no folder of a block changed or came, which nearly always is so, without a look at its files."""
        if self._thorough or self._is_gone(block.first):
            return False
        notes = block.notes()
        if self._new and self._new[-1] < notes[-1][0]:
            return False
        return all(not restless and self._mtime_ns(prefix) == listed_ns for prefix, (listed_ns, _, restless) in notes)

    def _came(self, until: str | None) -> Iterator[Row]:
        """Go through the folders that nobody knew and that come before another one."""
        while self._new and (until is None or self._new[-1] < until):
            prefix = self._new.pop()
            mtime_ns = self._mtime_ns(prefix)
            row = None if mtime_ns is None else self._listed(prefix, mtime_ns, None)
            if row is not None:
                yield row

    def _again(self, known: Row) -> Row | None:
        """Look at a folder that is known: the same row when nothing changed, None when it is gone."""
        prefix = known.prefix
        gone = self._is_gone(prefix)
        mtime_ns = None if gone else self._mtime_ns(prefix)
        listed_ns, _, restless = known.note
        row: Row | None = known
        if mtime_ns is None:
            row = None
        elif self._thorough or restless or listed_ns != mtime_ns:
            row = self._listed(prefix, mtime_ns, known)
        if row is None:
            # Of a folder with all below it the first tells: through a link in its place, its folders seem to be there.
            self._gone = self._gone if gone else prefix
            self.before.update(known.folder.items(prefix))
        return row

    def _is_gone(self, prefix: str) -> bool:
        return self._gone is not None and prefix.startswith(self._gone)

    def _listed(self, prefix: str, mtime_ns: int, known: Row | None) -> Row | None:
        found = listed(f"{self._root}/{prefix}" if prefix else self._root)
        if found is None:
            return None
        folder, names = found
        new = [prefix + name for name in reversed(names) if self._known.get(prefix + name) is None]
        self._new += new
        if known and folder == known.folder and not new and known.note[1] == len(names):
            note = (mtime_ns, len(names), int(known.note[0] != mtime_ns))
            return known if note == known.note else known._replace(note=note)
        if not self._first:
            self.before.update(known.folder.items(prefix) if known else ())
            self.after.update(folder.items(prefix))
        return Row(prefix, folder, (mtime_ns, len(names), 1))

    def _mtime_ns(self, prefix: str) -> int | None:
        try:
            status = os.stat(f"{self._root}/{prefix}"[: -1 if prefix else None], follow_symlinks=not prefix)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else None
