"""`store keygen` and `store sign`: a pair of keys, and signatures for what lies in the store already.

What a signature says is known in `caches/signing.py`; `store verify` checks them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.commands.settings_flags import loaded
from sidecar.commands.store_given import STORE, opened
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, KeysUnusable, StoreDamaged, Untrusted, UsageError

if TYPE_CHECKING:
    from sidecar.caches.signing import Trust
    from sidecar.caches.store import Store


@click.command("keygen")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--comment", default="warmup-sidecar", help="What is written behind the public key, for people.")
def keygen(file: Path, comment: str) -> int:
    """Make a pair of Ed25519 keys: FILE, for the Job that fills the store alone, and FILE.pub, for every pod.

    `ssh-keygen -t ed25519 -N ''` makes the same.

    \b
    Example:
      warmup-sidecar store keygen signing-key
      kubectl create secret generic warmup-signing-key --from-file=signing-key
      kubectl create configmap warmup-trusted-keys --from-file=trusted-keys=signing-key.pub
    """
    from sidecar.caches.keys import generate

    if not comment.isprintable():
        raise UsageError("The comment must be one line.")
    line = generate(file, comment)
    click.echo(f"{file} holds the private key, only its owner can read it; this line goes into the trusted keys:")
    click.echo(line)
    return EXIT_OK


@click.command("sign")
@click.argument("generations", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every generation that this key has not signed yet.")
@click.option(
    "--key", "key_file", type=click.Path(path_type=Path), help="The private key; default: WARMUP_SIGNING_KEY_FILE."
)
@STORE
def sign(generations: tuple[str, ...], every: bool, key_file: Path | None, location: str) -> int:
    """Sign GENERATIONS that are there already: who signs says that their publisher is believed.

    For the first key of a store, and when keys are changed: trust both, sign anew, trust the new one alone. A signature that is
    there is replaced. With WARMUP_TRUSTED_KEYS_FILE set, --all signs only what one of those keys vouches for, and the rest is
    named: somebody who can write the store, and no more, may have put it there.

    \b
    Examples:
      warmup-sidecar store sign 60e1c2/00000003 --key signing-key
      warmup-sidecar store sign --all
    """
    from sidecar.caches.inspection import find
    from sidecar.caches.ownership import SCOPES
    from sidecar.caches.trust import KeyFiles, trust

    settings = loaded({}).settings
    named = key_file or settings.signing_key_file
    if named is None:
        raise UsageError("No key is named: give --key FILE, or set WARMUP_SIGNING_KEY_FILE; `store keygen` makes one.")
    if every == bool(generations):
        raise UsageError("Name the generations to sign, or give --all.")
    store = opened(location, "read-write")
    signer = trust(KeyFiles(signing=str(named.absolute())), time.time)
    assert signer is not None
    known = str(settings.trusted_keys_file or "")
    believed = trust(KeyFiles(known, str(named.absolute())), time.time) if known else None
    if believed and (why := believed.why_not_believed()):
        raise KeysUnusable(f"Nothing is signed. {why}")
    places = (
        [(scope, key, name) for scope in SCOPES for key in store.keys(scope) for name in store.generations(scope, key)]
        if every
        else [find(store, wanted) for wanted in generations]
    )
    bad = sum(not _signed(store, signer, place, every, believed if every else None) for place in places)
    return EXIT_NOT_SO if bad else EXIT_OK


def _signed(store: Store, signer: Trust, place: tuple[str, str, str], skip: bool, vouching: Trust | None) -> bool:
    from sidecar.caches.signing import sign_again

    scope, key, name = place
    try:
        made = sign_again(store, signer, place, skip, vouching)
    except Untrusted as error:
        click.echo(f"{scope}/{key[:12]}/{name} is not signed: {error} If you believe it, sign it by its name.")
        return False
    except StoreDamaged as error:
        click.echo(f"{scope}/{key[:12]}/{name} is not signed: {error}")
        return False
    click.echo(f"{scope}/{key[:12]}/{name} is signed{'' if made else ' already'}.")
    return True
