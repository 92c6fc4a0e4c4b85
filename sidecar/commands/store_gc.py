"""`store gc`: clean the store up by the limits of the settings, and say what goes and why.

What may go is decided in `caches/retention.py`; in which order, in `caches/cleaning.py`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.settings_flags import loaded, settings_options
from sidecar.commands.store_given import JSON, STORE, opened
from sidecar.errors import EXIT_NOT_SO, EXIT_OK

if TYPE_CHECKING:
    from sidecar.caches.cleaning import Cleaned

FIELDS = ("store_keep_count", "store_keep_age_s", "store_keep_unused_s", "store_limit_bytes", "store_grace_s")


@click.command("gc")
@click.option("--dry-run", "dry", is_flag=True, help="Remove nothing; say what would go.")
@settings_options(*FIELDS)
@STORE
@JSON
def gc(dry: bool, location: str, as_json: bool, **arguments: Any) -> int:
    """Remove generations that the limits don't keep, and archives and temporary files that nobody needs.

    An archive goes in a later run than the generation that needed it last: after the grace time, so that no restore loses
    what it reads. Never removed are the newest generation of a key and its newest proven one (but for keys that are unused for
    longer than allowed), and what a pod tries at the moment. Exit 3 when the store is over its limit all the same.

    \b
    Examples:
      warmup-sidecar store gc --dry-run --store-keep-count 3
      warmup-sidecar store gc --store-keep-age-s 2592000 --store-limit-bytes 200Gi
    """
    from sidecar.caches.cleaning import clean
    from sidecar.caches.retention import limits_of

    settings = loaded(arguments).or_raise()
    store = opened(location, "read-write", trusting=True)
    found = clean(store, limits_of(settings), dry=dry, now=time.time)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        _tell(found, dry)
    return EXIT_NOT_SO if found.bytes_over else EXIT_OK


def _tell(found: Cleaned, dry: bool) -> None:
    from sidecar.web import words

    for one in found.generations:
        freed = f", frees {words.size(one.bytes)}" if one.bytes else ""
        click.echo(f"{one.scope} {one.key[:12]}/{one.name}: {one.reason}{freed}")
    would = "would be " if dry else ""
    click.echo(
        f"{len(found.generations)} generations, {len(found.keys)} whole keys and {found.packs} archives "
        f"({words.size(found.bytes)}) {would or 'were '}removed."
    )
    if found.waiting:
        click.echo(
            f"{found.waiting} archives ({words.size(found.waiting_bytes)}) are out of use and go with a run after the grace time."
        )
    click.echo(f"What is kept takes {words.size(found.bytes_kept)}.")
    if found.bytes_over:
        click.echo(
            f"That is {words.size(found.bytes_over)} over the limit: what is left is the last of its key, young, or in use. "
            "Raise the limit, or let unused keys go (WARMUP_STORE_KEEP_UNUSED_S)."
        )
    if found.trouble:
        click.echo(found.trouble)
