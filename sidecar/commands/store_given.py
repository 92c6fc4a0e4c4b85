"""What every `store` command takes: which store it is, and whether JSON is wanted.

What the commands do is in the files beside this one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sidecar.commands.settings_flags import loaded
from sidecar.errors import UsageError

if TYPE_CHECKING:
    from sidecar.caches.messages import StoreMode
    from sidecar.caches.store import Store

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
STORE = click.option(
    "--store", "location", default="", metavar="STORE", help="Directory or bucket's URL; default: WARMUP_STORE."
)


def opened(location: str, mode: StoreMode | None, *, trusting: bool = False) -> Store:
    """Open the store; without a mode as the settings have it. Only asking its clock writes then, see `standing`.

    `trusting`: signatures are looked at as the settings ask for it.
    """
    from sidecar.caches.store import open_store
    from sidecar.caches.trust import KeyFiles, trust

    given = loaded({})
    settings = given.settings
    where = location or settings.store
    if not where:
        wrong = "".join(f" {problem}" for problem in given.problems if "store" in str(problem).lower())
        raise UsageError(f"No store is named: give --store with a directory or s3://, or set WARMUP_STORE.{wrong}")
    store = open_store(where, mode or settings.store_mode, time.sleep)
    if trusting:
        store.trust = trust(
            KeyFiles(str(settings.trusted_keys_file or ""), str(settings.signing_key_file or "")), time.time
        )
    return store
