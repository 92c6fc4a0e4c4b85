"""The facts that a restore went by, left beside the marker in the live cache so that `store explain` finds them later.

They outlive the control directory, which is temporary where the daemon starts the engine itself. No decision is made of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.errors import FileUnreadable
from sidecar.files import FILE_MODE, json_bytes, open_shared, read_json, temporary_name

NAME = ".warmup-facts.json"


def leave(live_cache: Path | str, facts: Mapping[str, Any]) -> None:
    """Leave the facts of this start; without them only an explanation is lost, so nothing is raised or waited for."""
    path = Path(live_cache, NAME)
    temporary = temporary_name(path)
    with contextlib.suppress(OSError, ValueError):
        try:
            descriptor = open_shared(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
            with open(descriptor, "wb") as stream:
                stream.write(json_bytes(facts))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def left(live_cache: Path | str) -> dict[str, Any] | None:
    """Read what was left; None when there is nothing, or nothing that can be read."""
    try:
        return read_json(Path(live_cache, NAME))
    except (OSError, FileUnreadable):
        return None
