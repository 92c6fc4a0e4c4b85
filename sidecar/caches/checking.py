"""Look for staged kernel entries that can't be used, in several processes where there are many.

What makes an entry usable is said in `validity`; what becomes of the others is decided in `restore`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.caches import validity
from sidecar.caches.families import BY_NAME
from sidecar.caches.forks import Lost, Note, spread
from sidecar.caches.unpacking import LOST

# Files of one piece of work: enough to be worth a message, few enough to share them out evenly.
SLICE = 2000

Sizes = Mapping[str, int]
Slice = tuple[str, dict[str, list[str]]]


def broken(
    families: Mapping[str, Sizes], staged: Path, live: Path, jobs: int, cuda_majors: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """Map each family to its entries that are not whole, with the reason.

    `families` maps each one's files to their bytes, `staged` holds them now, and `live` is where the engine will find
    them. `cuda_majors` is passed on to `validity.broken`.
    """
    slices = [one for name, sizes in families.items() for one in _slices(name, sizes)]

    def work(number: int, _note: Note) -> dict[str, str]:
        name, entries = slices[number]
        family, sizes = BY_NAME[name], families[name]
        chosen = {path: sizes[path] for paths in entries.values() for path in paths}
        return validity.broken(family, chosen, staged / name, live / family.directory, cuda_majors)

    found: dict[str, dict[str, str]] = {name: {} for name in families}
    many = sum(map(len, families.values())) > SLICE
    for number, reasons in _results(len(slices), jobs if many else 1, work):
        name, entries = slices[number]
        found[name].update(dict.fromkeys(entries, LOST) if isinstance(reasons, Lost) else reasons)
    return found


def _results(count: int, jobs: int, work: Any) -> Iterator[tuple[int, Any]]:
    if jobs > 1:
        return spread(range(count), jobs, work, lambda _note: None)
    return ((number, work(number, lambda _note: None)) for number in range(count))


def _slices(name: str, sizes: Sizes) -> Iterator[Slice]:
    entries: dict[str, list[str]] = {}
    files = 0
    for entry, paths in validity.entries(BY_NAME[name], sizes).items():
        entries[entry] = paths
        files += len(paths)
        if files >= SLICE:
            yield name, entries
            entries, files = {}, 0
    if entries:
        yield name, entries
