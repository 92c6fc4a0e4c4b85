"""Signatures of generations: what is signed, and what must hold before a manifest is believed.

A signature binds the manifest's bytes to its scope, key, name and parent, and to a time. The bytes of kernels are bound by
the digests in the manifest, which a restore checks one by one. Files of keys are read in `keys`; that `cryptography` is loaded
only where signatures are wanted is seen to in `trust`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from cryptography.exceptions import InvalidSignature

from sidecar.caches import manifest as manifests
from sidecar.caches.keys import SigningKey, TrustedKey
from sidecar.caches.manifest import Manifest
from sidecar.errors import StoreDamaged, Unsigned, Untrusted

if TYPE_CHECKING:
    from sidecar.caches.fingerprint import KeyScope
    from sidecar.caches.store import Store

FORMAT = 1
#: What is signed begins with these words, so that no signature made for another purpose can be taken for one of these.
PURPOSE = b"warmup-sidecar: generation of a kernel cache, signature format 1\n"
CHUNK = 1 << 20
#: A clock that is ahead of ours by more than this is wrong; one that is behind can't be told from a slow publish.
SKEW_S = 86400.0

Place = tuple[str, str, str]


@dataclass(frozen=True)
class Signed:
    """What a signature says, once it is known to be a trusted key's and for this place."""

    name: str
    parent: str | None
    manifest_sha256: str
    signed_unix_s: float
    signer: str


class Trust:
    """Whose generations are believed, and who signs those that are published here. `now` is in seconds since the epoch."""

    def __init__(
        self, keys: Mapping[str, TrustedKey], signer: SigningKey | None, now: Callable[[], float], keys_from: str = ""
    ) -> None:
        # Who signs must not build on what nobody vouched for: his signature would cover it.
        own = {signer.name: signer.trusted} if signer and not keys else {}
        self._keys = {**keys, **own}
        self._signer = signer
        self._now = now
        self._keys_from = keys_from

    def why_not_publish(self) -> str:
        """Say why what is published here would be refused by everybody else; empty when it would not."""
        if self._signer is None:
            return (
                "Only signed generations are believed here (WARMUP_TRUSTED_KEYS_FILE) and there is no key to sign with, so nothing "
                "is published: leave that to the Job that has WARMUP_SIGNING_KEY_FILE."
            )
        if why := self.why_not_believed():
            return f"{why} So nothing is published."
        return ""

    def why_not_believed(self) -> str:
        """Say why what is signed here now would be refused by everybody else; empty when it would not. There must be a key."""
        assert self._signer is not None
        key = self._keys.get(self._signer.name)
        if key is None:
            return (
                f"The key that signs, {self._signer.name}, is not among those of {self._keys_from}: nobody would believe it. "
                "Add its public key there."
            )
        if not key.after_unix_s <= self._now() <= key.before_unix_s:
            return f"{self._keys_from} does not trust {self._signer.name} at this time."
        return ""

    def checked(self, data: bytes | None, place: Place) -> Signed:
        """Check the signature of the generation at a place (scope, key, name). Raises Unsigned or Untrusted."""
        name = place[2]
        if data is None:
            raise Unsigned(f"Generation {name} is not signed, and WARMUP_TRUSTED_KEYS_FILE asks for signatures.")
        said, signature = _parsed(data, name)
        key = self._keys.get(said["signer"])
        if key is None:
            raise Untrusted(
                f"Generation {name} is signed by {said['signer']:.60}, which is not among the trusted keys."
            )
        try:
            key.public.verify(signature, _message(said))
        except InvalidSignature:
            raise Untrusted(f"Generation {name} has a signature that {key.name} did not make.") from None
        if (said["scope"], said["key"], said["name"]) != place:
            raise Untrusted(
                f"Generation {name} has the signature of another one, {said['scope']:.20}/{said['key']:.12}/{said['name']:.30}."
            )
        made = said["signed_unix_s"]
        if made > self._now() + SKEW_S:
            raise Untrusted(
                f"Generation {name} was signed by {key.name} at a time to come: the clock of this machine is wrong, or that of the "
                "one that signed."
            )
        if not key.after_unix_s <= made <= key.before_unix_s:
            raise Untrusted(f"Generation {name} was signed by {key.name} at a time at which that key is not trusted.")
        return Signed(name, said["parent"], said["manifest_sha256"], made, key.name)

    def read(
        self, stream: BinaryIO, signature: bytes | None, place: Place, on_packs: manifests.OnPacks = manifests.unheard
    ) -> Manifest:
        """Read a manifest that its signature vouches for, byte by byte. Raises Untrusted, and as `manifest.read` does.

        `on_packs` hears of packs that nobody has vouched for yet.
        """
        signed = self.checked(signature, place)
        tapped = Tapped(stream)
        found = manifests.read(cast(BinaryIO, tapped), on_packs)
        tapped.drain()
        if tapped.digest != signed.manifest_sha256:
            raise Untrusted(f"The manifest of generation {signed.name} is not the one that was signed.")
        if found.parent != signed.parent:
            raise Untrusted(f"Generation {signed.name} says that it builds on another one than was signed.")
        return found

    @property
    def signs(self) -> bool:
        """Say whether there is a key to sign with."""
        return self._signer is not None

    def signature(self, place: Place, parent: str | None, manifest_sha256: str) -> bytes:
        """Sign a generation; only where there is a key to sign with."""
        assert self._signer is not None
        said = {
            "format": FORMAT,
            "scope": place[0],
            "key": place[1],
            "name": place[2],
            "parent": parent,
            "manifest_sha256": manifest_sha256,
            "signed_unix_s": round(self._now(), 3),
            "signer": self._signer.name,
        }
        signature = self._signer.private.sign(_message(said))
        return json.dumps({**said, "signature": base64.b64encode(signature).decode()}, indent=1).encode() + b"\n"


