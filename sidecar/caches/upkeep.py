"""What retention asks of a store: heads of generations, ages, and removal of one thing at a time.

What may go is decided in `retention`, and in which order it goes in `cleaning`; nothing is removed here that was not named.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.caches import manifest as manifests
from sidecar.caches.file_table import FileTable
from sidecar.caches.fingerprint import BOTH, KeyScope
from sidecar.caches.manifest import HEAD_END, HEAD_LIMIT, Pack
from sidecar.caches.records import VERSION, Records
from sidecar.errors import FileUnreadable, FormatFromTheFuture, StoreDamaged, StoreFull, StoreUnavailable
from sidecar.files import is_temporary

if TYPE_CHECKING:
    from sidecar.caches.signing import Trust

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 512 * 1024 * 1024
PACK_END = ".tar.zst"
#: Where cleaning up takes its notes: which archives were out of use, and when it was done last.
NOTES = "gc"
LAST = "last.json"
USED = "used.json"
#: Archives in one note: as many as a small record of ours may name.
NOTED = 20_000
#: A key that is used says so this often; more would only be written.
USED_S = 86400.0
ORPHAN_S = 86400.0
RECORD_FOLDERS = ("boots", "quarantine", "claims", "generations", "unfit")
#: Lists of files that must not be published again: so many of a key, the newest, because each is a table in memory.
UNFIT = 8
#: A list that is larger, of some 200,000 files, goes with its generation.
UNFIT_LIMIT = 64 * 1024 * 1024
CHUNK = 1 << 20
#: Boot records of a key that stay when their generations are gone: they tell of the engine (`supervisor.history`).
RECORDS_KEPT = 100


@dataclass(frozen=True)
class Head:
    """What a generation says before its files: its archives, its parent, and when it was made."""

    parent: str | None
    created_unix_s: float
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Kept:
    """One archive as it lies there: bytes, and age in seconds of the store's own clock."""

    bytes: int
    age_s: float


