"""What `check` says of signatures: whether the files of keys can be used, and whether anybody would believe what is published.

Keys are read in `caches/keys.py`; no store is opened here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sidecar.commands.finding import Finding
from sidecar.config import Settings
from sidecar.errors import KeysUnusable


def signatures(settings: Settings) -> Iterator[Finding]:
    """Try the files of keys; nothing to say where none is named."""
    if settings.trusted_keys_file is None and settings.signing_key_file is None:
        return
    from sidecar.caches import keys
    from sidecar.caches.trust import KeyFiles, trust

    files = KeyFiles(str(settings.trusted_keys_file or ""), str(settings.signing_key_file or ""))
    try:
        found = trust(files, time.time)
        known = keys.read_trusted(settings.trusted_keys_file) if settings.trusted_keys_file else {}
    except KeysUnusable as error:
        yield Finding("signatures", "problem", f"{error} Until then nothing is restored or published.")
        return
    if known:
        names = ", ".join(list(known)[:3])
        yield Finding("signatures", "good", f"Only what {names} signed is restored ({len(known)} trusted).")
    if found is not None and settings.store_mode == "read-write" and (refused := found.why_not_publish()):
        yield Finding("signatures", "note" if settings.signing_key_file is None else "problem", refused)
    if settings.signing_key_file is not None:
        yield from _private(settings)


def _private(settings: Settings) -> Iterator[Finding]:
    from sidecar.caches.keys import is_open_to_group, read_signing

    assert settings.signing_key_file is not None
    name = read_signing(settings.signing_key_file).name
    yield Finding("signatures", "good", f"Publishes are signed by {name}.")
    if is_open_to_group(settings.signing_key_file):
        yield Finding(
            "signatures",
            "note",
            f"{settings.signing_key_file} can be read by its group, as Kubernetes' fsGroup has it; who is in that group, the "
            "engine's container perhaps, can sign too: mount it into the sidecar's container only.",
        )
