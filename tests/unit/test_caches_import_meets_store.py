"""Claims about an import into a store with a history: quarantines hold, records keep to their generation, signatures arrive."""

from __future__ import annotations

import io
import shutil
import time
from pathlib import Path

import pytest

from sidecar.caches.archive_file import Brought, bring, export
from sidecar.caches.cleaning import clean
from sidecar.caches.messages import Limits
from sidecar.caches.signing import sign_again
from sidecar.caches.travelling import chosen
from sidecar.caches.trust import KeyFiles, trust
from tests.fakes.keys import Pair, pair
from tests.fakes.stored import SCOPE, Stored

GRACE_S = 600.0


class Two:
    """A store that exports, and one that imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.here, self.there = Stored(root, "here"), Stored(root, "there")

    def proven(self, kernel: str) -> str:
        """Publish a generation here that an engine became ready on."""
        self.here.publish(kernel)
        name = self.here.generations()[-1]
        self.here.store.record_boot(SCOPE, self.here.key, f"{name}.ready.x", {"outcome": "ready"})
        return name

    def exported(self) -> bytes:
        target = io.BytesIO()
        export(self.here.store, chosen(self.here.store, (), False), target, lambda _done, _total: None)
        return target.getvalue()

    def taken(self, data: bytes) -> Brought:
        [found] = bring(self.there.store, io.BytesIO(data), lambda _done, _total: None)
        return found


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def removed_because_it_is_bad(two: Two, name: str) -> None:
    """Quarantine a generation of the store that imports, and let retention take it after a newer one."""
    two.there.store.quarantine(SCOPE, two.there.key, name, {"reason": "wrong output"})
    two.there.publish("sound")
    for _ in range(2):
        clean(two.there.store, Limits(grace_s=1.0, count=1), dry=False, now=lambda: time.time() + 100)
    assert (name in two.there.generations(), two.there.store.quarantined(SCOPE, two.there.key)) == (False, set())


def test_what_was_removed_because_it_must_not_be_used_is_quarantined_when_it_comes_again(two: Two) -> None:
    bad = two.proven("poisoned")
    data = two.exported()
    two.taken(data)
    removed_because_it_is_bad(two, bad)
    again = two.taken(data)
    assert (again.outcome, again.quarantined) == ("imported", True)
    two.there.store.quarantine(SCOPE, two.there.key, two.there.generations()[-1], {"reason": "wrong output"})
    two.there.restore()
    assert two.there.kernels() == set()
    assert two.there.store.release(SCOPE, two.there.key, bad)
    assert not two.taken(data).quarantined
    two.there.restore()
    assert two.there.kernels() == {"poisoned"}


def test_boot_records_of_another_generation_of_the_same_name_are_not_taken(two: Two) -> None:
    two.proven("theirs")
    two.there.publish("ours")
    assert two.taken(two.exported()).outcome == "conflict"
    assert two.there.store.boot_ends(SCOPE, two.there.key) == {}


def test_an_archive_that_is_damaged_in_the_store_is_whole_after_an_import(two: Two) -> None:
    two.proven("a")
    data = two.exported()
    two.taken(data)
    [path] = two.there.place.glob("v1/packs/*")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert two.taken(data).outcome == "there"
    two.there.restore()
    assert two.there.kernels() == {"a"}


def test_an_archive_that_was_out_of_use_for_long_is_not_removed_under_an_import(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.proven("a")
    shutil.copytree(two.here.place / "v1/packs", two.there.place / "v1/packs")
    two.there.pass_time(9 * GRACE_S)
    limits = Limits(grace_s=GRACE_S)
    clean(two.there.store, limits, dry=False, now=time.time)
    two.there.pass_time(9 * GRACE_S)
    other, place = Stored(two.root, "there").store, two.there.store.place_generation

    def cleaned_just_before(*given: object) -> None:
        clean(other, limits, dry=False, now=time.time)
        place(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(two.there.store, "place_generation", cleaned_just_before)
    assert two.taken(two.exported()).outcome == "imported"
    two.there.restore()
    assert two.there.kernels() == {"a"}


def test_old_kernels_that_were_just_brought_and_nobody_used_yet_are_no_unused_ones(two: Two) -> None:
    two.here.publish("a")
    two.taken(two.exported())
    day_s = 86400.0
    found = clean(
        two.there.store, Limits(grace_s=GRACE_S, unused_s=30 * day_s), dry=False, now=lambda: time.time() + 60 * day_s
    )
    assert found.keys == ()
    two.there.restore()
    assert two.there.kernels() == {"a"}


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Pair, Pair, Path]:
    """Give an old pair of keys, a new one, and a file that trusts both."""
    old, new, both = pair(tmp_path, "old"), pair(tmp_path, "new"), tmp_path / "both"
    both.write_text(old.public.read_text() + new.public.read_text())
    return old, new, both


def signed_by_both(two: Two, old: Pair, new: Pair) -> tuple[bytes, bytes]:
    """Publish and carry with the old key, and then give the file with the signature of the new one, too."""
    two.here.publish("a", **old.fields)
    before = two.exported()
    two.taken(before)
    signer = trust(KeyFiles(signing=str(new.private)), lambda: time.time() + 60)
    assert signer is not None
    sign_again(two.here.store, signer, (SCOPE, two.here.key, two.here.generations()[-1]), skip=False)
    return before, two.exported()


def test_a_change_of_keys_travels_to_a_store_that_has_the_generation(two: Two, keys: tuple[Pair, Pair, Path]) -> None:
    old, new, both = keys
    before, after = signed_by_both(two, old, new)
    two.there.store.trust = trust(KeyFiles(trusted=str(both)), time.time)
    assert [two.taken(data).outcome for data in (after, before)] == ["there", "there"]
    two.there.restore(**new.trusting)
    assert two.there.kernels() == {"a"}, "the file with the older signature changes nothing"


def test_where_signatures_are_not_looked_at_the_one_that_is_there_stays(
    two: Two, keys: tuple[Pair, Pair, Path]
) -> None:
    old, new, _ = keys
    _, after = signed_by_both(two, old, new)
    two.taken(after)
    two.there.restore(**old.trusting)
    assert two.there.kernels() == {"a"}


def test_a_signature_that_can_not_be_believed_gives_way_to_one_that_can(two: Two, tmp_path: Path) -> None:
    keys = pair(tmp_path)
    two.here.publish("a", **keys.fields)
    data = two.exported()
    two.taken(data)
    two.there.store.write_signature(SCOPE, two.there.key, two.there.generations()[-1], b"garbage")
    two.there.store.trust = trust(KeyFiles(trusted=str(keys.public)), time.time)
    two.taken(data)
    two.there.restore(**keys.trusting)
    assert two.there.kernels() == {"a"}
