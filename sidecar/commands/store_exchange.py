"""`store export` and `store import`: generations carried from one store to another in a file, or as an image.

What a file holds is known in `caches/archive_file.py`, what an image in `caches/kernel_image.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.commands.store_given import JSON, STORE, opened
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError
from sidecar.files import temporary_name

if TYPE_CHECKING:
    from sidecar.caches.archive_file import Brought
    from sidecar.caches.store import Store
    from sidecar.caches.travelling import Place

_KEYS = click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="Beginning of a key; may be repeated. Default: all keys."
)


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@_KEYS
@click.option("--every", is_flag=True, help="Every generation that can be restored, not only the one that would be.")
@click.option("--oci", is_flag=True, help="Write an OCI image into a folder FILE: the kernels of one engine.")
@click.option("--tag", metavar="TAG", help="The image's tag; with --oci only.  [default: latest]")
@STORE
def export(file: Path, keys: tuple[str, ...], every: bool, oci: bool, tag: str | None, location: str) -> int:
    """Write generations into one FILE, with archives, signatures and facts, for a store that can't be reached from here.

    It is a tar whose archives are checked while they are copied; unpacked into an empty directory it is a store. With --oci
    it is a folder in the form of an OCI image layout, which `skopeo copy oci:FILE:TAG docker://…` brings to a registry.

    \b
    Examples:
      warmup-sidecar store export kernels.tar
      warmup-sidecar store export kernels.tar --key 60e1c2 --key 7f00aa
      warmup-sidecar store export kernels-image --oci --key 60e1c2
    """
    if oci and every:
        raise UsageError("--every and --oci don't go together: an image holds the newest kernels of one engine.")
    if tag is not None and not oci:
        raise UsageError("--tag is the tag of an image: it goes with --oci only.")
    store = opened(location, "read-only", trusting=True)
    if oci:
        return _export_image(store, file, keys, "latest" if tag is None else tag)
    from sidecar.caches.archive_file import export as write
    from sidecar.caches.travelling import chosen
    from sidecar.web import words

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
    _list(places)
    click.echo(f"{len(places)} generations with {words.size(size)} of archives are in {file}.")
    return EXIT_OK


def _export_image(store: Store, folder: Path, keys: tuple[str, ...], tag: str) -> int:
    from sidecar.caches.kernel_image import chosen
    from sidecar.caches.kernel_image import export as write
    from sidecar.caches.oci_layout import TAG
    from sidecar.web import words

    if not TAG.fullmatch(tag):
        raise UsageError(f"{tag!r:.140} is no tag: up to 128 letters, digits and ._- after a letter, a digit or _.")
    places = chosen(store, keys)
    try:
        with progress("writing archives") as advance:
            digest, size = write(store, places, folder, tag, advance)
    except OSError as error:
        raise UsageError(f"{folder} can't be written ({error.strerror}).") from error
    _list(places)
    click.echo(f"The image {digest[:19]} with {words.size(size)} of kernels is in {folder}, tagged {tag}.")
    return EXIT_OK


def _list(places: Sequence[Place]) -> None:
    for scope, key, name in places:
        click.echo(f"{scope} {key[:12]}/{name}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as-candidates", is_flag=True, help="Leave out how boots went where it comes from: it is proven anew here."
)
@STORE
@JSON
def bring(file: Path, as_candidates: bool, location: str, as_json: bool) -> int:
    """Take what FILE holds into the store. Done twice it is done once; cut short, nothing of it can be seen.

    FILE is what `store export` wrote, or a folder with an image of it, such as `skopeo copy docker://… oci:FILE` makes.
    Every byte is checked before anything is visible; with WARMUP_TRUSTED_KEYS_FILE set the signatures, too. Exit 3 when a
    generation of the same name and other contents is there: two stores that were filled on their own can't be joined so.

    \b
    Example:
      warmup-sidecar store import kernels.tar --store /mnt/store
    """
    from sidecar.caches import archive_file, kernel_image, oci_layout

    store = opened(location, "read-write", trusting=True)
    try:
        is_image = oci_layout.is_layout(file)
        if file.is_dir() and not is_image:
            raise UsageError(
                f"{file} is a folder, and no OCI image layout: it has no file `oci-layout`. A store is exported first."
            )
        if is_image:
            with progress("reading archives") as advance:
                found = kernel_image.bring(store, file, advance, boots=not as_candidates)
        else:
            with open(file, "rb") as source, progress("reading archives") as advance:
                found = archive_file.bring(store, source, advance, boots=not as_candidates)
    except OSError as error:
        raise UsageError(f"{file} can't be read ({error.strerror}).") from error
    if as_json:
        click.echo(json.dumps([each.to_json() for each in found], indent=1))
    else:
        for each in found:
            _tell(each)
    return EXIT_NOT_SO if any(each.outcome == "conflict" for each in found) else EXIT_OK


def _tell(each: Brought) -> None:
    told = {
        "imported": "is imported",
        "there": "is there already",
        "conflict": "is NOT imported: the store has another generation of this name",
    }
    place = f"{each.key[:12]}/{each.name}"
    click.echo(f"{each.scope} {place} {told[each.outcome]}.")
    if each.quarantined:
        click.echo(f"It is quarantined in this store; `warmup-sidecar store unquarantine {place}` lets it be used.")


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar over bytes on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    with Progress("{task.description}", BarColumn(), DownloadColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
