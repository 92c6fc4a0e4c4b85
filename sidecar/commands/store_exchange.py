"""`store export` and `store import`: generations carried from one store to another in a file.

What such a file holds is known in `caches/archive_file.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from sidecar.commands.store_given import JSON, STORE, opened
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError
from sidecar.files import temporary_name

_KEYS = click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="Beginning of a key; may be repeated. Default: all keys."
)


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@_KEYS
@click.option("--every", is_flag=True, help="Every generation that can be restored, not only the one that would be.")
@STORE
def export(file: Path, keys: tuple[str, ...], every: bool, location: str) -> int:
    """Write generations into one FILE, with archives, signatures and facts, for a store that can't be reached from here.

    It is a tar whose archives are checked while they are copied; unpacked into an empty directory it is a store.

    \b
    Examples:
      warmup-sidecar store export kernels.tar
      warmup-sidecar store export kernels.tar --key 60e1c2 --key 7f00aa
    """
    from sidecar.caches.archive_file import chosen
    from sidecar.caches.archive_file import export as write
    from sidecar.web import words

    store = opened(location, "read-only", trusting=True)
    places = chosen(store, keys, every)
    temporary = temporary_name(file.absolute())
    try:
        with open(temporary, "xb") as target, progress("writing archives") as advance:
            size = write(store, places, target, advance)
            target.flush()
            os.fsync(target.fileno())
        os.replace(temporary, file)
    except OSError as error:
        raise UsageError(f"{file} can't be written ({error.strerror}).") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    for scope, key, name in places:
        click.echo(f"{scope} {key[:12]}/{name}")
    click.echo(f"{len(places)} generations with {words.size(size)} of archives are in {file}.")
    return EXIT_OK


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as-candidates", is_flag=True, help="Leave out how boots went where it comes from: it is proven anew here."
)
@STORE
@JSON
def bring(file: Path, as_candidates: bool, location: str, as_json: bool) -> int:
    """Take what FILE holds into the store. Done twice it is done once; cut short, nothing of it can be seen.

    Every byte is checked before anything is visible; with WARMUP_TRUSTED_KEYS_FILE set the signatures, too. Exit 3 when a
    generation of the same name and other contents is there: two stores that were filled on their own can't be joined so.

    \b
    Example:
      warmup-sidecar store import kernels.tar --store /mnt/store
    """
    from sidecar.caches.archive_file import bring as take

    store = opened(location, "read-write", trusting=True)
    try:
        with open(file, "rb") as source, progress("reading archives") as advance:
            found = take(store, source, advance, boots=not as_candidates)
    except OSError as error:
        raise UsageError(f"{file} can't be read ({error.strerror}).") from error
    if as_json:
        click.echo(json.dumps([each.to_json() for each in found], indent=1))
    else:
        told = {
            "imported": "is imported",
            "there": "is there already",
            "conflict": "is NOT imported: the store has another generation of this name",
        }
        for each in found:
            click.echo(f"{each.scope} {each.key[:12]}/{each.name} {told[each.outcome]}.")
    return EXIT_NOT_SO if any(each.outcome == "conflict" for each in found) else EXIT_OK


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar over bytes on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    with Progress("{task.description}", BarColumn(), DownloadColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
