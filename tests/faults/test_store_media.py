"""What must hold for a store whatever it is kept in: the same claims on a directory and in a bucket of a real server."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from sidecar.caches.claims import Claims
from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.manifest import Manifest, Pack, generation_name
from sidecar.caches.publish_messages import StoreMode
from sidecar.caches.store import Store, open_store
from sidecar.errors import LostRace, StoreDamaged, StoreReadOnly, StoreUnavailable
from tests.fakes.live_cache import facts
from tests.object_server import ObjectServer

KEY = "k" * 32
PLACE = f"v1/exact/{KEY}"


class Kept:
    """A store and what others can do to what it is kept in."""

    def __init__(self, location: str, server: ObjectServer | None) -> None:
        self.location = location
        self._client = server.client(location.removeprefix("s3://").partition("/")[0]) if server else None

    def open(self, mode: StoreMode = "read-write") -> Store:
        return open_store(self.location, mode, lambda _s: None)

    def write(self, name: str, data: bytes) -> None:
        """Put an object there, whatever was there."""
        if self._client is not None:
            import obstore

            obstore.put(self._client, f"warm/{name}", data)
            return
        path = Path(self.location, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        if self._client is not None:
            import obstore

            obstore.delete(self._client, f"warm/{name}")
            return
        Path(self.location, name).unlink()

    def names(self) -> set[str]:
        """Name every object, without what only asked for the time."""
        if self._client is not None:
            import obstore

            found = [str(one["path"]).removeprefix("warm/") for batch in obstore.list(self._client) for one in batch]
        else:
            root = Path(self.location)
            found = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        return set(found)


@pytest.fixture(params=["directory", "bucket"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "directory":
        return Kept(str(tmp_path), None)
    return Kept(request.getfixturevalue("bucket"), request.getfixturevalue("object_server"))


def a_generation(sequence: int, by: str = "test") -> Manifest:
    name = generation_name("exact", KEY, sequence)
    return Manifest(scope="exact", key=KEY, name=name, parent=None, created_unix_s=1.0, created_by=by)


def packed(content: bytes) -> Callable[[BinaryIO], Pack]:
    def fill(stream: BinaryIO) -> Pack:
        stream.write(content)
        return Pack(digest=hashlib.sha256(content).hexdigest(), bytes=len(content), unpacked=len(content))

    return fill


def test_the_objects_of_a_store_have_the_same_names_everywhere(kept: Kept) -> None:
    store = kept.open()
    known = fingerprint(facts(), "/live")
    pack = store.add_pack(packed(b"one"))
    store.create_generation(a_generation(1))
    store.write_head(a_generation(1))
    store.write_facts("exact", known)
    store.record_boot("exact", KEY, "b", {})
    store.quarantine("exact", KEY, a_generation(1).name, {})
    store.create_note("exact", KEY, ("claims", "first", "00000001", "holder.json"), {})
    assert kept.names() == {
        f"v1/packs/{pack.digest}.tar.zst",
        f"{PLACE}/generations/{a_generation(1).name}/manifest.json",
        f"{PLACE}/HEAD",
        f"v1/exact/{known.exact_key}/facts.json",
        f"{PLACE}/boots/b.json",
        f"{PLACE}/quarantine/{a_generation(1).name}.json",
        f"{PLACE}/claims/first/00000001/holder.json",
    }


def test_a_generation_is_created_once_and_stays_the_first_ones(kept: Kept) -> None:
    store = kept.open()
    store.create_generation(a_generation(1, "first"))
    with pytest.raises(LostRace):
        store.create_generation(a_generation(1, "second"))
    found = store.read_manifest("exact", KEY, a_generation(1).name)
    assert found is not None
    assert found.created_by == "first"


def test_of_eight_publishers_of_one_number_one_wins_and_its_words_stand(kept: Kept) -> None:
    stores, together = [kept.open() for _ in range(8)], threading.Barrier(8)

    def publish(number: int) -> list[str]:
        together.wait()
        try:
            stores[number].create_generation(a_generation(1, f"pod {number}"))
        except LostRace:
            return []
        return [f"pod {number}"]

    with ThreadPoolExecutor(8) as pool:
        [winner] = [who for found in pool.map(publish, range(8)) for who in found]
    found = stores[0].read_manifest("exact", KEY, a_generation(1).name)
    assert found is not None
    assert found.created_by == winner


def test_generations_are_listed_newest_first_and_foreign_names_are_passed_over(kept: Kept) -> None:
    store = kept.open()
    for sequence in (2, 11, 1):
        store.create_generation(a_generation(sequence))
    kept.write(f"{PLACE}/generations/lost+found/manifest.json", b"{}")
    assert store.generations("exact", KEY) == [a_generation(each).name for each in (11, 2, 1)]
    assert store.keys("exact") == [KEY]
    assert store.generations("exact", "nothing") == store.keys("toolchain") == []


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"\xff" * 100])
def test_a_manifest_that_is_none_is_damage(kept: Kept, garbage: bytes) -> None:
    kept.write(f"{PLACE}/generations/{a_generation(1).name}/manifest.json", garbage)
    store = kept.open()
    with pytest.raises(StoreDamaged):
        store.read_manifest("exact", KEY, a_generation(1).name)
    with pytest.raises(LostRace):
        store.create_generation(a_generation(1))


def test_a_manifest_that_was_copied_to_another_name_is_damaged(kept: Kept) -> None:
    store = kept.open()
    store.create_generation(a_generation(1))
    with store.open_manifest("exact", KEY, a_generation(1).name) or io.BytesIO() as stream:
        kept.write(f"{PLACE}/generations/{a_generation(2).name}/manifest.json", stream.read())
    with pytest.raises(StoreDamaged, match="says that it is"):
        store.read_manifest("exact", KEY, a_generation(2).name)


def test_boots_and_quarantine_are_recorded_once_read_back_and_taken_back(kept: Kept) -> None:
    store, name = kept.open(), a_generation(1).name
    store.record_boot("exact", KEY, f"{name}.died.a", {"outcome": "died"})
    store.record_boot("exact", KEY, f"{name}.died.a", {"outcome": "ready"})
    kept.write(f"{PLACE}/boots/garbage.json", b"{")
    assert store.boots("exact", KEY) == [{"format": 1, "outcome": "died"}]
    assert store.boot_ends("exact", KEY) == {(name, "died"): 1}
    store.quarantine("exact", KEY, name, {"reason": "two deaths"})
    assert store.quarantined("exact", KEY) == {name}
    assert store.quarantine_record("exact", KEY, name)["reason"] == "two deaths"
    assert store.release("exact", KEY, name)
    assert not store.quarantined("exact", KEY) | set(store.boot_ends("exact", KEY))
    assert not store.release("exact", KEY, name)


def test_facts_are_written_once_and_replaced_only_when_they_are_none(kept: Kept) -> None:
    store, known = kept.open(), fingerprint(facts(), "/live")
    store.write_facts("exact", known)
    store.write_facts("exact", known)
    assert [key for key, _ in store.known_facts("exact", 9)] == [known.exact_key]
    kept.write(f"v1/exact/{known.exact_key}/facts.json", b'{"format": 1, "facts": {"sm": "other"}}')
    assert list(store.known_facts("exact", 9)) == []
    store.write_facts("exact", known)
    assert [key for key, _ in store.known_facts("exact", 9)] == [known.exact_key]


def test_packs_are_damaged_that_are_missing_short_or_suspected_with_reason_and_are_mended(kept: Kept) -> None:
    store = kept.open()
    contents = (b"one", b"two", b"three", b"four")
    packs = [store.add_pack(packed(content)) for content in contents]
    missing, short, flipped, good = packs
    kept.remove(f"v1/packs/{missing.digest}.tar.zst")
    kept.write(f"v1/packs/{short.digest}.tar.zst", b"t")
    kept.write(f"v1/packs/{flipped.digest}.tar.zst", b"THREE")
    assert store.damaged_packs(packs) == {missing.digest, short.digest}
    suspects = {flipped.digest, good.digest}
    assert store.damaged_packs(packs, suspects) == {missing.digest, short.digest, flipped.digest}
    assert store.is_missing(missing.digest)
    with pytest.raises(StoreDamaged, match="missing"):
        store.open_pack(missing.digest)
    for content in contents:
        store.add_pack(packed(content))
    assert store.damaged_packs(packs, {pack.digest for pack in packs}) == set()


def test_a_pack_of_many_parts_comes_back_as_it_went(kept: Kept) -> None:
    store = kept.open()
    content = bytes(range(256)) * (21 << 12)
    pack = store.add_pack(packed(content))
    stream = store.open_pack(pack.digest)
    found = b"".join(iter(lambda: stream.read(300_000), b""))
    stream.close()
    assert found == content
    with store.pack_parts(pack.digest) as parts:
        assert parts.size == len(content)
        assert bytes(parts.read(9 << 20, 70)) == content[9 << 20 : (9 << 20) + 70]


def test_a_claim_is_one_pods_until_it_is_given_back_and_ages_by_the_stores_own_clock(kept: Kept) -> None:
    one, two = (Claims(kept.open(), "exact", KEY, holder) for holder in ("one", "two"))
    claim = one.try_to_take("first")
    assert claim is not None
    assert two.try_to_take("first") is None
    assert two.take("first", 0) is None, "the epoch is taken"
    age = two.age_s("first", 1)
    assert age is not None
    assert abs(age) < 60
    taken = two.take("first", 1)
    assert taken is not None
    assert taken.epoch == 2


def test_a_store_that_is_used_read_only_is_never_written(kept: Kept) -> None:
    store = kept.open("read-only")
    for write in (
        lambda: store.create_generation(a_generation(1)),
        lambda: store.record_boot("exact", KEY, "b", {}),
        lambda: store.add_pack(packed(b"one")),
        store.sweep_orphans,
    ):
        with pytest.raises(StoreReadOnly, match="read-only"):
            write()
    assert kept.names() == set()


def test_a_generation_is_young_until_every_client_sees_its_packs(kept: Kept) -> None:
    store = kept.open()
    store.create_generation(a_generation(1))
    assert store.is_young("exact", KEY, a_generation(1).name)
    assert not store.is_young("exact", KEY, a_generation(2).name)


def test_a_store_of_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(StoreUnavailable, match="none that is known"):
        open_store("ftp://host/store", "read-write", lambda _s: None)
