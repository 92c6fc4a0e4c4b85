"""One generation: the list of its files, and the checks that make a manifest from the store believable.

Packs are not opened here (`packs`), and no name in the store is known (`store`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, BinaryIO, NamedTuple, NoReturn

from sidecar.errors import FormatFromTheFuture, StoreDamaged

FORMAT = 1
PATH_LIMIT = 1024
NAME_LIMIT = 255
# Two million files of a few kB are 100 times the largest cache that was seen; a manifest of more is no cache.
FILES_LIMIT = 2_000_000
SHA256 = re.compile(r"[0-9a-f]{64}")
GENERATION_NAME = re.compile(r"(\d{8})-[0-9a-f]{16}")
FAMILY_NAME = re.compile(r"[a-z0-9_]{1,40}")
SIZE_LIMIT = 1 << 44
TIME_LIMIT = 1 << 63
CONFINED = re.compile(r"(?!\.{1,2}(?:/|\Z))[^/\0]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[^/\0]{1,255})*")
# The line that ends the head of a manifest; each file has a line of its own after it.
HEAD_END = b'"files":['
DOCUMENT_END = b"\n]}\n"
HEAD_LIMIT = 4 * 1024 * 1024
# What is parsed at once, in bytes: parsing line by line takes four times as long.
BATCH = 256 * 1024


class StoredFile(NamedTuple):
    """One file or link of a generation.

    `path` is relative to the family's directory; `size` in bytes; `mtime_ns` since the epoch; `mode` permission bits;
    `pack` the digest of the archive that holds it, and `offset` where in the unpacked archive its bytes begin. A link
    has a `link` target and no bytes.
    """

    family: str
    path: str
    size: int
    sha256: str
    mtime_ns: int
    mode: int
    pack: str
    offset: int
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One archive: digest of the `.tar.zst` file, its size, and its size unpacked, in bytes."""

    digest: str
    bytes: int
    unpacked: int


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
    files: tuple[StoredFile, ...] = field(default=(), repr=False)

    @property
    def sequence(self) -> int:
        """The generation's number under its key, counted from 1."""
        return sequence_of(self.name)

    @property
    def bytes(self) -> int:
        """What the files take when unpacked."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; `from_json` reads it back."""
        return {**self.head(), "files": [json.loads(_line(one)) for one in self.files]}

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
    """Yield the JSON document in pieces, a line a file, so that `read` needs no more memory than the files do."""
    head = json.dumps(manifest.head(), separators=(",", ":"))
    yield f"{head[:-1]},".encode() + HEAD_END
    start = "\n"
    for file in manifest.files:
        yield f"{start}{_line(file)}".encode()
        start = ",\n"
    yield DOCUMENT_END


def read(stream: BinaryIO) -> Manifest:
    """Read a manifest file and believe nothing of it.

    One that was written by `lines` takes the memory of its files; any other JSON is read whole. Raises as `from_json`
    does, and OSError of the stream.
    """
    first = stream.readline(HEAD_LIMIT)
    try:
        if first.rstrip().endswith(HEAD_END):
            return from_json({**json.loads(first + b"]}"), "files": _lines_of(stream)})
        value = json.loads(first + stream.read())
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"A manifest can't be used: it is not valid JSON ({error!s:.120}).") from error
    if not isinstance(value, dict):
        _refuse(f"holds {type(value).__name__} where a JSON object is expected")
    return from_json(value)


