"""Small records of a key in the store: how boots ended, what is quarantined, who claims what.

What they mean for a restore is decided in `choice`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.manifest import generation_name, sequence_of
from sidecar.caches.medium import Medium
from sidecar.errors import StoreDamaged, StoreUnavailable, WarmupError

VERSION = "v1"
#: How reports of what engines died of are called; their names are in the order of time.
DEATHS = "none.killer."
BOOT_NAME = re.compile(r"(\d{8}-[0-9a-f]{16})\.(ready|died)\.[^/]+\.json")

#: As many engines that died on a generation condemn it, in one pod or in several, unless another became ready on it.
CONDEMNING_DEATHS = 2


class Records(Medium):
    """The records of every key in a store."""

    def quarantined(self, scope: KeyScope, key: str) -> set[str]:
        """Name the generations of a key that must not be restored."""
        names = (name.removesuffix(".json") for name in self._names(self._key(scope, key) / "quarantine"))
        # As with generations: a number that nobody gave must not be where counting goes on.
        return {name for name in names if name == generation_name(scope, key, sequence_of(name))}

    def quarantine_record(self, scope: KeyScope, key: str, name: str) -> dict[str, Any]:
        """Read why a generation is quarantined; empty when it is not, or the record can't be read."""
        with contextlib.suppress(WarmupError):
            return self.read_note(scope, key, ("quarantine", f"{name}.json")) or {}
        return {}

    def record_boot(self, scope: KeyScope, key: str, boot: str, record: Mapping[str, Any]) -> None:
        """Record once how a boot with a generation of this key went. `boot` is the attempt."""
        self._record(self._key(scope, key) / "boots", boot, record)

    def boots(self, scope: KeyScope, key: str, most: int = 0) -> list[dict[str, Any]]:
        """Read the boot records of a key, the last `most` by name (0: all); those that can't be read are passed over."""
        folder = self._key(scope, key) / "boots"
        found = []
        for name in sorted(self._names(folder))[-most:]:
            with contextlib.suppress(StoreDamaged):
                found.append(self._read(folder / name))
        return found

    def boot_ends(self, scope: KeyScope, key: str) -> Counter[tuple[str, str]]:
        """Count by generation and outcome how boots ended, from the names of their records alone: there may be many."""
        found = (BOOT_NAME.fullmatch(name) for name in self._names(self._key(scope, key) / "boots"))
        return Counter((one[1], one[2]) for one in found if one)

    def deaths(self, scope: KeyScope, key: str) -> list[dict[str, Any]]:
        """Read the reports of what engines of a key died of, oldest first; those that can't be read are passed over."""
        return [record for record in self.boots(scope, key) if record.get("outcome") == "killer"]

    def forget_deaths(self, scope: KeyScope, key: str, keep: int = 0) -> int:
        """Remove the reports of what engines of a key died of, but for the newest; say how many."""
        folder = self._key(scope, key) / "boots"
        names = sorted(name for name in self._names(folder) if name.startswith(DEATHS))
        gone = names[: max(0, len(names) - keep)]
        with self._writing("forget a report"):
            for name in gone:
                self._remove(folder / name)
        return len(gone)

    def remember_fallback(self, scope: KeyScope, key: str, name: str, record: Mapping[str, Any]) -> None:
        """Record once that engines of a key are good with this fallback and were not without; it holds until it is lifted."""
        self._record(self._key(scope, key) / "fallbacks", name, record)

    def fallbacks(self, scope: KeyScope, key: str) -> list[dict[str, Any]]:
        """Read the fallbacks that are remembered for a key; those that can't be read are passed over."""
        folder = self._key(scope, key) / "fallbacks"
        found = []
        for name in sorted(self._names(folder)):
            with contextlib.suppress(StoreDamaged):
                found.append(self._read(folder / name))
        return found

    def lift_fallbacks(self, scope: KeyScope, key: str) -> int:
        """Forget the fallbacks of a key, so that its engines start as they are asked to; say how many there were."""
        folder = self._key(scope, key) / "fallbacks"
        names = self._names(folder)
        with self._writing("lift a fallback"):
            return sum(self._remove(folder / name) for name in names)

    def notes(self, scope: KeyScope, key: str, folder: tuple[str, ...]) -> list[str]:
        """List the names in a folder of a key."""
        return self._names(self._note(scope, key, folder))

    def read_note(self, scope: KeyScope, key: str, place: tuple[str, ...]) -> dict[str, Any] | None:
        """Read a small record of a key; None when there is none. Raises StoreDamaged."""
        try:
            return self._read(self._note(scope, key, place))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def create_note(self, scope: KeyScope, key: str, place: tuple[str, ...], record: Mapping[str, Any]) -> bool:
        """Write a small record of a key into a folder of its own, unless somebody has; False then."""
        path = self._note(scope, key, place)
        with self._writing(f"write to {path.parent.name}"):
            try:
                self._create_alone(path.parent, path.name, json.dumps(record).encode(), path.parent.parent)
            except FileExistsError:
                return False
            self._checkpoint(path.name)
        return True

    def write_note(self, scope: KeyScope, key: str, place: tuple[str, ...], record: Mapping[str, Any]) -> None:
        """Write a small record of a key, whether there is one or not."""
        path = self._note(scope, key, place)
        with self._writing(f"write to {path.parent.name}"):
            self._make_folders(path.parent)
            self._replace(path, json.dumps(record).encode())

    def remove_notes(self, scope: KeyScope, key: str, folder: tuple[str, ...]) -> None:
        """Remove a folder of small records of a key; what can't be removed stays."""
        with self._writing("remove a record"):
            self._remove_folder(self._note(scope, key, folder))

    def note_age_s(self, scope: KeyScope, key: str, place: tuple[str, ...]) -> float | None:
        """Give how long ago a record was written, in seconds of the store's own clock; None when there is none.

        Below 0 when that clock was set back since.
        """
        path = self._note(scope, key, place)
        with self._writing("look at its clock"):
            try:
                return self._age_s(path, path.parent)
            except FileNotFoundError:
                return None

    def quarantine(self, scope: KeyScope, key: str, name: str, record: Mapping[str, Any]) -> None:
        """Keep a generation from being restored again, with the reason."""
        self._record(self._key(scope, key) / "quarantine", name, record)

    def release(self, scope: KeyScope, key: str, name: str) -> bool:
        """Take a quarantine back, and the deaths that would condemn the generation without one; False when there was neither."""
        folder = self._key(scope, key)
        deaths = [found for found in self._names(folder / "boots") if found.startswith(f"{name}.died.")]
        released = 0
        with self._writing("take a quarantine back"):
            records = (folder / kind / f"{name}.json" for kind in ("quarantine", "unfit"))
            for path in (*records, *(folder / "boots" / each for each in deaths)):
                released += self._remove(path)
        return released > 0

    def acquit(self, scope: KeyScope, key: str, name: str, boot: str) -> bool:
        """Take back the quarantine that this boot wrote; False when there is none, or it has another one's reason."""
        if self.quarantine_record(scope, key, name).get("boot") != boot:
            return False
        with self._writing("take a quarantine back"):
            return self._remove(self._key(scope, key) / "quarantine" / f"{name}.json") > 0

    def _note(self, scope: KeyScope, key: str, place: tuple[str, ...]) -> Path:
        return self._key(scope, key).joinpath(*place)

    def _key(self, scope: str, key: str) -> Path:
        return self.root / VERSION / scope / key


def is_condemned(name: str, ends: Mapping[tuple[str, str], int]) -> bool:
    """Say whether engines died on a generation and none became ready; `ends` are `Records.boot_ends`."""
    return not ends.get((name, "ready"), 0) and ends.get((name, "died"), 0) >= CONDEMNING_DEATHS


def boot_state(name: str, ends: Mapping[tuple[str, str], int]) -> str:
    """Say what boots made of a generation: `proven`, `condemned` or `candidate`; `ends` are `Records.boot_ends`."""
    return "proven" if ends.get((name, "ready")) else "condemned" if is_condemned(name, ends) else "candidate"
