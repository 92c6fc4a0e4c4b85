"""Files that commands make for people to review: printed, or written where nothing is overwritten unasked.

What is in them is decided by the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sidecar.errors import UsageError
from sidecar.files import write_durably

STANDARD_OUTPUT = "-"


def force_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--force`."""
    return click.option("--force", is_flag=True, help="Overwrite files that are there.")(function)


def write_new(texts: Sequence[tuple[str | None, str]], *, force: bool) -> None:
    """Write each text to its file; without one, or to `-`, print it. Raises UsageError before anything is written."""
    files = [(Path(name), text) for name, text in texts if name is not None and name != STANDARD_OUTPUT]
    if len({path for path, _ in files}) < len(files):
        raise UsageError("Two files of the same name would be written; give them different names.")
    for path, _ in files:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"{path} can't be written: {_why(path)}.")
        if path.exists() and not force:
            raise UsageError(f"{path} is there already; add --force to overwrite it, or give another name.")
    for path, text in files:
        try:
            write_durably(path, text.encode())
        except OSError as error:
            raise UsageError(f"{path} can't be written ({error.strerror or error}).") from error
        click.echo(f"{path} is written.", err=True)
    for name, text in texts:
        if name in (None, STANDARD_OUTPUT):
            click.echo(text, nl=False)


def _why(path: Path) -> str:
    return "it is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
