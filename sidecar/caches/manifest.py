"""One generation: the list of its files, and the checks that make a manifest from the store believable.

Packs are not opened here (`packs`), and no name in the store is known (`store`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from sidecar.caches.file_table import FileTable
from sidecar.caches.manifest_files import DOCUMENT_END, SHA256, TIME_LIMIT, Lines, table_of, written
from sidecar.errors import FormatFromTheFuture, StoreDamaged

FORMAT = 1
# Two million files of a few kB are 100 times the largest cache that was seen; a manifest of more is no cache.
FILES_LIMIT = 2_000_000
GENERATION_NAME = re.compile(r"(\d{8})-[0-9a-f]{16}")
SIZE_LIMIT = 1 << 44
# An archive that claims to unpack to more than this and to a thousand times its size is made to cost time: caches reach ten.
UNPACKED_LIMIT, UNPACKED_TIMES = 1 << 30, 1000
# The line that ends the head of a manifest; each file has a line of its own after it.
HEAD_END = b'"files":['
HEAD_LIMIT = 4 * 1024 * 1024
# JSON that is laid out otherwise is held in memory as a whole, at some eight times its size; this is 100,000 files of it.
WHOLE_LIMIT = 32 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One archive: digest of the `.tar.zst` file, its size, and its size unpacked, in bytes."""

    digest: str
    bytes: int
    unpacked: int


OnPacks = Callable[[Sequence[Pack]], None]


def unheard(_packs: Sequence[Pack]) -> None:
    """Take the packs of a manifest and do nothing with them."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One immutable snapshot under a key. `parent` is the generation whose files it contains, if any."""

    scope: str
    key: str
    name: str
    parent: str | None
    created_unix_s: float
    created_by: str
    packs: tuple[Pack, ...] = ()
    files: FileTable = field(default_factory=FileTable, repr=False)

    @property
    def sequence(self) -> int:
        """The generation's number under its key, counted from 1."""
        return sequence_of(self.name)

    @property
    def bytes(self) -> int:
        """What the files take when unpacked."""
        return sum(self.files.sizes)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; `from_json` reads it back."""
        return {**self.head(), "files": json.loads(f"[{','.join(written(self.files))}]")}

    def head(self) -> dict[str, Any]:
        """Return the JSON object without its files."""
        return {
            "format": FORMAT,
            "scope": self.scope,
            "key": self.key,
            "name": self.name,
            "parent": self.parent,
            "created_unix_s": self.created_unix_s,
            "created_by": self.created_by,
            "packs": [{"digest": one.digest, "bytes": one.bytes, "unpacked": one.unpacked} for one in self.packs],
        }


def generation_name(scope: str, key: str, sequence: int) -> str:
    """Name a generation; whoever publishes number `sequence` under a key computes the same name, so one wins."""
    digest = hashlib.sha256(f"{scope}/{key}/{sequence}".encode()).hexdigest()[:16]
    return f"{sequence:08d}-{digest}"


def sequence_of(name: str) -> int:
    """Read the number out of a generation's name; 0 when it is not one."""
    found = GENERATION_NAME.fullmatch(name)
    return int(found.group(1)) if found else 0


def lines(manifest: Manifest) -> Iterator[bytes]:
    """Yield the JSON document in pieces; in it each file has a line of its own, which `read` makes use of."""
    head = json.dumps(manifest.head(), separators=(",", ":"))
    yield f"{head[:-1]},".encode() + HEAD_END
    start = "\n"
    for piece in written(manifest.files):
        yield f"{start}{piece}".encode()
        start = ",\n"
    yield DOCUMENT_END


def read(stream: BinaryIO, on_packs: OnPacks = unheard) -> Manifest:
    """Read a manifest file and believe nothing of it; `on_packs` hears of its packs before its files are read.

    One that was written by `lines` takes little more memory than the table of its files; any other JSON is read whole,
    up to 32 MiB.
    Raises as `from_json` does, and OSError of the stream.
    """
    first = stream.readline(HEAD_LIMIT)
    try:
        if first.rstrip().endswith(HEAD_END):
            return from_json({**json.loads(first + b"]}"), "files": Lines(stream)}, on_packs)
        document = first + stream.read(WHOLE_LIMIT)
        if len(document) > WHOLE_LIMIT:
            _refuse("has more than 32 MiB and is not laid out line by line, as the sidecar writes it")
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"A manifest can't be used: it is not valid JSON ({error!s:.120}).") from error
    if not isinstance(value, dict):
        _refuse(f"holds {type(value).__name__} where a JSON object is expected")
    return from_json(value)


def from_json(value: Mapping[str, Any], on_packs: OnPacks = unheard) -> Manifest:
    """Check a manifest: types, sizes, digests, confined paths, no path twice or through a link.

    Raises FormatFromTheFuture or StoreDamaged with a sentence.
    """
    known = value.get("format")
    if isinstance(known, int) and known > FORMAT:
        raise FormatFromTheFuture(f"The manifest has format {known}, this version reads up to {FORMAT}; upgrade it.")
    if known != FORMAT or isinstance(known, bool):
        _refuse(f"has no known format ({known!r:.20})")
    try:
        packs = tuple(_pack(one) for one in value["packs"])
        on_packs(packs)
        manifest = Manifest(
            scope=_text(value["scope"]),
            key=_text(value["key"]),
            name=_text(value["name"]),
            parent=None if value["parent"] is None else _text(value["parent"]),
            created_unix_s=_time(value["created_unix_s"]),
            created_by=_text(value["created_by"]),
            packs=packs,
            files=table_of(value["files"], {pack.digest: pack.unpacked for pack in packs}, FILES_LIMIT),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreDamaged(f"A manifest can't be used: {type(error).__name__} {error!s:.120}.") from error
    return manifest


def _refuse(what: str) -> NoReturn:
    raise StoreDamaged(f"A manifest can't be used: it {what}.")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError("not a short text")
    return value


def _size(value: Any) -> int:
    # type() and not isinstance(): a bool is no number here.
    if type(value) is not int or not 0 <= value <= SIZE_LIMIT:
        raise ValueError(f"{value!r:.40} is not a number from 0 to {SIZE_LIMIT}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise ValueError(f"{value!r:.40} is not a SHA-256 digest")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_LIMIT / 1e9:
        raise ValueError(f"{value!r:.40} is no time")
    return float(value)


def _pack(value: Any) -> Pack:
    found = Pack(digest=_digest(value["digest"]), bytes=_size(value["bytes"]), unpacked=_size(value["unpacked"]))
    if found.unpacked > max(UNPACKED_LIMIT, UNPACKED_TIMES * found.bytes):
        _refuse(f"says that an archive of {found.bytes} bytes unpacks to {found.unpacked}")
    return found
