"""Claims about the store's directory: exclusive creation, records, and errors that are sentences."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.manifest import Manifest, Pack, generation_name
from sidecar.caches.store import DirectoryStore, open_store
from sidecar.errors import LostRace, StoreDamaged, StoreFull, StoreReadOnly, StoreUnavailable, WarmupError
from sidecar.files import temporary_name
from tests.fakes.live_cache import facts

KEY = "k" * 32


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path, "read-write", lambda _s: None)


def a_generation(sequence: int) -> Manifest:
    return Manifest(
        scope="exact",
        key=KEY,
        name=generation_name("exact", KEY, sequence),
        parent=None,
        created_unix_s=1.0,
        created_by="test",
    )


def test_a_generation_is_created_once(store: DirectoryStore) -> None:
    store.create_generation(a_generation(1))
    with pytest.raises(LostRace):
        store.create_generation(a_generation(1))
    assert store.read_manifest("exact", KEY, a_generation(1).name) == a_generation(1)


def test_generations_are_listed_newest_first_and_foreign_names_are_passed_over(store: DirectoryStore) -> None:
    for sequence in (2, 11, 1):
        store.create_generation(a_generation(sequence))
    (store.root / "v1/exact" / KEY / "generations/lost+found").mkdir()
    found = store.generations("exact", KEY)
    assert found == [a_generation(11).name, a_generation(2).name, a_generation(1).name]


def test_a_directory_that_a_dead_publisher_left_is_no_generation_and_in_nobodys_way(store: DirectoryStore) -> None:
    (store.root / "v1/exact" / KEY / "generations" / a_generation(1).name).mkdir(parents=True)
    assert store.read_manifest("exact", KEY, a_generation(1).name) is None
    store.create_generation(a_generation(1))
    assert store.read_manifest("exact", KEY, a_generation(1).name) is not None


def test_a_manifest_that_was_copied_to_another_name_is_damaged(store: DirectoryStore) -> None:
    store.create_generation(a_generation(1))
    place = store.root / "v1/exact" / KEY / "generations"
    (place / a_generation(1).name).rename(place / a_generation(2).name)
    with pytest.raises(StoreDamaged, match="says that it is"):
        store.read_manifest("exact", KEY, a_generation(2).name)


def test_boots_and_quarantine_are_recorded_once_and_read_back(store: DirectoryStore) -> None:
    store.record_boot("exact", KEY, "1-1-ab", {"generation": "g", "outcome": "ready"})
    store.record_boot("exact", KEY, "1-1-ab", {"generation": "g", "outcome": "died"})
    (store.root / "v1/exact" / KEY / "boots/garbage.json").write_bytes(b"{")
    assert store.boots("exact", KEY) == [{"format": 1, "generation": "g", "outcome": "ready"}]
    name = a_generation(1).name
    store.quarantine("exact", KEY, name, {"reason": "two deaths"})
    assert store.quarantined("exact", KEY) == {name}


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 200])
def test_a_record_is_never_written_under_a_name_that_leads_elsewhere(store: DirectoryStore, name: str) -> None:
    with pytest.raises(StoreDamaged):
        store.record_boot("exact", KEY, name, {})


def test_a_facts_file_that_does_not_fit_its_key_is_not_believed(store: DirectoryStore) -> None:
    known = fingerprint(facts(), "/live")
    store.write_facts("exact", known)
    place = store.root / "v1/exact" / known.exact_key
    assert [key for key, _ in store.known_facts("exact", 9)] == [known.exact_key]
    place.rename(place.with_name(KEY))
    assert list(store.known_facts("exact", 9)) == []


@pytest.mark.parametrize("garbage", ["", "{", '{"format": 1, "facts": {"sm": "other"}}', "[]"])
def test_a_damaged_facts_file_is_replaced_by_the_next_publish_of_its_key(store: DirectoryStore, garbage: str) -> None:
    known = fingerprint(facts(), "/live")
    store.write_facts("exact", known)
    path = store.root / "v1/exact" / known.exact_key / "facts.json"
    path.chmod(0o600)
    path.write_text(garbage, encoding="utf-8")
    store.write_facts("exact", known)
    assert [key for key, _ in store.known_facts("exact", 9)] == [known.exact_key]


def test_a_facts_file_that_is_right_is_left_alone(store: DirectoryStore) -> None:
    known = fingerprint(facts(), "/live")
    store.write_facts("exact", known)
    path = store.root / "v1/exact" / known.exact_key / "facts.json"
    before = path.stat().st_ino
    store.write_facts("exact", known)
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    ("number", "expected", "says"),
    [
        (errno.ENOSPC, StoreFull, "full"),
        (errno.EDQUOT, StoreFull, "full"),
        (errno.EROFS, StoreReadOnly, "can't be written"),
        (errno.EACCES, StoreReadOnly, "can't be written"),
        (errno.EIO, StoreUnavailable, "failed to"),
        (errno.ESTALE, StoreUnavailable, "failed to"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "mkdir", "open"])
def test_a_disk_error_while_writing_is_a_typed_error_with_a_sentence(
    store: DirectoryStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[WarmupError],
    says: str,
    call: str,
) -> None:
    monkeypatch.setattr(os, call, _failing(number))
    with pytest.raises(expected, match=says):
        store.create_generation(a_generation(1))
    monkeypatch.undo()
    assert store.read_manifest("exact", KEY, a_generation(1).name) is None


def test_a_stale_handle_is_tried_again_and_then_given_up(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_generation(a_generation(1))
    listdir, failures = os.listdir, [errno.ESTALE, errno.EBUSY]

    def flaky(path: str) -> list[str]:
        if failures:
            raise OSError(failures.pop(), "passing trouble")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", flaky)
    assert len(store.generations("exact", KEY)) == 1
    monkeypatch.setattr(os, "listdir", _failing(errno.ESTALE))
    with pytest.raises(StoreUnavailable):
        store.generations("exact", KEY)


def test_a_store_that_is_a_file_or_missing_or_remote_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for location in (str(tmp_path / "file"), str(tmp_path / "nothing"), "ftp://bucket"):
        with pytest.raises(StoreUnavailable, match="store"):
            open_store(location, "read-write", lambda _s: None)


def test_a_read_only_store_is_never_written(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, "read-only", lambda _s: None)
    with pytest.raises(StoreReadOnly):
        store.create_generation(a_generation(1))
    with pytest.raises(StoreReadOnly):
        store.record_boot("exact", KEY, "b", {})
    assert list(tmp_path.iterdir()) == []


def _failing(number: int) -> Callable[..., None]:
    def fail(*_args: object, **_rest: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_generation_that_a_stale_listing_lacks_is_found_by_its_name(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in (1, 2, 3):
        store.create_generation(a_generation(sequence))
    monkeypatch.setattr(os, "listdir", lambda _path: [a_generation(1).name])
    assert store.generations("exact", KEY) == [a_generation(sequence).name for sequence in (3, 2, 1)]


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name), lambda path: path.touch()]
)
def test_something_in_the_place_of_a_manifest_is_a_damaged_generation(
    store: DirectoryStore, make: Callable[[Path], None]
) -> None:
    folder = store.root / "v1/exact" / KEY / "generations" / a_generation(1).name
    folder.mkdir(parents=True)
    make(folder / "manifest.json")
    with pytest.raises(StoreDamaged):
        store.read_manifest("exact", KEY, a_generation(1).name)
    with pytest.raises(LostRace):
        store.create_generation(a_generation(1))


def test_a_file_in_the_place_of_a_generation_is_damaged_and_its_number_is_taken(store: DirectoryStore) -> None:
    folder = store.root / "v1/exact" / KEY / "generations"
    folder.mkdir(parents=True)
    (folder / a_generation(1).name).write_text("")
    assert store.generations("exact", KEY) == [a_generation(1).name]
    with pytest.raises(StoreDamaged):
        store.read_manifest("exact", KEY, a_generation(1).name)
    with pytest.raises(LostRace):
        store.create_generation(a_generation(1))


def test_packs_are_damaged_that_are_missing_short_or_suspected_with_reason(store: DirectoryStore) -> None:
    packs = [store.add_pack(_packed(content)) for content in (b"one", b"two", b"three", b"four")]
    missing, short, flipped, good = packs
    place = store.root / "v1/packs"
    (place / f"{missing.digest}.tar.zst").unlink()
    os.truncate(place / f"{short.digest}.tar.zst", 1)
    (place / f"{flipped.digest}.tar.zst").write_bytes(b"THREE")
    assert store.damaged_packs(packs) == {missing.digest, short.digest}
    suspects = {flipped.digest, good.digest}
    assert store.damaged_packs(packs, suspects) == {missing.digest, short.digest, flipped.digest}


def test_a_directory_that_another_client_made_and_that_is_not_seen_yet_is_used(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "v1/exact" / KEY / "generations").mkdir(parents=True)
    (store.root / "v1/packs").mkdir()
    monkeypatch.setattr(Path, "is_dir", lambda path: path == store.root)
    store.create_generation(a_generation(1))
    monkeypatch.undo()
    assert store.read_manifest("exact", KEY, a_generation(1).name) == a_generation(1)


def test_a_sweep_that_can_not_be_done_keeps_nobody_from_publishing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", _failing(errno.ENOSPC))
    store.sweep_orphans()


def test_records_that_a_dead_worker_left_half_written_are_swept_after_a_day(store: DirectoryStore) -> None:
    known = fingerprint(facts(), "/live")
    store.write_facts("exact", known)
    store.record_boot("exact", known.exact_key, "00000001-aaaaaaaaaaaaaaaa.ready.1", {})
    folder = store.root / "v1/exact" / known.exact_key
    (record,) = (folder / "boots").iterdir()
    old, fresh = temporary_name(record), temporary_name(record)
    lost = temporary_name(folder / "facts.json")
    for path in (old, fresh, lost):
        path.write_text("{")
    for path in (old, lost, record):
        os.utime(path, (1, 1))
    store.sweep_orphans(known)
    assert {path.name for path in (folder / "boots").iterdir()} == {record.name, fresh.name}
    assert not lost.exists()


def _packed(content: bytes) -> Callable[[BinaryIO], Pack]:
    def fill(stream: BinaryIO) -> Pack:
        stream.write(content)
        return Pack(digest=hashlib.sha256(content).hexdigest(), bytes=len(content), unpacked=len(content))

    return fill


def test_a_file_in_the_place_of_the_generations_is_damage_with_a_sentence(store: DirectoryStore) -> None:
    (store.root / "v1/exact" / KEY).mkdir(parents=True)
    (store.root / "v1/exact" / KEY / "generations").write_text("")
    with pytest.raises(StoreDamaged, match="is not a directory; remove it"):
        store.generations("exact", KEY)


def test_a_quarantine_under_a_name_that_nobody_could_have_computed_does_not_count(store: DirectoryStore) -> None:
    store.quarantine("exact", KEY, "99999999-" + "0" * 16, {"reason": "strange"})
    assert store.quarantined("exact", KEY) == set()


def test_a_head_that_can_not_be_left_is_no_failure(store: DirectoryStore) -> None:
    (store.root / "v1/exact" / KEY / "HEAD" / "in the way").mkdir(parents=True)
    store.write_head(a_generation(1))


def test_what_is_released_may_be_used_again_whatever_died_on_it(store: DirectoryStore) -> None:
    name = a_generation(1).name
    for pod in "ab":
        store.record_boot("exact", KEY, f"{name}.died.{pod}", {})
    assert store.release("exact", KEY, name)
    assert store.boot_ends("exact", KEY)[name, "died"] == 0
    assert not store.release("exact", KEY, name)
