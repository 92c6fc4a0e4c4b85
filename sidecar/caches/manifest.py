"""One generation: the list of its files, and the checks that make a manifest from the store believable.

Packs are not opened here (`packs`), and no name in the store is known (`store`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from sidecar.errors import FormatFromTheFuture, StoreDamaged

FORMAT = 1
PATH_LIMIT = 1024
SHA256 = re.compile(r"[0-9a-f]{64}")
GENERATION_NAME = re.compile(r"(\d{8})-[0-9a-f]{16}")
FAMILY_NAME = re.compile(r"[a-z0-9_]{1,40}")
SIZE_LIMIT = 1 << 44


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
        return {
            "format": FORMAT,
            "scope": self.scope,
            "key": self.key,
            "name": self.name,
            "parent": self.parent,
            "created_unix_s": self.created_unix_s,
            "created_by": self.created_by,
            "packs": [{"digest": one.digest, "bytes": one.bytes, "unpacked": one.unpacked} for one in self.packs],
            "files": [_file_json(one) for one in self.files],
        }


def generation_name(scope: str, key: str, sequence: int) -> str:
    """Name a generation; whoever publishes number `sequence` under a key computes the same name, so one wins."""
    digest = hashlib.sha256(f"{scope}/{key}/{sequence}".encode()).hexdigest()[:16]
    return f"{sequence:08d}-{digest}"


def sequence_of(name: str) -> int:
    """Read the number out of a generation's name; 0 when it is not one."""
    found = GENERATION_NAME.fullmatch(name)
    return int(found.group(1)) if found else 0


def from_json(value: Mapping[str, Any]) -> Manifest:
    """Read a manifest and believe nothing: types, sizes, digests, confined paths, no path twice or through a link.

    Raises FormatFromTheFuture or StoreDamaged with a sentence.
    """
    known = value.get("format")
    if isinstance(known, int) and known > FORMAT:
        raise FormatFromTheFuture(f"The manifest has format {known}, this version reads up to {FORMAT}; upgrade it.")
    if known != FORMAT:
        _refuse(f"has no known format ({known!r:.20})")
    try:
        packs = tuple(_pack(one) for one in value["packs"])
        files = tuple(_file(one) for one in value["files"])
        manifest = Manifest(
            scope=_text(value["scope"]),
            key=_text(value["key"]),
            name=_text(value["name"]),
            parent=None if value["parent"] is None else _text(value["parent"]),
            created_unix_s=float(value["created_unix_s"]),
            created_by=_text(value["created_by"]),
            packs=packs,
            files=files,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreDamaged(f"A manifest can't be used: {type(error).__name__} {error!s:.120}.") from error
    _check_layout(packs, files)
    return manifest


def is_confined(path: str) -> bool:
    """Say whether a relative path stays below its root and is safe to create."""
    if not path or len(path) > PATH_LIMIT or "\0" in path or path.startswith("/"):
        return False
    return all(part not in ("", ".", "..") and len(part) < 256 for part in path.split("/"))


def is_confined_link(path: str, target: str) -> bool:
    """Say whether a link stays in its family: relative, `..` only at the front and not above the family's root."""
    parts = target.split("/")
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    rest = "/".join(parts[up:])
    return up <= path.count("/") and (is_confined(rest) or (up > 0 and not rest))


def _check_layout(packs: Iterable[Pack], files: Iterable[StoredFile]) -> None:
    room = {pack.digest: pack.unpacked for pack in packs}
    seen: set[tuple[str, str]] = set()
    links = {(file.family, file.path) for file in files if file.link}
    for file in files:
        if (file.family, file.path) in seen:
            _refuse(f"lists {file.family}/{file.path} twice")
        seen.add((file.family, file.path))
        if links and any((file.family, above) in links for above in _parents(file.path)):
            _refuse(f"puts {file.family}/{file.path} behind a link")
        if file.link:
            continue
        if file.pack not in room:
            _refuse(f"puts {file.family}/{file.path} into a pack that it does not list")
        if file.offset + file.size > room[file.pack]:
            _refuse(f"puts {file.family}/{file.path} beyond the end of its pack")
    if any((family, above) in seen for family, path in seen for above in _parents(path)):
        _refuse("uses one path as a file and as a directory")


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _refuse(what: str) -> NoReturn:
    raise StoreDamaged(f"A manifest can't be used: it {what}.")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError("not a short text")
    return value


def _number(value: Any, limit: int = SIZE_LIMIT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"{value!r:.40} is not a number from 0 to {limit}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise ValueError(f"{value!r:.40} is not a SHA-256 digest")
    return value


def _pack(value: Any) -> Pack:
    return Pack(digest=_digest(value["digest"]), bytes=_number(value["bytes"]), unpacked=_number(value["unpacked"]))


def _file(value: Any) -> StoredFile:
    family, path = value["family"], value["path"]
    if not isinstance(family, str) or not FAMILY_NAME.fullmatch(family):
        raise ValueError(f"{family!r:.40} is not a family's name")
    if not isinstance(path, str) or not is_confined(path):
        raise ValueError(f"{path!r:.80} leaves its directory")
    mtime_ns, mode = _number(value["mtime_ns"], 1 << 63), _number(value["mode"], 0o777)
    if "link" in value:
        target = value["link"]
        if not isinstance(target, str) or not is_confined_link(path, target):
            raise ValueError(f"the link {path!r:.80} leaves its directory")
        return StoredFile(family, path, 0, "", mtime_ns, mode, "", 0, target)
    return StoredFile(
        family=family,
        path=path,
        size=_number(value["size"]),
        sha256=_digest(value["sha256"]),
        mtime_ns=mtime_ns,
        mode=mode,
        pack=_digest(value["pack"]),
        offset=_number(value["offset"]),
    )


def _file_json(file: StoredFile) -> dict[str, Any]:
    found: dict[str, Any] = {
        "family": file.family,
        "path": file.path,
        "mtime_ns": file.mtime_ns,
        "mode": file.mode,
    }
    if file.link:
        return {**found, "link": file.link}
    return {**found, "size": file.size, "sha256": file.sha256, "pack": file.pack, "offset": file.offset}
