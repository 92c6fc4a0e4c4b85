"""What the launcher says to whoever reads the container's log; no file is written here."""

from __future__ import annotations

import contextlib
import os
import threading

#: A reader that has stopped reading leaves a full pipe; the engine must not wait for it. Seconds.
READ_S = 1.0


def say(text: str) -> None:
    """Print one sentence for whoever reads the container's log."""
    line = f"warmup launcher: {text}\n".encode("utf-8", "replace")
    saying = threading.Thread(target=_write, args=(line,), daemon=True)
    try:
        saying.start()
    except RuntimeError:
        # No thread is to be had, so the sentence is worth the risk.
        _write(line)
    else:
        saying.join(READ_S)


def _write(line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line)
