"""Signatures, cleaning up and export hold whatever a store is kept in: a directory, and a bucket of a real server."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from sidecar.caches import archive_file
from sidecar.caches.bucket import BucketStore
from sidecar.caches.cleaning import clean
from sidecar.caches.manifest import Manifest, generation_name
from sidecar.caches.messages import Limits
from sidecar.caches.signing import sign_again
from sidecar.caches.store import Store, open_store
from sidecar.caches.travelling import chosen
from sidecar.caches.trust import KeyFiles, trust
from sidecar.errors import Unsigned, Untrusted
from tests.fakes.keys import Pair, pair
from tests.faults.test_store_media import packed

KEY = "0123456789abcdef" * 2


def a_generation(sequence: int, by: str = "test") -> Manifest:
    name = generation_name("exact", KEY, sequence)
    return Manifest(scope="exact", key=KEY, name=name, parent=None, created_unix_s=1.0, created_by=by)


SIGNED, PLANTED = a_generation(1), a_generation(2, "somebody")


@pytest.fixture
def keys(tmp_path: Path) -> Pair:
    return pair(tmp_path)


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "bucket":
        location = str(request.getfixturevalue("bucket"))
    else:
        (tmp_path / "store").mkdir()
        location = str(tmp_path / "store")
    return open_store(location, "read-write", lambda _s: None)


def signing(keys: Pair) -> KeyFiles:
    return KeyFiles(str(keys.public), str(keys.private))


def test_a_signed_generation_is_read_back_and_a_planted_one_is_refused(store: Store, keys: Pair) -> None:
    store.trust = trust(signing(keys), time.time)
    store.create_generation(SIGNED)
    store.trust = None
    store.create_generation(PLANTED)
    store.trust = trust(KeyFiles(trusted=str(keys.public)), time.time)
    assert store.read_manifest("exact", KEY, SIGNED.name) == SIGNED
    with pytest.raises(Unsigned):
        store.read_manifest("exact", KEY, PLANTED.name)
    signature = store.signature("exact", KEY, SIGNED.name)
    assert signature is not None
    store.write_signature("exact", KEY, PLANTED.name, signature)
    with pytest.raises(Untrusted, match="another one"):
        store.read_manifest("exact", KEY, PLANTED.name)


def test_old_generations_go_then_their_archives_and_the_newest_stays(store: Store) -> None:
    orphan = store.add_pack(packed(b"nobody's"))
    for sequence in (1, 2, 3):
        store.create_generation(a_generation(sequence))
    limits = Limits(grace_s=0.0, count=1)
    assert len(clean(store, limits, dry=True, now=time.time).generations) == 2
    first = clean(store, limits, dry=False, now=time.time)
    assert (len(first.generations), first.packs, first.waiting) == (2, 0, 1)
    # Some servers go on listing a folder that is empty.
    assert store.generations("exact", KEY)[0] == a_generation(3).name
    left = [store.read_manifest("exact", KEY, a_generation(sequence).name) for sequence in (1, 2, 3)]
    assert left == [None, None, a_generation(3)]
    assert clean(store, limits, dry=False, now=time.time).packs == 1
    assert store.pack_bytes(orphan.digest) is None


def test_an_archive_that_a_publisher_finds_of_use_again_is_young(store: Store) -> None:
    pack = store.add_pack(packed(b"long out of use"))

    def age_s() -> float:
        return store.packs()[pack.digest].age_s

    # A bucket's clock shows whole seconds.
    while age_s() < 2:
        time.sleep(0.2)
    store.add_pack(packed(b"long out of use"))
    assert age_s() < 2


def test_a_store_can_be_carried_in_a_file_from_and_to_it(store: Store, keys: Pair, tmp_path: Path) -> None:
    store.trust = trust(signing(keys), time.time)
    store.create_generation(SIGNED)
    file = io.BytesIO()
    archive_file.export(store, chosen(store, (), False), file, lambda _done, _total: None)
    (tmp_path / "there").mkdir()
    there = open_store(str(tmp_path / "there"), "read-write", lambda _s: None)
    there.trust = trust(KeyFiles(trusted=str(keys.public)), time.time)
    for outcome in ("imported", "there"):
        file.seek(0)
        [found] = archive_file.bring(there, file, lambda _done, _total: None)
        assert found.outcome == outcome
    file.seek(0)
    # A bucket can't tell a name that is taken by the same bytes from a request of ours that arrived twice.
    assert archive_file.bring(store, file, lambda _done, _total: None)[0].outcome in ("there", "imported")
    assert there.read_manifest("exact", KEY, SIGNED.name) == SIGNED


def carried(store: Store) -> io.BytesIO:
    file = io.BytesIO()
    archive_file.export(store, chosen(store, (), False), file, lambda _done, _total: None)
    file.seek(0)
    return file


def test_what_was_removed_because_it_must_not_be_used_is_quarantined_when_it_is_imported_again(store: Store) -> None:
    store.create_generation(SIGNED)
    file = carried(store)
    store.quarantine("exact", KEY, SIGNED.name, {"reason": "wrong output"})
    store.create_generation(a_generation(2))
    for _ in range(2):
        clean(store, Limits(grace_s=0.0, count=1), dry=False, now=time.time)
    assert store.quarantined("exact", KEY) == set()
    [found] = archive_file.bring(store, file, lambda _done, _total: None)
    assert (found.outcome, found.quarantined) == ("imported", True)
    assert store.quarantined("exact", KEY) == {SIGNED.name}


def test_a_new_signature_is_imported_beside_what_is_there(store: Store, keys: Pair, tmp_path: Path) -> None:
    store.trust = trust(signing(keys), time.time)
    store.create_generation(SIGNED)
    new, both = pair(tmp_path, "new"), tmp_path / "both"
    both.write_text(keys.public.read_text() + new.public.read_text())
    signer = trust(signing(new), lambda: time.time() + 60)
    assert signer is not None
    old = store.signature("exact", KEY, SIGNED.name)
    sign_again(store, signer, ("exact", KEY, SIGNED.name), skip=False)
    store.trust = trust(KeyFiles(trusted=str(both)), time.time)
    file = carried(store)
    assert old is not None
    store.write_signature("exact", KEY, SIGNED.name, old)
    assert archive_file.bring(store, file, lambda _done, _total: None)[0].outcome == "there"
    store.trust = trust(KeyFiles(trusted=str(new.public)), time.time)
    assert store.read_manifest("exact", KEY, SIGNED.name) == SIGNED


def test_a_key_that_is_removed_leaves_a_remembered_fallback_and_nothing_else(store: Store) -> None:
    store.create_generation(SIGNED)
    store.write_head(SIGNED)
    store.record_boot("exact", KEY, f"{SIGNED.name}.ready.x", {"outcome": "ready"})
    store.remember_fallback("exact", KEY, "a", {"change": "--kv-cache-dtype auto"})
    store.remove_key("exact", KEY)
    assert store.read_manifest("exact", KEY, SIGNED.name) == SIGNED
    store.remove_generation("exact", KEY, SIGNED.name)
    store.remove_key("exact", KEY)
    assert store.boot_ends("exact", KEY) == {}
    assert [each["change"] for each in store.fallbacks("exact", KEY)] == ["--kv-cache-dtype auto"]
    assert store.lift_fallbacks("exact", KEY) == 1
    store.remove_key("exact", KEY)
    # Some servers go on listing a folder that is empty.
    assert isinstance(store, BucketStore) or store.keys("exact") == []
