"""Key files for tests, made by the product's own `keygen`: the private one, and a file that trusts it.

No signature is made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.keys import generate


@dataclass(frozen=True)
class Pair:
    """A private key's file and a file with its public key."""

    private: Path
    public: Path

    @property
    def fields(self) -> dict[str, str]:
        """Give the fields of a request that signs with this key and trusts it."""
        return {"keys_file": str(self.public), "signing_file": str(self.private)}

    @property
    def trusting(self) -> dict[str, str]:
        """Give the fields of a request that only trusts this key."""
        return {"keys_file": str(self.public)}


def pair(folder: Path, name: str = "key") -> Pair:
    """Make a pair of keys in a folder."""
    generate(folder / name, f"{name}@test")
    return Pair(folder / name, folder / f"{name}.pub")
