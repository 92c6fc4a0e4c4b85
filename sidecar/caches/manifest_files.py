"""The list of files in a manifest: written a line a file, and checked entry by entry when it is read.

The head of a manifest is read in `manifest`. Lines as this module writes them are checked many at a time by one pattern;
whatever it does not fit is parsed as JSON and checked on its own, so both ways believe the same.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from json.encoder import encode_basestring_ascii as quoted
from operator import add, le
from typing import Any, BinaryIO, NoReturn

from sidecar.caches.confinement import NAME_LIMIT, is_confined, is_confined_link
from sidecar.caches.file_table import CHUNK, FileTable, StoredFile
from sidecar.errors import StoreDamaged

SHA256 = re.compile(r"[0-9a-f]{64}")
FAMILY_NAME = re.compile(r"[a-z0-9_]{1,40}")
TIME_LIMIT = 1 << 63
MODE_LIMIT = 0o777
DOCUMENT_END = b"\n]}\n"
# What is parsed at once, in bytes: parsing line by line takes four times as long.
BATCH = 64 * 1024
# More than the longest line has: a path and a link of 1,024 characters, each of which may take twelve bytes.
LINE_LIMIT = 64 * 1024
_NUMBER = "(0|[1-9][0-9]{0,18}+)"
# A line as it is written for a file whose path needs no escapes. What was matched is never given back: nothing else fits.
PLAIN_LINE = re.compile(
    r'^\{"family":"([a-z0-9_]{1,40}+)","path":"([ !#-\[\]-~]++)",'
    rf'"mtime_ns":{_NUMBER},"mode":{_NUMBER},"size":{_NUMBER},'
    rf'"sha256":"(.{{64}}+)","pack":"(.{{64}}+)","offset":{_NUMBER}\}},$',
    re.MULTILINE,
)
# An empty name, `.` or `..` in paths that each stand between line ends.
ODD_SIGNS = ("//", "/.", "\n.", "/\n", "\n/")
ODD_NAME = re.compile(r"[/\n]\.{0,2}[/\n]")


class Lines:
    """The files of a document that `written` wrote, still to be read from a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def batches(self) -> Iterator[str]:
        """Yield whole lines, each with its end. Raises ValueError where the document is anything else."""
        text = b""
        while not text.endswith(DOCUMENT_END):
            # One piece up to a line's end: a list of its lines takes three times as long.
            text = b"\n" + self._stream.read(BATCH) + self._stream.readline(LINE_LIMIT)
            if not text.endswith(b",\n"):
                text += self._stream.read(LINE_LIMIT)
                if not text.endswith(DOCUMENT_END):
                    raise ValueError("its end is missing")
            lines = text.removesuffix(DOCUMENT_END).removesuffix(b",\n").removeprefix(b"\n")
            if lines:
                yield lines.decode() + ",\n"


def table_of(values: Iterable[Any] | Lines, rooms: Mapping[str, int], limit: int) -> FileTable:
    """Check the files of a manifest, up to `limit`, and make a table of them; `rooms` maps packs to unpacked bytes.

    Raises StoreDamaged, KeyError, TypeError, ValueError or OverflowError for what can't be believed.
    """
    table = FileTable()
    for lines in values.batches() if isinstance(values, Lines) else ():
        if not _added_at_once(table, lines, rooms):
            _add_each(table, json.loads(f"[{lines[:-2]}]"), rooms, limit)
        _check_count(table, limit)
    if not isinstance(values, Lines):
        _add_each(table, values, rooms, limit)
    _check_layout(table.in_order())
    return table


def written(files: FileTable) -> Iterator[str]:
    """Yield the files as JSON, many at a time, a line each, with a comma between two."""
    for first in range(0, len(files), CHUNK):
        last = min(first + CHUNK, len(files))
        families, paths, sizes, digests, mtimes, modes, packs, offsets = files.columns(first, last)
        # Written by hand: it is done hundreds of thousands of times.
        lines = [
            f'{{"family":"{family}","path":{path},"mtime_ns":{mtime_ns},"mode":{mode},"size":{size},'
            f'"sha256":"{digest}","pack":"{pack}","offset":{offset}}}'
            for family, path, size, digest, mtime_ns, mode, pack, offset in zip(
                families, map(quoted, paths), sizes, digests, mtimes, modes, packs, offsets, strict=True
            )
        ]
        for row in files.links.keys() & range(first, last):
            lines[row - first] = _link_line(files[row])
        yield ",\n".join(lines)


