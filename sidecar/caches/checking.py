"""Look for staged kernel entries that can't be used, in several processes where there are many.

What makes an entry usable is said in `validity`; what becomes of the others is decided in `restore`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.caches import validity
from sidecar.caches.forks import Lost, Note, spread
from sidecar.caches.selection import Selection, paths_of
from sidecar.caches.unpacking import LOST

# Files of one piece of work: enough to be worth a message, few enough to share them out evenly.
SLICE = 2000


def broken(
    families: Mapping[str, Selection], staged: Path, live: Path, jobs: int, cuda_majors: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """Map each family to its entries that are not whole, with the reason.

    `families` are the files that `staged` holds now, and `live` is where the engine will find them. `cuda_majors` is
    passed on to `validity.broken`.
    """
    slices = [(name, rows) for name, files in families.items() for rows in files.slices(SLICE)]

    def work(number: int, _note: Note) -> dict[str, str]:
        name, rows = slices[number]
        family, sizes = families[name].family, _sizes(families[name], rows)
        return validity.broken(family, sizes, staged / name, live / family.directory, cuda_majors)

    found: dict[str, dict[str, str]] = {name: {} for name in families}
    many = sum(map(len, families.values())) > SLICE
    for number, reasons in _results(len(slices), jobs if many else 1, work):
        name, rows = slices[number]
        if isinstance(reasons, Lost):
            family, paths = families[name].family, _sizes(families[name], rows)
            found[name].update(dict.fromkeys(validity.entries(family, paths), LOST))
        else:
            found[name].update(reasons)
    return found


def _results(count: int, jobs: int, work: Any) -> Iterator[tuple[int, Any]]:
    if jobs > 1:
        return spread(range(count), jobs, work, lambda _note: None)
    return ((number, work(number, lambda _note: None)) for number in range(count))


def _sizes(files: Selection, rows: array[int]) -> dict[str, int]:
    """Give the files among some rows with their bytes; links have none."""
    table = files.table
    named = zip(paths_of(table, rows), rows, strict=True)
    return {path: table.sizes[row] for path, row in named if row not in table.links}