def from_json(value: Mapping[str, Any]) -> Manifest:
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
        manifest = Manifest(
            scope=_text(value["scope"]),
            key=_text(value["key"]),
            name=_text(value["name"]),
            parent=None if value["parent"] is None else _text(value["parent"]),
            created_unix_s=_time(value["created_unix_s"]),
            created_by=_text(value["created_by"]),
            packs=packs,
            files=_files(value["files"], packs),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreDamaged(f"A manifest can't be used: {type(error).__name__} {error!s:.120}.") from error
    _check_layout(manifest.files)
    return manifest


def is_confined(path: str) -> bool:
    """Say whether a relative path stays below its root and is safe to create."""
    if len(path) > PATH_LIMIT or CONFINED.fullmatch(path) is None:
        return False
    if path.isascii():
        return True
    try:
        # A filesystem counts bytes, and has no name for half of a surrogate pair.
        return all(len(part) <= NAME_LIMIT for part in os.fsencode(path).split(b"/"))
    except UnicodeEncodeError:
        return False


def is_confined_link(path: str, target: str) -> bool:
    """Say whether a link stays in its family: relative, `..` only at the front and not above the family's root."""
    parts = target.split("/")
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    rest = "/".join(parts[up:])
    return up <= path.count("/") and (is_confined(rest) or (up > 0 and not rest))


def _check_layout(files: Iterable[StoredFile]) -> None:
    seen: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    links = []
    for file in files:
        family, path = file.family, file.path
        paths = seen.setdefault(family, set())
        if path in paths:
            _refuse(f"lists {family}/{path} twice")
        paths.add(path)
        above = folders.setdefault(family, set())
        folder = path.rpartition("/")[0]
        while folder and folder not in above:
            above.add(folder)
            folder = folder.rpartition("/")[0]
        if file.link:
            links.append(file)
    for file in links:
        if file.path in folders[file.family]:
            _refuse(f"puts files behind a link, {file.family}/{file.path}")
    if any(not paths.isdisjoint(folders[family]) for family, paths in seen.items()):
        _refuse("uses one path as a file and as a directory")


def _lines_of(stream: BinaryIO) -> Iterator[Any]:
    """Yield the files of a document that `lines` wrote. Raises ValueError where it is anything else."""
    text = b""
    while not text.endswith(DOCUMENT_END):
        text = b"\n" + b"".join(stream.readlines(BATCH))
        if not text.endswith(b",\n"):
            text += stream.read()
            if not text.endswith(DOCUMENT_END):
                raise ValueError("its end is missing")
        yield from json.loads(b"[%b]" % text.removesuffix(DOCUMENT_END).removesuffix(b",\n"))


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
    return Pack(digest=_digest(value["digest"]), bytes=_size(value["bytes"]), unpacked=_size(value["unpacked"]))


def _files(values: Iterable[Any], packs: Iterable[Pack]) -> tuple[StoredFile, ...]:
    # One text for all files of a family or pack, instead of one each.
    rooms = {pack.digest: (pack.digest, pack.unpacked) for pack in packs}
    families: dict[str, str] = {}
    found = tuple([_file(value, rooms, families) for value in islice(values, FILES_LIMIT + 1)])
    if len(found) > FILES_LIMIT:
        _refuse(f"lists more than {FILES_LIMIT} files")
    return found


def _file(value: Any, rooms: Mapping[str, tuple[str, int]], families: dict[str, str]) -> StoredFile:
    family, path = value["family"], value["path"]
    if family not in families:
        if not isinstance(family, str) or not FAMILY_NAME.fullmatch(family):
            raise ValueError(f"{family!r:.40} is not a family's name")
        families[family] = family
    if not isinstance(path, str) or not is_confined(path):
        raise ValueError(f"{path!r:.80} leaves its directory")
    mtime_ns, mode = value["mtime_ns"], value["mode"]
    # type() and not isinstance(): a bool is no number here.
    if not (type(mtime_ns) is type(mode) is int and 0 <= mtime_ns <= TIME_LIMIT and 0 <= mode <= 0o777):
        raise ValueError(f"{mtime_ns!r:.40} is no time, or {mode!r:.40} no mode")
    if "link" in value:
        target = value["link"]
        if not isinstance(target, str) or not is_confined_link(path, target):
            raise ValueError(f"the link {path!r:.80} leaves its directory")
        return StoredFile(families[family], path, 0, "", mtime_ns, mode, "", 0, target)
    size, offset, sha256 = value["size"], value["offset"], value["sha256"]
    if not (type(size) is type(offset) is int and size >= 0 and offset >= 0):
        raise ValueError(f"{size!r:.40} is no size, or {offset!r:.40} no place in a pack")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r:.40} is not a SHA-256 digest")
    pack, unpacked = rooms.get(value["pack"], ("", 0))
    if not pack:
        _refuse(f"puts {family}/{path} into a pack that it does not list")
    if offset + size > unpacked:
        _refuse(f"puts {family}/{path} beyond the end of its pack")
    return StoredFile(families[family], path, size, sha256, mtime_ns, mode, pack, offset)


def _line(file: StoredFile) -> str:
    """Write one file as JSON, by hand: it is done hundreds of thousands of times."""
    head = f'{{"family":"{file.family}","path":{quoted(file.path)},"mtime_ns":{file.mtime_ns},"mode":{file.mode}'
    if file.link:
        return f'{head},"link":{quoted(file.link)}}}'
    return f'{head},"size":{file.size},"sha256":"{file.sha256}","pack":"{file.pack}","offset":{file.offset}}}'