def _link_line(file: StoredFile) -> str:
    head = f'{{"family":"{file.family}","path":{quoted(file.path)},"mtime_ns":{file.mtime_ns},"mode":{file.mode}'
    return f'{head},"link":{quoted(file.link)}}}'


def _added_at_once(table: FileTable, lines: str, rooms: Mapping[str, int]) -> bool:
    """Add files whose lines are plain and beyond doubt; False, and none, when there is any doubt."""
    found = PLAIN_LINE.findall(lines)
    if len(found) != lines.count("\n"):
        return False
    families, paths, mtimes, modes, sizes, digests, packs, offsets = zip(*found, strict=True)
    joined = "\n".join(("", *paths, ""))
    text = "".join(digests)
    try:
        data = bytes.fromhex(text)
        numbers = (array("Q", map(int, sizes)), array("Q", map(int, mtimes)), array("H", map(int, modes)))
        places = array("Q", map(int, offsets))
        ends = map(rooms.__getitem__, packs)
        fit = all(map(le, map(add, places, numbers[0]), ends))
    except (KeyError, ValueError, OverflowError):
        return False
    if not fit or max(numbers[1]) > TIME_LIMIT or max(numbers[2]) > MODE_LIMIT or data.hex() != text:
        return False
    if max(map(len, paths)) > NAME_LIMIT or (any(map(joined.__contains__, ODD_SIGNS)) and ODD_NAME.search(joined)):
        return False
    table.add_columns(families, paths, (*numbers, places), data, packs)
    return True


def _add_each(table: FileTable, values: Iterable[Any], rooms: Mapping[str, int], limit: int) -> None:
    for value in values:
        table.add(_file(value, rooms))
        _check_count(table, limit)


def _check_count(table: FileTable, limit: int) -> None:
    if len(table) > limit:
        _refuse(f"lists more than {limit} files")


def _file(value: Any, rooms: Mapping[str, int]) -> StoredFile:
    family, path = value["family"], value["path"]
    if not isinstance(family, str) or not FAMILY_NAME.fullmatch(family):
        raise ValueError(f"{family!r:.40} is not a family's name")
    if not isinstance(path, str) or not is_confined(path):
        raise ValueError(f"{path!r:.80} leaves its directory")
    mtime_ns, mode = value["mtime_ns"], value["mode"]
    # type() and not isinstance(): a bool is no number here.
    if not (type(mtime_ns) is type(mode) is int and 0 <= mtime_ns <= TIME_LIMIT and 0 <= mode <= MODE_LIMIT):
        raise ValueError(f"{mtime_ns!r:.40} is no time, or {mode!r:.40} no mode")
    if "link" in value:
        target = value["link"]
        if not isinstance(target, str) or not is_confined_link(path, target):
            raise ValueError(f"the link {path!r:.80} leaves its directory")
        return StoredFile(family, path, 0, "", mtime_ns, mode, "", 0, target)
    size, offset, sha256, pack = value["size"], value["offset"], value["sha256"], value["pack"]
    if not (type(size) is type(offset) is int and size >= 0 and offset >= 0):
        raise ValueError(f"{size!r:.40} is no size, or {offset!r:.40} no place in a pack")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r:.40} is not a SHA-256 digest")
    if pack not in rooms:
        _refuse(f"puts {family}/{path} into a pack that it does not list")
    if offset + size > rooms[pack]:
        _refuse(f"puts {family}/{path} beyond the end of its pack")
    return StoredFile(family, path, size, sha256, mtime_ns, mode, pack, offset)


def _check_layout(table: FileTable) -> None:
    """Refuse a path that is there twice, lies behind a link, or is both file and folder."""
    if not table.is_ordered:
        for row, (one, other) in enumerate(pairwise(table.paths)):
            if one == other and table.family(row) == table.family(row + 1):
                _refuse(f"lists {table.family(row)}/{one} twice")
    for name, first, last in table.families():
        folders: set[str] = set()
        chunks = [slice(begin, min(begin + CHUNK, last)) for begin in range(first, last, CHUNK)]
        for chunk in chunks:
            for folder in {path.rpartition("/")[0] for path in table.paths[chunk]}:
                while folder and folder not in folders:
                    folders.add(folder)
                    folder = folder.rpartition("/")[0]
        for row in table.links:
            if first <= row < last and table.paths[row] in folders:
                _refuse(f"puts files behind a link, {name}/{table.paths[row]}")
        if not all(folders.isdisjoint(table.paths[chunk]) for chunk in chunks):
            _refuse("uses one path as a file and as a directory")


def _refuse(what: str) -> NoReturn:
    raise StoreDamaged(f"A manifest can't be used: it {what}.")
