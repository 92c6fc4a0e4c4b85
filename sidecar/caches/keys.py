"""Keys for signatures as people keep them in files: the one that signs, and those that are trusted.

Both are what `ssh-keygen -t ed25519` makes. What is signed is said in `signing`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sidecar.errors import FileUnreadable, KeysUnusable, UsageError
from sidecar.files import create_exclusively, open_plain

FILE_LIMIT = 1024 * 1024
#: Files of keys hold this many at most: each signature names its key, so more cost nothing but a reader's patience.
KEYS_LIMIT = 1000
PRIVATE_MODE = 0o600
_LINE = re.compile(r'(?P<options>(?:[a-z-]+="[^"]*",?)*)\s*(?P<kind>[a-z0-9@.-]+)\s+(?P<key>[A-Za-z0-9+/=]+)(?:\s+.*)?')
_OPTION = re.compile(r'([a-z-]+)="([^"]*)"')
_TIMES = ("valid-after", "valid-before")


@dataclass(frozen=True)
class TrustedKey:
    """One public key; signatures count if they were made between two times, in seconds since the epoch."""

    name: str
    public: Ed25519PublicKey
    after_unix_s: float = 0.0
    before_unix_s: float = float("inf")


@dataclass(frozen=True)
class SigningKey:
    """The private key that generations are signed with, and the name of its public key."""

    name: str
    private: Ed25519PrivateKey

    @property
    def trusted(self) -> TrustedKey:
        """Give the public key as one to be trusted."""
        return TrustedKey(self.name, self.private.public_key())


def name_of(public: Ed25519PublicKey) -> str:
    """Name a public key as `ssh-keygen -l` does."""
    kind, key = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).split()[:2]
    del kind
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(key)).digest()).decode().rstrip("=")


def read_trusted(path: Path) -> dict[str, TrustedKey]:
    """Read public keys by name: a line each, `ssh-ed25519 KEY COMMENT`, like OpenSSH's authorized_keys.

    Before it may stand `valid-after="TIME"` and `valid-before="TIME"` (ISO 8601, UTC unless it says otherwise), joined by
    a comma. Raises KeysUnusable with a sentence: a file that is not wholly understood trusts nobody.
    """
    found: dict[str, TrustedKey] = {}
    for number, line in enumerate(_text(path, "WARMUP_TRUSTED_KEYS_FILE").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key = _trusted(line.strip(), f"{path}, line {number},")
            if found.setdefault(key.name, key) != key:
                # Whoever revoked it in one of the lines must not find it trusted by the other.
                raise KeysUnusable(
                    f"{path}, line {number}, has a key that an earlier line has with other times; keep one line."
                )
        if len(found) > KEYS_LIMIT:
            raise KeysUnusable(f"{path} holds more than {KEYS_LIMIT} keys.")
    if not found:
        raise KeysUnusable(
            f"{path} holds no key, so nothing in the store is trusted; put lines as `warmup-sidecar store keygen` prints "
            "them into it, or unset WARMUP_TRUSTED_KEYS_FILE."
        )
    return found


def read_signing(path: Path) -> SigningKey:
    """Read the private key: OpenSSH's or PEM form, not encrypted, and closed to other users. Raises KeysUnusable."""
    data = _text(path, "WARMUP_SIGNING_KEY_FILE").encode()
    if is_open_to_others(path):
        raise KeysUnusable(
            f"{path} can be read or written by every user of this machine, so its key is not used; "
            "`chmod o-rwx` it (in a pod: the Secret's defaultMode: 0440 with an fsGroup)."
        )
    load = serialization.load_ssh_private_key if b"BEGIN OPENSSH" in data else serialization.load_pem_private_key
    try:
        private = load(data, None)
    except TypeError as error:
        raise KeysUnusable(
            f"{path} is encrypted; nobody is there to type its password: give a key without one."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeysUnusable(
            f"{path} holds no private key ({error}); `warmup-sidecar store keygen` makes one."
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeysUnusable(f"{path} holds another kind of key; Ed25519 is needed: `ssh-keygen -t ed25519` makes one.")
    return SigningKey(name_of(private.public_key()), private)


def is_open_to_others(path: Path) -> bool:
    """Say whether users outside of a file's group may read or write it. Raises OSError."""
    return bool(stat.S_IMODE(os.stat(path).st_mode) & stat.S_IRWXO)


def is_open_to_group(path: Path) -> bool:
    """Say whether a file's group may read or write it, as Kubernetes' fsGroup has it. Raises OSError."""
    return bool(stat.S_IMODE(os.stat(path).st_mode) & stat.S_IRWXG)


def generate(path: Path, comment: str) -> str:
    """Make a key pair: the private key at `path`, closed to others, the public one beside it as `.pub`; give its line.

    Raises UsageError when one of the two is there, or can't be written.
    """
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    line = f"{private.public_key().public_bytes(*form).decode()} {comment}".strip()
    beside = path.with_name(f"{path.name}.pub")
    # Also a link that leads nowhere, through which nothing is written either.
    if os.path.lexists(beside):
        raise UsageError(f"{beside} is there already; keys are never written over.")
    _create(path, secret, PRIVATE_MODE)
    try:
        _create(beside, f"{line}\n".encode(), 0o644)
    except UsageError:
        with suppress(OSError):
            path.unlink()
        raise
    return line


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        create_exclusively(path, data, mode)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already; keys are never written over.") from error
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}).") from error


def _trusted(line: str, where: str) -> TrustedKey:
    found = _LINE.fullmatch(line)
    if found is None or found["kind"] != "ssh-ed25519":
        if "PRIVATE" in line:
            raise KeysUnusable(
                f"{where} begins a private key; only public ones belong there (the file ending in .pub)."
            )
        raise KeysUnusable(f"{where} is no Ed25519 public key; a line reads `ssh-ed25519 KEY COMMENT`.")
    try:
        public = serialization.load_ssh_public_key(f"ssh-ed25519 {found['key']}".encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeysUnusable(f"{where} is cut short or mistyped ({error}).") from error
    assert isinstance(public, Ed25519PublicKey)
    options = _OPTION.findall(found["options"])
    times = {name: _time(name, value, where) for name, value in options}
    if len(times) < len(options):
        raise KeysUnusable(f"{where} says the same option twice.")
    return TrustedKey(name_of(public), public, times.get("valid-after", 0.0), times.get("valid-before", float("inf")))


def _time(name: str, value: str, where: str) -> float:
    if name not in _TIMES:
        raise KeysUnusable(f"{where} has the option {name}; known are {' and '.join(_TIMES)}.")
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise KeysUnusable(f'{where} has {name}="{value:.40}"; write a time such as 2026-11-29T10:00:00Z.') from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _text(path: Path, setting: str) -> str:
    try:
        with open_plain(path, FILE_LIMIT) as stream:
            # Editors on Windows put a mark before the first line.
            return stream.read().decode("utf-8-sig")
    except FileUnreadable as error:
        raise KeysUnusable(f"{error} Correct {setting}.") from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise KeysUnusable(f"{path} can't be read ({why}); mount it there, or correct {setting}.") from error