class Upkeep(Records):
    """Looking after a store. Raises as `Store` does."""

    trust: Trust | None

    def head(self, scope: KeyScope, key: str, name: str) -> Head | None:
        """Read the beginning of a manifest; None when there is none. Raises StoreDamaged."""
        with self._reported(f"read {name}"):
            try:
                stream = self._opened(self._generation(scope, key, name), MANIFEST_LIMIT)
            except FileNotFoundError:
                return None
            except FileUnreadable as error:
                raise StoreDamaged(str(error)) from error
            with stream:
                first = stream.readline(HEAD_LIMIT)
                if not first.rstrip().endswith(HEAD_END):
                    stream.seek(0)
                    return _head(manifests.read(stream).head(), (scope, key, name))
        try:
            return _head(json.loads(first + b"]}"), (scope, key, name))
        except (ValueError, RecursionError) as error:
            raise StoreDamaged(f"The manifest of {name} is not valid JSON ({error!s:.120}).") from error

    def packs(self) -> dict[str, Kept]:
        """Give every archive by its digest. Raises StoreUnavailable, and StoreReadOnly: the clock is asked by writing."""
        with self._writing("look at its archives"):
            self._make_folders(self._pack_folder)
            return {
                name.removesuffix(PACK_END): Kept(size, age_s)
                for name, size, age_s in self._with_ages(self._pack_folder)
                if name.endswith(PACK_END) and not is_temporary(name)
            }

    def generation_age_s(self, scope: KeyScope, key: str, name: str) -> float | None:
        """Give how long ago a generation was made, by the store's clock; None when it has no manifest."""
        with self._writing("look at its clock"):
            try:
                return self._age_s(self._generation(scope, key, name), self._pack_folder)
            except FileNotFoundError:
                return None

    def idle_s(self, scope: KeyScope, key: str) -> float:
        """Give how long ago a boot of a key was recorded, or its use was noted; infinite when there is no such record."""
        folder, ages = self._key(scope, key), [float("inf")]
        with self._writing("look at its clock"):
            ages += [age_s for _, _, age_s in self._with_ages(folder / "boots")]
            with contextlib.suppress(FileNotFoundError):
                ages.append(self._age_s(folder / USED, self._pack_folder))
        return min(ages)

    def mark_used(self, scope: KeyScope, key: str) -> None:
        """Note once a day that a key is in use: when enough boots are recorded, no other trace of it is left."""
        age_s = self.note_age_s(scope, key, (USED,))
        if age_s is None or not 0 <= age_s < USED_S:
            self.write_note(scope, key, (USED,), {"format": 1})

    def remove_generation(self, scope: KeyScope, key: str, name: str) -> None:
        """Take a generation away; its archives stay. Cut short, it leaves a folder without a manifest."""
        manifest = self._generation(scope, key, name)
        with self._writing("remove a generation"):
            self._remove(manifest)
            self._checkpoint("manifest removed")
            self._remove_folder(manifest.parent)
            self._checkpoint("generation removed")

    def keep_unfit(self, scope: KeyScope, key: str, name: str) -> None:
        """Keep the list of a generation's files beyond its end: pods that still run on them must not publish them again.

        Nothing is kept where there is no room for it: the generation must be able to go all the same.
        """
        manifest, kept = self._generation(scope, key, name), self._key(scope, key) / "unfit" / f"{name}.json"

        def listed() -> Iterator[bytes]:
            with self._opened(manifest, MANIFEST_LIMIT) as stream:
                while data := stream.read(CHUNK):
                    yield data

        passing = contextlib.suppress(FileNotFoundError, FileExistsError, FileUnreadable)
        with contextlib.suppress(StoreFull), self._writing("keep a list of files"), passing:
            size = self._size(manifest)
            if size is not None and size <= UNFIT_LIMIT:
                if self._size(kept) not in (None, size):
                    # Half of one, of a run that was killed where names come before their content.
                    self._remove(kept)
                self._create(kept, listed)
                self._checkpoint("unfit")

    def unfit_names(self, scope: KeyScope, key: str) -> list[str]:
        """Name the generations of which a list of files is kept because they must not be used, newest first."""
        names = (name.removesuffix(".json") for name in self._names(self._key(scope, key) / "unfit"))
        named = manifests.generation_name
        return sorted((each for each in names if each == named(scope, key, manifests.sequence_of(each))), reverse=True)

    def unfit(self, scope: KeyScope, key: str, most: int) -> Iterator[FileTable]:
        """Give files, ordered, of generations that must not be used and are gone, newest first; damaged lists are passed over."""
        folder = self._key(scope, key) / "unfit"
        passing = contextlib.suppress(StoreDamaged, FileNotFoundError, FileUnreadable)
        for name in self.unfit_names(scope, key)[:most]:
            found = None
            place = folder / f"{name}.json"
            with self._reported("read a list of files"), passing, self._opened(place, UNFIT_LIMIT) as stream:
                found = manifests.read(stream).files.in_order()
            if found is not None:
                yield found

    def forget_generations(self, scope: KeyScope, key: str, there: Collection[str], numbered_to: int) -> None:
        """Remove the records of generations that are gone: those not `there` whose number is below `numbered_to`.

        The record of a quarantine keeps its number taken, so it goes only when there is a higher one.
        """
        folder = self._key(scope, key)

        def gone(name: str) -> bool:
            return name not in there and 0 < manifests.sequence_of(name) < numbered_to

        with self._writing("remove records"):
            for name in self._names(folder / "quarantine"):
                if gone(name.removesuffix(".json")):
                    self._remove(folder / "quarantine" / name)
            for name in self.unfit_names(scope, key)[UNFIT:]:
                self._remove(folder / "unfit" / f"{name}.json")
            for name in self._names(folder / "claims"):
                if gone(name):
                    self._remove_folder(folder / "claims" / name)
            for name in self._names(folder / "boots")[:-RECORDS_KEPT]:
                if gone(name.partition(".")[0]):
                    self._remove(folder / "boots" / name)
            self._checkpoint("records removed")

    def remove_key(self, scope: KeyScope, key: str) -> None:
        """Remove what is left of a key without generations, but for remembered fallbacks; nothing when there is one after all."""
        dead = self.notes(scope, key, ("generations",))
        if any(self._is_there(self._generation(scope, key, name)) for name in dead):
            return
        folder = self._key(scope, key)
        # What engines need to be good is known until it is lifted, however long none was started.
        remembered = {"fallbacks", "facts.json"} if self.notes(scope, key, ("fallbacks",)) else set()
        with self._writing("remove a key"):
            # Numbers begin anew: no record may be left that the next generation of a name would be taken for.
            for name in set(self._names(folder)) - remembered - {"generations"}:
                self._remove_folder(folder / name)
                with contextlib.suppress(IsADirectoryError):
                    self._remove(folder / name)
            for name in dead:
                self._remove_folder(folder / "generations" / name)
            # A generation that was published at this moment stays.
            self._remove_empty(folder / "generations")
            self._remove_empty(folder)
            self._checkpoint("key removed")

    def remove_pack(self, digest: str, younger_than_s: float) -> bool:
        """Remove an archive unless it is younger than that: then a publisher just wrote it, or found it of use."""
        path = self._pack(digest)
        with self._writing("remove an archive"), contextlib.suppress(FileNotFoundError):
            if self._age_s(path, self._pack_folder) >= younger_than_s and self._remove(path):
                self._checkpoint("archive removed")
                return True
        return False

    def out_of_use(self, older_than_s: float) -> set[str]:
        """Name the archives that were found out of use at least so long ago."""
        found: set[str] = set()
        for note, age_s in self._gc_notes():
            if age_s >= older_than_s:
                with contextlib.suppress(StoreDamaged, StoreUnavailable):
                    said = self._read(self._gc_folder / note).get("packs")
                    found.update(map(str, said if isinstance(said, list) else ()))
        return found

    def forget_out_of_use(self, older_than_s: float) -> None:
        """Forget what was found out of use at least so long ago, because it is acted on now."""
        old = [note for note, age_s in self._gc_notes() if age_s >= older_than_s]
        with self._writing("forget notes"):
            for note in old:
                self._remove(self._gc_folder / note)
            self._checkpoint("notes forgotten")

    def note_out_of_use(self, packs: Iterable[str], run: str) -> None:
        """Take note of archives that are out of use now; `run` is a name that nobody else uses."""
        named = sorted(packs)
        for first in range(0, len(named), NOTED):
            self._record(self._gc_folder, f"out-{run}-{first}", {"packs": named[first : first + NOTED]})

    def has_foreign_folders(self) -> bool:
        """Say whether there is a folder beside those that this version knows: a later one's, with generations of its own."""
        # `clock` is where buckets are asked for their time.
        known = {"packs", NOTES, "clock", *BOTH}
        return any(
            self._names(self.root / VERSION / name)
            for name in self._names(self.root / VERSION)
            if name not in known and not is_temporary(name)
        )

    def last_cleaned_s(self) -> float:
        """Give how long ago somebody began to clean up; infinite when nobody did."""
        with self._writing("look at its clock"):
            self._make_folders(self._pack_folder)
            with contextlib.suppress(FileNotFoundError):
                return self._age_s(self._gc_folder / LAST, self._pack_folder)
        return float("inf")

    def note_cleaning(self) -> None:
        """Take note that cleaning up begins now."""
        with self._writing("take note of cleaning"):
            self._make_folders(self._gc_folder)
            self._replace(self._gc_folder / LAST, b'{"format": 1}\n')

    def sweep_all(self) -> None:
        """Remove what writers that died left under temporary names a day or more ago, wherever it lies."""
        keys = [self._key(scope, key) for scope in BOTH for key in self._names(self.root / VERSION / scope)]
        with self._writing("sweep"):
            self._sweep_keys(keys, self._gc_folder)

    def _sweep_keys(self, keys: Sequence[Path], *more: Path) -> None:
        """Sweep the archives, some keys with their records, and more folders."""
        folders = (self._pack_folder, *more, *keys, *(key / kind for key in keys for kind in RECORD_FOLDERS))
        self._sweep(folders, self._pack_folder, ORPHAN_S)

    def _gc_notes(self) -> list[tuple[str, float]]:
        with self._writing("look at its notes"):
            return [(name, age_s) for name, _, age_s in self._with_ages(self._gc_folder) if name.startswith("out-")]

    def _generation(self, scope: str, key: str, name: str) -> Path:
        # Joined at once: it is asked for ten thousands of them.
        return self.root.joinpath(VERSION, scope, key, "generations", name, MANIFEST)

    @property
    def _gc_folder(self) -> Path:
        return self.root / VERSION / NOTES

    @property
    def _pack_folder(self) -> Path:
        return self.root / VERSION / "packs"

    def _pack(self, digest: str) -> Path:
        return self._pack_folder / f"{digest}{PACK_END}"


def _head(value: object, place: tuple[str, str, str]) -> Head:
    if not isinstance(value, dict):
        raise StoreDamaged(f"The manifest of {place[2]} is no JSON object.")
    if isinstance(value.get("format"), int) and value["format"] > manifests.FORMAT:
        raise FormatFromTheFuture(f"The manifest of {place[2]} has format {value['format']}; upgrade this version.")
    try:
        packs = tuple(Pack(digest=str(one["digest"]), bytes=int(one["bytes"]), unpacked=0) for one in value["packs"])
        named = (value["scope"], value["key"], value["name"])
        head = Head(value["parent"], float(value["created_unix_s"]), packs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreDamaged(
            f"The manifest of {place[2]} can't be used: {type(error).__name__} {error!s:.80}."
        ) from error
    if named != place:
        raise StoreDamaged(f"Generation {place[2]} says that it is another one.")
    return head
