"""Whether signatures are looked at in a store, and the answers about one key's generations, each asked once.

What a signature is lives in `signing`, which is loaded from here and only when a file of keys is named: the library behind
it is as large as all else that a worker loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.caches.manifest import sequence_of
from sidecar.errors import StoreDamaged, StoreUnavailable, Untrusted

if TYPE_CHECKING:
    from sidecar.caches.fingerprint import KeyScope
    from sidecar.caches.signing import Trust
    from sidecar.caches.store import Store


@dataclass(frozen=True)
class KeyFiles:
    """Files of keys as the settings name them, each empty when it is not set."""

    trusted: str = ""
    signing: str = ""


def trust(files: KeyFiles, now: Callable[[], float]) -> Trust | None:
    """Read the files of keys; None when none is named, and signatures are not looked at. Raises KeysUnusable.

    Where only a key to sign with is named, what it signed is believed and nothing else.
    """
    if not files.trusted and not files.signing:
        return None
    from sidecar.caches.keys import read_signing, read_trusted
    from sidecar.caches.signing import Trust

    known = read_trusted(Path(files.trusted)) if files.trusted else {}
    return Trust(known, read_signing(Path(files.signing)) if files.signing else None, now, files.trusted)


class Vouched:
    """Which of a key's generations a trusted key vouches for; all of them where signatures are not looked at."""

    def __init__(self, store: Store, scope: KeyScope, key: str, names: Sequence[str]) -> None:
        self._store = store
        self._scope: KeyScope = scope
        self._key = key
        self._names = names
        self._known: dict[str, str] = {}

    def refusal(self, name: str) -> str:
        """Say why a generation is not believed, in a word of `messages.REASONS`; empty when it is. Raises StoreUnavailable."""
        if self._store.trust is None:
            return ""
        if name not in self._known:
            self._known[name] = self._asked(name)
        return self._known[name]

    @property
    def count(self) -> int:
        """Say how many generations are asked about."""
        return len(self._names)

    def newest(self) -> int:
        """Give the number of the newest generation that is vouched for, 0 when none is or nobody looks."""
        if self._store.trust is None:
            return 0
        return next((sequence_of(name) for name in self._names if not self.refusal(name)), 0)

    def _asked(self, name: str) -> str:
        try:
            self._store.check_signature(self._scope, self._key, name)
        except Untrusted as error:
            return error.reason
        except StoreDamaged:
            return "untrusted"
        except StoreUnavailable:
            # One signature that can't be read must not make every start cold; a store that fails altogether fails again.
            return "untrusted"
        return ""


def rolled_back(seen: Mapping[str, int], scope: str, key: str, newest: int) -> bool:
    """Say whether a store holds less than was seen of a key before: its newest signed generation is an older one.

    `seen` is by scope and key, joined by a slash.
    """
    return newest < seen.get(f"{scope}/{key}", 0)
