"""Bring the files of a generation from the store into a staging area, in several processes where that helps.

Which files are wanted is decided in `restore`, as is what becomes of those that could not be had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from sidecar.caches.forks import Lost, spread
from sidecar.caches.manifest import StoredFile
from sidecar.caches.packs import PackReader
from sidecar.caches.staging import StagingArea
from sidecar.caches.store import DirectoryStore
from sidecar.errors import StoreDamaged, StoreUnavailable

# Below this many bytes a second process costs more than it brings (a fork takes some 5 ms).
WORTH_BYTES = 8 << 20
# A process tells how far it is after this many files or bytes.
NOTE_FILES = 50
NOTE_BYTES = 8 << 20
# Making a file takes about as long as unpacking, digesting and writing this many bytes.
FILE_COST = 16 << 10

# The reason of files whose process died: of a bug, or because memory ran out.
LOST = "lost"

Done = Callable[[StoredFile], None]
Bad = dict[int, str]


class Unpacking:
    """Stage the files of some packs, each checked against its digest.

    `on_file` is called for each staged file when the work is done in this process, as with `jobs` 1; `on_note` for
    some files and bytes that were staged since the last call.
    """

    def __init__(
        self,
        store: DirectoryStore,
        area: StagingArea,
        jobs: int,
        on_file: Done,
        on_note: Callable[[int, int], None],
    ) -> None:
        self._store = store
        self._area = area
        self._jobs = jobs
        self._on_file = on_file
        self._on_note = on_note

    def run(self, files: Iterable[StoredFile]) -> dict[StoredFile, str]:
        """Stage files; returns those that could not be had, with reasons. Raises OSError of the live cache's disk."""
        by_pack: dict[str, list[StoredFile]] = {}
        for file in files:
            by_pack.setdefault(file.pack, []).append(file)
        # The longest work first, so that all processes end at about the same time.
        packs = sorted(by_pack.items(), key=lambda pack: -sum(file.size + FILE_COST for file in pack[1]))
        for _, members in packs:
            members.sort(key=lambda file: file.offset)
        total = sum(file.size for members in by_pack.values() for file in members)
        jobs = min(self._jobs, len(packs)) if total >= WORTH_BYTES else 1
        bad: dict[StoredFile, str] = {}
        for number, found in self._results(packs, jobs):
            members = packs[number][1]
            bad.update({members[int(position)]: reason for position, reason in found.items()})
        return bad

    def _results(self, packs: list[tuple[str, list[StoredFile]]], jobs: int) -> Iterable[tuple[int, Mapping[Any, str]]]:
        if jobs < 2:
            for number, (digest, files) in enumerate(packs):
                yield number, self._unpack(digest, files, self._on_file, self._on_note)
            return

        def work(number: int, note: Callable[[Any], None]) -> Bad:
            return self._unpack(*packs[number], lambda _file: None, lambda files, size: note([files, size]))

        for number, found in spread(range(len(packs)), jobs, work, lambda note: self._on_note(*note)):
            if isinstance(found, Lost):
                files = packs[number][1]
                self._area.drop_files(files)
                yield number, dict.fromkeys(range(len(files)), LOST)
            else:
                yield number, found

    def _unpack(self, digest: str, files: list[StoredFile], done: Done, note: Callable[[int, int], None]) -> Bad:
        """Stage the files of one pack; returns what could not be had, by its place in the list."""
        bad: Bad = {}
        position = count = size = 0
        try:
            with closing(self._store.open_pack(digest)) as stream:
                reader = PackReader(stream)
                for file in files:
                    # Most files are small and lie in what is unpacked already; they need no loop.
                    whole = reader.at_hand(file.offset, file.size)
                    if (
                        self._area.write(file, reader.pieces(file.offset, file.size))
                        if whole is None
                        else self._area.write_whole(file, whole)
                    ):
                        count, size = count + 1, size + file.size
                        done(file)
                    else:
                        bad[position] = "digest"
                    position += 1
                    if count == NOTE_FILES or size >= NOTE_BYTES:
                        note(count, size)
                        count = size = 0
        except (StoreDamaged, StoreUnavailable) as error:
            reason = "pack" if isinstance(error, StoreDamaged) else "unreadable"
            bad.update(dict.fromkeys(range(position, len(files)), reason))
        note(count, size)
        return bad
