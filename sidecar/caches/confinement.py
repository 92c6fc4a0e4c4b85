"""Which paths and targets of links stay below their family's directory.

Only texts are looked at here, no disk.
"""

from __future__ import annotations

import os
import re

PATH_LIMIT = 1024
NAME_LIMIT = 255
CONFINED = re.compile(r"(?!\.{1,2}(?:/|\Z))[^/\0]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[^/\0]{1,255})*")


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
