"""What travels between stores: which generations, and archives that are checked while they are copied.

How they lie in one file is in `archive_file`, how in an image in `kernel_image`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

from sidecar.caches.fingerprint import KeyScope
from sidecar.caches.inspection import listed
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.ownership import SCOPES
from sidecar.caches.store import Store
from sidecar.errors import NotSo, StoreDamaged

Place = tuple[KeyScope, str, str]


def chosen(store: Store, prefixes: Sequence[str], every: bool) -> list[Place]:
    """Name what of the keys with these beginnings travels: all, or of each key what a restore would take.

    Raises NotSo when there is nothing of one of them: what was left out would be missed where nobody can fetch it.
    """
    found: dict[tuple[KeyScope, str], list[tuple[str, str]]] = {}
    for one in listed(store):
        if one.state in ("proven", "candidate") and any(map(one.key.startswith, prefixes or ("",))):
            found.setdefault((one.scope, one.key), []).append((one.name, one.state))
    missing = [each for each in prefixes if not each or not any(key.startswith(each) for _, key in found)]
    if missing or not found:
        these = f"a key that begins with {', '.join(map(repr, missing))}" if missing else "these keys"
        raise NotSo(
            f"The store has nothing of {these} that could be restored; `warmup-sidecar store ls` lists what there is."
        )
    places: list[Place] = []
    for (scope, key), names in found.items():
        best = next((name for name, state in names if state == "proven"), names[0][0])
        places += [(scope, key, name) for name, _ in names if every or name == best]
    return sorted(places, key=lambda one: (SCOPES.index(one[0]), one[1:]))


def read_manifest(store: Store, place: Place) -> Manifest:
    """Read the manifest of a generation. Raises StoreDamaged when there is none that can be used."""
    found = store.read_manifest(*place)
    if found is None:
        raise StoreDamaged(f"Generation {place[2]} has no manifest: its publisher died, or is at work.")
    return found


class Checked(io.RawIOBase):
    """An archive that is digested while it is read."""

    def __init__(self, stream: Any, pack: Pack) -> None:
        super().__init__()
        self._stream = stream
        self._pack = pack
        self._digest = hashlib.sha256()
        self._left = pack.bytes

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes as asked for, fewer only at the end. Raises StoreDamaged when that comes too early."""
        wanted = min(size, self._left) if size >= 0 else self._left
        parts = []
        while wanted:
            data: bytes = self._stream.read(wanted)
            if not data:
                raise StoreDamaged(f"The archive {self._pack.digest[:12]} is cut short.")
            self._digest.update(data)
            parts.append(data)
            wanted -= len(data)
            self._left -= len(data)
        return b"".join(parts)

    def finish(self) -> None:
        """Make sure that what was read is the archive. Raises StoreDamaged."""
        if self._digest.hexdigest() != self._pack.digest or self._stream.read(1):
            raise StoreDamaged(f"The archive {self._pack.digest[:12]} is not what its name says.")
