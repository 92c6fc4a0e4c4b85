"""How the daemon logs: structlog, one event a line, as JSON or as text for a terminal.

No log line is written here; callers ask `get_logger` for a logger, so that structlog is imported here alone.
"""

from __future__ import annotations

import contextlib
import logging
import sys
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


class UnfailingStream:
    """Standard error that drops what can't be written: a full disk or a reader that went away must not end a daemon."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


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
