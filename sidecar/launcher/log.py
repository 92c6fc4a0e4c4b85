"""What the launcher says to whoever reads the container's log; no file is written here."""

from __future__ import annotations

import contextlib
import os


def say(text: str) -> None:
    """Print one sentence for whoever reads the container's log."""
    with contextlib.suppress(OSError):
        os.write(2, f"warmup launcher: {text}\n".encode("utf-8", "replace"))
