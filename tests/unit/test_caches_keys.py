"""Claims about files of keys: what they may hold, and that a wrong one is a sentence and trusts nobody."""

from __future__ import annotations

import errno
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from sidecar.caches import keys
from sidecar.caches.signing import Trust
from sidecar.errors import KeysUnusable, Untrusted, UsageError
from tests.fakes.keys import pair

PLACE = ("exact", "k" * 32, "00000001-0123456789abcdef")


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "file"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_several_keys_with_comments_options_and_empty_lines_are_read(tmp_path: Path) -> None:
    ours, theirs = (pair(tmp_path, name).public.read_text() for name in ("ours", "theirs"))
    text = f'# who fills the store\n\n{ours}valid-after="2026-01-01",valid-before="2027-01-01T00:00:00Z" {theirs}'
    first, second = keys.read_trusted(written(tmp_path, text)).values()
    assert (first.after_unix_s, first.before_unix_s) == (0, float("inf"))
    assert second.after_unix_s == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert second.before_unix_s == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("ssh-rsa AAAAB3NzaC1yc2E= old", "line 1, is no Ed25519 public key"),
        ("\nssh-ed25519 AAAAC3Nza cut", "line 2, is cut short"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "begins a private key"),
        (b"\xff\xfe", "not text"),
        ("x" * 2_000_000, "larger than"),
        ('valid-since="2026-01-01" ssh-ed25519 {key}', "has the option valid-since"),
        ('valid-after="tomorrow" ssh-ed25519 {key}', "write a time"),
        (
            'valid-after="2027-01-01" ssh-ed25519 {key}\nssh-ed25519 {key} again',
            "line 2, has a key that an earlier line has",
        ),
        ('valid-after="2027-01-01",valid-after="2020-01-01" ssh-ed25519 {key}', "the same option twice"),
    ],
)
def test_a_file_of_trusted_keys_that_is_not_wholly_understood_trusts_nobody(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    if isinstance(text, str):
        text = text.replace("{key}", pair(tmp_path).public.read_text().split()[1])
    with pytest.raises(KeysUnusable, match=says):
        keys.read_trusted(written(tmp_path, text))


def test_a_missing_file_and_a_folder_are_sentences(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(KeysUnusable, match="WARMUP_TRUSTED_KEYS_FILE"):
            keys.read_trusted(path)
        with pytest.raises(KeysUnusable, match="WARMUP_SIGNING_KEY_FILE"):
            keys.read_signing(path)


def test_a_private_key_that_every_user_can_read_is_not_used(tmp_path: Path) -> None:
    private = pair(tmp_path).private
    assert private.stat().st_mode & 0o777 == 0o600
    private.chmod(0o440)
    assert keys.read_signing(private).name.startswith("SHA256:")
    assert keys.is_open_to_group(private)
    private.chmod(0o444)
    with pytest.raises(KeysUnusable, match="every user"):
        keys.read_signing(private)


def test_a_private_key_of_another_kind_or_with_a_password_is_a_sentence(tmp_path: Path) -> None:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(pem, pkcs8, plain)
    ours = ed25519.Ed25519PrivateKey.generate()
    for data, says in (
        (curve, "another kind of key"),
        (ours.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"x")), "is encrypted"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\ngarbage\n", "holds no private key"),
        (pair(tmp_path).public.read_bytes(), "holds no private key"),
    ):
        with pytest.raises(KeysUnusable, match=says):
            keys.read_signing(written(tmp_path, data))
    assert keys.read_signing(written(tmp_path, ours.private_bytes(pem, pkcs8, plain))).name


def test_keys_are_never_written_over(tmp_path: Path) -> None:
    before = pair(tmp_path).private.read_bytes()
    for taken in ("key", "key.pub"):
        with pytest.raises(UsageError, match="there already"):
            pair(tmp_path)
        (tmp_path / taken).unlink()
        if taken == "key":
            before = b""
    assert before == b""


def test_a_key_that_stands_twice_with_the_same_times_and_a_mark_of_an_editor_are_no_fault(tmp_path: Path) -> None:
    line = pair(tmp_path).public.read_bytes()
    assert len(keys.read_trusted(written(tmp_path, b"\xef\xbb\xbf" + line.replace(b"\n", b"\r\n") + line))) == 1


def test_where_the_public_key_can_not_be_written_no_private_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.pub").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"key\.pub is there already"):
        pair(tmp_path)
    (tmp_path / "key.pub").unlink()
    create = keys.create_exclusively

    def full(path: Path, data: bytes, mode: int) -> None:
        if path.suffix == ".pub":
            raise OSError(errno.ENOSPC, "No space left on device")
        create(path, data, mode)

    monkeypatch.setattr(keys, "create_exclusively", full)
    with pytest.raises(UsageError, match=r"key\.pub can't be written \(No space"):
        pair(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_openssh_makes_the_same_keys_and_gives_them_the_same_names(tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "theirs")], check=True, timeout=30
    )
    mine = pair(tmp_path, "mine").public
    [name] = keys.read_trusted(mine)
    told = subprocess.run(["ssh-keygen", "-l", "-f", str(mine)], check=True, capture_output=True, text=True, timeout=30)
    assert told.stdout.split()[1] == name
    assert [keys.read_signing(tmp_path / "theirs").name] == [*keys.read_trusted(tmp_path / "theirs.pub")]


@pytest.mark.parametrize(
    ("after", "before", "good"), [(0, 99, False), (0, 100, True), (100, 200, True), (101, 200, False)]
)
def test_a_signature_counts_only_in_the_time_for_which_its_key_is_trusted(
    tmp_path: Path, after: float, before: float, good: bool
) -> None:
    ours = keys.read_signing(pair(tmp_path).private)
    signed = Trust({}, ours, lambda: 100.0).signature(PLACE, None, "0" * 64)
    trusted = keys.TrustedKey(ours.name, ours.private.public_key(), after, before)
    reader = Trust({ours.name: trusted}, None, lambda: 300.0)
    if good:
        assert reader.checked(signed, PLACE).signed_unix_s == 100.0
    else:
        with pytest.raises(Untrusted, match="at a time"):
            reader.checked(signed, PLACE)


def test_a_signature_from_the_future_is_refused(tmp_path: Path) -> None:
    ours = keys.read_signing(pair(tmp_path).private)
    signed = Trust({}, ours, lambda: 1_000_000.0).signature(PLACE, None, "0" * 64)
    with pytest.raises(Untrusted, match="at a time to come: the clock"):
        Trust({ours.name: ours.trusted}, None, lambda: 1.0).checked(signed, PLACE)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"signature": 1}', b'{"signature": "AA=="}', b"\xff" * 20])
def test_a_signature_that_is_garbage_is_refused(tmp_path: Path, data: bytes) -> None:
    ours = keys.read_signing(pair(tmp_path).private)
    with pytest.raises(Untrusted, match="can't be read"):
        Trust({ours.name: ours.trusted}, None, lambda: 1.0).checked(data, PLACE)
