"""How the daemon logs: structlog, one event a line, as JSON or as text for a terminal.

No log line is written here; callers ask `get_logger` for a logger, so that structlog is imported here alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal, TextIO, cast


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """Keep structlog from importing rich, which it would use for tracebacks on terminals: 4 MiB in every daemon."""
    absent = "rich" not in sys.modules
    if absent:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["rich"]


with _without_rich():
    import structlog

LogFormat = Literal["json", "text"]


#: So much is kept for a reader of the log that has stopped reading. Characters.
KEPT = 1 << 18
#: A reader that takes no line for so long is waited for no more, until it has read on. Seconds.
READ_S = 0.2


class UnfailingStream:
    """Standard error that drops what can't be written: a full disk or a reader that went away must not end a daemon.

    Nor may a reader hold it that has stopped reading, as a container runtime's may: a pipe is full then, and a write waits.
    So a thread writes. Each line is waited for, that none is missing when a process is killed, until one was not taken.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._turn = threading.Condition()
        self._begun = self._kept = ""
        self._lost = 0
        self._writing = self._stalled = False
        if self._descriptor is not None:
            # Its end is not waited for: it may hang in a write.
            threading.Thread(target=self._write_on, args=(self._descriptor,), name="log", daemon=True).start()

    def write(self, text: str) -> int:
        """Write, or drop."""
        if self._descriptor is None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
            return len(text)
        with self._turn:
            lines, end, self._begun = (self._begun + text).rpartition("\n")
            if len(self._kept) + len(lines) > KEPT:
                self._lost += lines.count("\n") + len(end)
            else:
                self._kept += lines + end
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        if self._descriptor is None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()
            return
        with self._turn:
            self._turn.notify_all()
            if not self._stalled and threading.current_thread().name != "log":
                self._stalled = not self._turn.wait_for(lambda: not (self._kept or self._writing), READ_S)

    def _write_on(self, descriptor: int) -> None:
        """Write what is kept, again and again; after a pause say how much is missing."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._kept)
                text, self._kept, self._writing = self._kept, "", True
            rest = text.encode("utf-8", "backslashreplace")
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            with self._turn:
                lost, self._lost, self._writing = self._lost, 0, False
                self._stalled = self._stalled and bool(self._kept)
                self._turn.notify_all()
            if lost:
                get_logger().warning("nobody read the log for a while, so lines are missing here", lines=lost)


def _descriptor(stream: TextIO) -> int | None:
    """Give what the operating system knows a stream by; None for one in memory or none at all."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return stream.fileno()
    return None


def get_logger(name: str = "") -> Any:
    """Give a logger; `name` says which part of the sidecar speaks."""
    return structlog.get_logger(name) if name else structlog.get_logger()


def configure(log_format: LogFormat, level: str) -> None:
    """Send structlog's and the standard library's records to standard error in one format.

    Standard error, so that a command's standard output stays machine-readable. `level` is a name of `logging`.
    """
    stream = UnfailingStream(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stream)),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=stream, format="%(levelname)s %(message)s", force=True
    )