def sign_again(store: Store, trust: Trust, place: Place, skip: bool, vouching: Trust | None = None) -> bool:
    """Sign a generation that lies in a store; False when it was signed by this key already and `skip` says to leave it then.

    Its manifest is read and checked, its archives are not. With `vouching` it must be believed already. Raises StoreDamaged when
    there is no manifest that could be used, and Untrusted.
    """
    scope, key, name = cast("tuple[KeyScope, str, str]", place)
    if skip:
        # One that can't be read is replaced like any other.
        with suppress(StoreDamaged):
            trust.checked(store.signature(scope, key, name), place)
            return False
    stream = store.open_manifest(scope, key, name)
    if stream is None:
        raise StoreDamaged(f"Generation {name} has no manifest: its publisher died, or is at work.")
    with stream:
        tapped = Tapped(stream)
        read = cast(BinaryIO, tapped)
        found = vouching.read(read, store.signature(scope, key, name), place) if vouching else manifests.read(read)
        tapped.drain()
    if (found.scope, found.key, found.name) != place:
        raise StoreDamaged(f"Generation {name} says that it is {found.scope}/{found.key}/{found.name:.60}.")
    store.write_signature(scope, key, name, trust.signature(place, found.parent, tapped.digest))
    return True


class Tapped:
    """A stream whose bytes are digested as they are read, with what `manifest.read` asks of one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Give the SHA-256 of what was read so far."""
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
        return self._noted(self._stream.read(size))

    def readline(self, size: int = -1) -> bytes:
        """Read a line."""
        return self._noted(self._stream.readline(size))

    def readlines(self, hint: int = -1) -> list[bytes]:
        """Read whole lines, about `hint` bytes of them."""
        return [self._noted(line) for line in self._stream.readlines(hint)]

    def drain(self) -> None:
        """Read what is left."""
        while self.read(CHUNK):
            continue

    def _noted(self, data: bytes) -> bytes:
        self._digest.update(data)
        return data


def _message(said: Mapping[str, Any]) -> bytes:
    return PURPOSE + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def _parsed(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    try:
        said = json.loads(data)
        signature = base64.b64decode(said.pop("signature"), validate=True)
        texts = [said[field] for field in ("scope", "key", "name", "manifest_sha256", "signer")]
        parent, made = said["parent"], said["signed_unix_s"]
        if type(made) not in (int, float) or not all(isinstance(one, str) for one in (*texts, parent or "")):
            raise ValueError("a field of another kind")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise Untrusted(f"Generation {name} has a signature that can't be read ({type(error).__name__}).") from error
    if said.get("format") != FORMAT:
        raise Untrusted(
            f"Generation {name} has a signature of format {said.get('format')!r:.20}; this version reads {FORMAT}."
        )
    return said, signature
