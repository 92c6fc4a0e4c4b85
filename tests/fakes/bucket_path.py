"""A name in a bucket that tests use as they use a path: what a test plants in a store, or looks up there, is written once.

Only what tests of the store do with paths is here. A name with something below it is a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self

import obstore

if TYPE_CHECKING:
    from obstore.store import S3Store


@dataclass(frozen=True, order=True)
class BucketPath:
    """A name below `root`, the URL that the client's names begin after; as text it is the URL of the store or object."""

    root: str
    inside: PurePosixPath
    client: S3Store

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.root, self.inside / name, self.client)

    def __str__(self) -> str:
        return f"{self.root}/{self.inside}"

    @property
    def name(self) -> str:
        """Give the last part."""
        return self.inside.name

    @property
    def parent(self) -> Self:
        """Give what it lies in."""
        return type(self)(self.root, self.inside.parent, self.client)

    @property
    def parents(self) -> tuple[Self, ...]:
        """Give everything that it lies in, the nearest first."""
        return tuple(type(self)(self.root, each, self.client) for each in self.inside.parents)

    def with_name(self, name: str) -> Self:
        """Give what lies beside it under another name."""
        return type(self)(self.root, self.inside.with_name(name), self.client)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: there are no folders."""

    def exists(self) -> bool:
        """Say whether there is such an object."""
        try:
            obstore.head(self.client, str(self.inside))
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Read the object."""
        return bytes(obstore.get(self.client, str(self.inside)).bytes())

    def read_text(self) -> str:
        """Read the object as UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> int:
        """Write the object."""
        obstore.put(self.client, str(self.inside), data)
        return len(data)

    def write_text(self, text: str) -> int:
        """Write the object as UTF-8."""
        return self.write_bytes(text.encode())

    def unlink(self) -> None:
        """Remove the object."""
        obstore.delete(self.client, str(self.inside))

    def objects(self) -> Iterator[Self]:
        """Give every object below it."""
        for batch in obstore.list(self.client, str(self.inside)):
            for one in batch:
                yield type(self)(self.root, PurePosixPath(str(one["path"])), self.client)

    def rglob(self, name: str) -> Iterator[Self]:
        """Give every object below it (`*`), or those with a part of this name."""
        return (one for one in self.objects() if name == "*" or name in one.inside.relative_to(self.inside).parts)

    def iterdir(self) -> Iterator[Self]:
        """Give what lies directly below it."""
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator[Self]:
        """Give the objects, and the folders, below it whose names fit; `*` is part of a name."""
        depth = pattern.count("/") + 1
        wanted = re.compile("/".join(re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("/")))
        found = {one.inside.relative_to(self.inside).parts[:depth] for one in self.objects()}
        for parts in sorted(parts for parts in found if len(parts) == depth and wanted.fullmatch("/".join(parts))):
            yield type(self)(self.root, self.inside.joinpath(*parts), self.client)

    def save(self) -> dict[str, bytes]:
        """Read everything below it, by its name there."""
        return {str(one.inside.relative_to(self.inside)): one.read_bytes() for one in self.objects()}

    def put_back(self, saved: dict[str, bytes]) -> None:
        """Make it hold this and nothing else."""
        for one in list(self.objects()):
            one.unlink()
        for name, data in saved.items():
            (self / name).write_bytes(data)
