"""What a restore without the launcher leaves for the next daemon of the pod: an init container's for the sidecar, a
sidecar's for the one that is started after it.

Nothing is restored here, and what is read is only what a restore said of itself.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sidecar.caches.client import RestoreResult
from sidecar.errors import FileUnreadable
from sidecar.files import read_json, write_json_durably

NAME = "restored.json"
RELEASED = "released"
FORMAT = 1


def leave(control: Path, host_boot: str, result: RestoreResult | None) -> None:
    """Write down how the restore ended (None: it was given up), and that from now on an engine may run. Raises OSError."""
    if result is None:
        (control / NAME).unlink(missing_ok=True)
    else:
        # Without what was to be done with its files: it is done.
        said = replace(result, commit=(), clear=(), claims=()).to_json()
        write_json_durably(control / NAME, {"format": FORMAT, "host_boot": host_boot, "result": said})
    (control / RELEASED).write_text(host_boot, encoding="ascii")


def released(control: Path, host_boot: str) -> bool:
    """Say whether an earlier daemon already let an engine start here, so that it may be running without answering.

    Not before a restart of the node: a volume of the pod outlives that, an engine doesn't.
    """
    try:
        return (control / RELEASED).read_text(encoding="ascii") in ("", host_boot)
    except (OSError, ValueError):
        return False


def left(control: Path, host_boot: str) -> RestoreResult | None:
    """Read how an earlier restore ended. None: there was none, it can't be read, or the node was restarted since."""
    with suppress(OSError, FileUnreadable, ValueError):
        said = read_json(control / NAME)
        if said.get("format") == FORMAT and said.get("host_boot") == host_boot:
            return replace(RestoreResult.from_json(said.get("result")), commit=(), clear=(), claims=())
    return None
