"""Which libraries a shared object needs, read from its ELF header.

Nothing is loaded or run, and what the names mean is not known here.
"""

from __future__ import annotations

import os
import struct

# ELF-64, little endian: the gABI's header, program headers and dynamic section (x86-64 and aarch64 are both of it).
_MAGIC = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _STRINGS_SIZE = 1, 5, 10
# Far beyond what any compiler writes; a damaged header must not make us read gigabytes.
_LIMIT = 1 << 20


def needed(path: str) -> tuple[str, ...]:
    """List the libraries that a shared object names as needed; none for what is no ELF file. Never raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ()
    try:
        return _needed(descriptor)
    except (OSError, struct.error, OverflowError):
        return ()
    finally:
        os.close(descriptor)


def _needed(descriptor: int) -> tuple[str, ...]:
    head = os.pread(descriptor, _HEADER.size, 0)
    if not head.startswith(_MAGIC):
        return ()
    fields = _HEADER.unpack(head)
    start, size, count = fields[5], fields[9], fields[10]
    if size != _SEGMENT.size:
        return ()
    table = os.pread(descriptor, min(size * count, _LIMIT), start)
    segments = [_SEGMENT.unpack_from(table, at) for at in range(0, len(table) - size + 1, size)]
    # Of each segment: type, offset in the file, address in memory, size in the file.
    places = [(found[0], found[2], found[3], found[5]) for found in segments]
    dynamic = next(((offset, length) for kind, offset, _, length in places if kind == _DYNAMIC), None)
    if dynamic is None:
        return ()
    entries = _entries(os.pread(descriptor, min(dynamic[1], _LIMIT), dynamic[0]))
    names = _strings(descriptor, dict(entries), places)
    return tuple(_name(names, value) for tag, value in entries if tag == _NEEDED and value < len(names))


def _entries(data: bytes) -> list[tuple[int, int]]:
    found = []
    for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        tag, value = _ENTRY.unpack_from(data, at)
        if tag == 0:
            break
        found.append((tag, value))
    return found


def _strings(descriptor: int, entries: dict[int, int], places: list[tuple[int, int, int, int]]) -> bytes:
    address, length = entries.get(_STRINGS, -1), min(entries.get(_STRINGS_SIZE, 0), _LIMIT)
    for kind, offset, start, size in places:
        if kind == _LOAD and start <= address < start + size:
            return os.pread(descriptor, length, offset + address - start)
    return b""


def _name(names: bytes, at: int) -> str:
    return names[at:].split(b"\0", 1)[0].decode("utf-8", "replace")
