"""Claims about cleaning up a store: archives outlive their generations, nobody who reads or writes is hurt, numbers stay taken."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from sidecar.caches import cleaning, upkeep
from sidecar.caches.claims import Claims
from sidecar.caches.cleaning import Cleaned, clean
from sidecar.caches.client import CacheClient, CleanRequest
from sidecar.caches.inspection import find
from sidecar.caches.manifest import Pack
from sidecar.caches.messages import Limits
from sidecar.caches.store import DirectoryStore
from sidecar.caches.trust import KeyFiles, trust
from sidecar.caches.upkeep import RECORDS_KEPT, UNFIT
from sidecar.errors import NotSo
from sidecar.files import Content
from tests.fakes import live_cache as fake
from tests.fakes.keys import pair
from tests.fakes.stored import SCOPE, Stored

GRACE_S = 600.0


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    found = Stored(tmp_path)
    for kernel in "abc":
        found.publish(kernel)
    return found


def cleaned(stored: Stored, *, dry: bool = False, later_s: float = 2 * GRACE_S, **limits: float) -> Cleaned:
    """Clean up by a clock that is that much later than the manifests."""
    wishes = Limits(grace_s=GRACE_S, **limits)  # type: ignore[arg-type]
    return clean(stored.store, wishes, dry=dry, now=lambda: time.time() + later_s)


def tree(place: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(place.rglob("*")):
        yield str(path), path.lstat().st_mtime_ns if path.is_file() else 0


def alone(stored: Stored, kernel: str) -> str:
    """Make a generation of its own key with one kernel, and give its archive."""
    before = stored.packs()
    stored.publish(kernel, facts=fake.facts(toolchain={"nvcc": kernel}))
    [new] = stored.packs() - before
    return new


def test_a_generation_goes_and_its_archives_stay_for_the_newer_ones_that_need_them(stored: Stored) -> None:
    names, packs = stored.generations(), stored.packs()
    found = cleaned(stored, count=1)
    assert [one.name for one in found.generations] == [names[1], names[0]]
    assert (stored.generations(), stored.packs()) == (names[2:], packs)
    stored.pass_time(2 * GRACE_S)
    assert cleaned(stored, count=1).packs == 0
    stored.restore()
    assert stored.kernels() == {"a", "b", "c"}


def test_an_archive_that_nobody_needs_goes_a_grace_time_after_it_was_found(stored: Stored) -> None:
    pack = alone(stored, "lonely")
    stored.pass_time(9 * GRACE_S)
    first = cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    assert ("toolchain" in {scope for scope, _ in first.keys}, first.packs) == (True, 0)
    assert pack in stored.packs()
    again = cleaned(stored)
    assert (again.packs, again.waiting) == (0, len(stored.packs()))
    stored.pass_time(GRACE_S + 1)
    last = cleaned(stored)
    assert last.packs > 0
    assert stored.packs() == set()


def _gone_in_quarantine(stored: Stored) -> str:
    """Quarantine the generation with kernel c, publish a sound one, and clean up; give the first one's name."""
    bad = stored.generations()[-1]
    stored.store.quarantine(SCOPE, stored.key, bad, {"reason": "wrong output"})
    stored.publish("d")
    cleaned(stored, count=1)
    assert bad not in stored.generations()
    return bad


def test_files_of_a_quarantined_generation_are_not_published_again_when_it_is_gone(stored: Stored) -> None:
    _gone_in_quarantine(stored)
    result = stored.publish("c", "e")
    assert (result.outcome, set(result.skipped)) == ("published", {"quarantined"})
    stored.restore()
    assert stored.kernels() == {"a", "b", "d", "e"}
    # The record of its quarantine goes with the next run, and the list of its files stays.
    cleaned(stored, count=1)
    assert stored.publish("c").outcome == "nothing_new"


def test_a_quarantine_can_be_taken_back_when_the_generation_is_gone(stored: Stored) -> None:
    bad = _gone_in_quarantine(stored)
    assert find(stored.store, f"{stored.key}/{bad}", removed=True) == (SCOPE, stored.key, bad)
    assert stored.store.release(SCOPE, stored.key, bad)
    assert stored.publish("c").outcome == "published"
    with pytest.raises(NotSo):
        find(stored.store, f"{stored.key}/{bad}", removed=True)


def test_lists_of_files_that_must_not_be_published_are_kept_of_the_newest_generations_only(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNFIT", 1)
    for kernel in "de":
        for name in stored.generations():
            stored.store.quarantine(SCOPE, stored.key, name, {"reason": "wrong output"})
        stored.publish(kernel)
    cleaned(stored, count=1)
    assert stored.publish("d").outcome == "nothing_new"
    assert stored.publish("a").outcome == "published"


class Full(DirectoryStore):
    """A store that has no room until `room` says so, which is when a generation was removed, and none for a list of files."""

    room = True

    def _create(self, path: Path, data: Content) -> None:
        self._need(self.room and path.parent.name != "unfit")
        super()._create(path, data)

    def _replace(self, path: Path, data: bytes) -> None:
        self._need(self.room)
        super()._replace(path, data)

    def _remove(self, path: Path) -> bool:
        self.room = True
        return super()._remove(path)

    def _need(self, room: bool) -> None:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_quarantined_generation_goes_from_a_store_that_has_no_room_for_the_list_of_its_files(stored: Stored) -> None:
    stored.store = Full(stored.place, "read-write", lambda _s: None)
    _gone_in_quarantine(stored)


def test_a_full_store_can_be_cleaned_up(stored: Stored) -> None:
    stored.store = full = Full(stored.place, "read-write", lambda _s: None)
    full.room = False
    assert len(cleaned(stored, count=1).generations) == 2
    assert len(stored.generations()) == 1


def test_cleaning_writes_no_more_lists_of_files_than_are_looked_at(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "UNFIT", 1)
    for name in stored.generations():
        stored.store.quarantine(SCOPE, stored.key, name, {"reason": "wrong output"})
    newest = stored.generations()[-1]
    stored.publish("d")
    written: list[str] = []
    stored.store = DirectoryStore(stored.place, "read-write", lambda _s: None, written.append)
    cleaned(stored, count=1)
    assert (written.count("unfit"), stored.store.unfit_names(SCOPE, stored.key)) == (1, [newest])


def test_no_list_of_files_is_written_for_a_key_that_goes_with_all_its_generations(stored: Stored) -> None:
    stored.store.quarantine(SCOPE, stored.key, stored.generations()[-1], {"reason": "wrong output"})
    stored.pass_time(9 * GRACE_S)
    written: list[str] = []
    stored.store = DirectoryStore(stored.place, "read-write", lambda _s: None, written.append)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    assert (written.count("unfit"), stored.generations()) == (0, [])


def test_half_a_list_of_files_that_a_killed_run_left_is_written_anew(stored: Stored) -> None:
    bad = stored.generations()[-1]
    half = stored.place / f"v1/{SCOPE}/{stored.key}/unfit/{bad}.json"
    half.parent.mkdir()
    half.write_bytes(b'{"format":1,')
    _gone_in_quarantine(stored)
    assert stored.publish("c").outcome == "nothing_new"


def test_names_that_are_no_generations_take_no_lists_place_and_are_left_alone(stored: Stored) -> None:
    _gone_in_quarantine(stored)
    folder = stored.place / f"v1/{SCOPE}/{stored.key}/unfit"
    later = [f"9999999{digit}-{'0' * 16}.json" for digit in range(UNFIT)]
    foreign = [folder / name for name in ("zz", ".c.json.1.ab.tmp", *later)]
    for path in foreign:
        path.write_bytes(b"garbage")
    cleaned(stored, count=1)
    assert stored.publish("c").outcome == "nothing_new"
    assert all(path.exists() for path in foreign)


class Vanishing(DirectoryStore):
    """A store in which another pod removes a list of files between its name and its content."""

    def _opened(self, path: Path, limit: int) -> BinaryIO:
        if path.parent.name == "unfit":
            path.unlink()
        return super()._opened(path, limit)


def test_a_list_of_files_that_another_pod_just_removed_stops_no_publish(stored: Stored) -> None:
    _gone_in_quarantine(stored)
    store = Vanishing(stored.place, "read-write", lambda _s: None)
    assert store.unfit_names(SCOPE, stored.key)
    assert list(store.unfit(SCOPE, stored.key, UNFIT)) == []


def test_what_a_restore_reads_is_there_to_its_end(stored: Stored) -> None:
    pack = alone(stored, "lonely")
    stored.pass_time(9 * GRACE_S)
    with_it = stored.store.open_pack(pack)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    assert with_it.read(4) == b"\x28\xb5\x2f\xfd"
    assert stored.store.pack_bytes(pack)
    with_it.close()


def test_an_old_note_is_none_about_what_becomes_free_only_now(stored: Stored) -> None:
    pack = alone(stored, "lonely")
    stored.pass_time(9 * GRACE_S)
    stored.store.note_out_of_use([pack], "old")
    stored.pass_time(9 * GRACE_S)
    assert cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S).keys
    assert pack in stored.packs(), "it was needed when the run began"
    cleaned(stored)
    assert pack in stored.packs(), "the old note is gone"


def test_an_archive_that_a_publisher_found_of_use_again_is_young(stored: Stored) -> None:
    pack = alone(stored, "lonely")
    stored.pass_time(9 * GRACE_S)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    stored.pass_time(2 * GRACE_S)
    data = (stored.place / f"v1/packs/{pack}.tar.zst").read_bytes()

    def fill(stream: object) -> Pack:
        stream.write(data)  # type: ignore[attr-defined]
        return Pack(digest=pack, bytes=len(data), unpacked=1)

    assert stored.store.add_pack(fill).digest == pack
    cleaned(stored)
    assert pack in stored.packs()


def test_an_archive_of_a_publish_under_way_is_young(stored: Stored) -> None:
    pack = alone(stored, "lonely")
    for path in stored.place.glob("v1/toolchain/*/generations/*/manifest.json"):
        if pack in path.read_text():
            path.unlink()
    stored.store.note_out_of_use([pack], "old")
    note = next(stored.place.glob("v1/gc/out-*"))
    os.utime(note, (1.0, 1.0))
    cleaned(stored)
    assert pack in stored.packs()


@pytest.mark.parametrize("how", ["a manifest of a later format", "a scope of a later version"])
def test_no_archive_goes_while_something_is_there_that_this_version_cannot_read(stored: Stored, how: str) -> None:
    pack = alone(stored, "lonely")
    stored.pass_time(9 * GRACE_S)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    stored.pass_time(2 * GRACE_S)
    if how.startswith("a manifest"):
        stored.publish("z")
        path = stored.place / f"v1/{SCOPE}/{stored.key}/generations" / stored.generations()[-1] / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    else:
        (stored.place / "v1/cluster/some-key").mkdir(parents=True)
    found = cleaned(stored)
    assert (found.packs, pack in stored.packs()) == (0, True)
    assert "needs any of them" in found.trouble.replace("may need", "needs")


def test_a_generation_that_a_pod_tries_stays(stored: Stored) -> None:
    first = stored.generations()[0]
    assert Claims(stored.store, SCOPE, stored.key, "pod-1").take(first, 0)
    cleaned(stored, count=1)
    assert first in stored.generations()


def test_the_next_publish_never_gets_a_number_that_was_used(stored: Stored) -> None:
    newest = stored.generations()[-1]
    stored.store.quarantine(SCOPE, stored.key, newest, {"reason": "bad"})
    cleaned(stored, count=1)
    assert stored.store.quarantined(SCOPE, stored.key) == {newest}
    stored.publish("d")
    assert stored.generations()[-1].startswith("00000004-")
    cleaned(stored, count=1, later_s=9 * GRACE_S)
    assert stored.store.quarantined(SCOPE, stored.key) == set()


def test_records_of_generations_that_are_gone_go_but_for_the_last(stored: Stored) -> None:
    first = stored.generations()[0]
    for number in range(RECORDS_KEPT + 5):
        stored.store.record_boot(SCOPE, stored.key, f"{first}.died.{number:04d}", {"outcome": "died"})
    cleaned(stored, count=1)
    assert len(stored.store.notes(SCOPE, stored.key, ("boots",))) == RECORDS_KEPT


def test_a_dry_run_says_the_same_and_removes_nothing(stored: Stored) -> None:
    stored.publish("d")
    before = [*tree(stored.place)]
    would = cleaned(stored, dry=True, count=2)
    assert [*tree(stored.place)] == before
    assert would.generations == cleaned(stored, count=2).generations


def test_what_dead_writers_left_anywhere_goes_after_a_day(stored: Stored) -> None:
    left = [stored.place / "v1/packs/.pack.1.ab.tmp", stored.place / f"v1/{SCOPE}/{stored.key}/boots/.x.1.ab.tmp"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    cleaned(stored)
    assert all(path.exists() for path in left)
    stored.pass_time(90_000)
    cleaned(stored)
    assert not any(path.exists() for path in left)


def test_a_folder_that_a_killed_run_left_goes(stored: Stored) -> None:
    first = stored.generations()[0]
    folder = stored.place / f"v1/{SCOPE}/{stored.key}/generations" / first
    (folder / "manifest.json").unlink()
    cleaned(stored)
    assert not folder.exists()


def test_unsigned_generations_do_not_push_out_a_signed_one(tmp_path: Path) -> None:
    stored, keys = Stored(tmp_path), pair(tmp_path)
    stored.publish("a", **keys.fields)
    for kernel in "bcd":
        stored.publish(kernel)
    stored.store.trust = trust(KeyFiles(**{"trusted": str(keys.public)}), time.time)
    cleaned(stored, count=1)
    stored.store.trust = None
    stored.restore(**keys.trusting)
    assert stored.kernels() == {"a"}
    assert len(stored.generations()) == 2, "the signed one, and the highest number"


def test_a_key_that_is_used_daily_is_not_unused_though_no_more_boots_are_recorded(stored: Stored) -> None:
    stored.pass_time(9 * 86400)
    stored.store.mark_used(SCOPE, stored.key)
    assert stored.store.idle_s(SCOPE, stored.key) < 60
    assert cleaned(stored, unused_s=86400.0, later_s=9 * 86400).keys == ()


async def test_publishers_clean_up_once_in_the_interval_and_say_so(stored: Stored) -> None:
    client = CacheClient(time.monotonic)
    request = CleanRequest(store=str(stored.place), interval_s=3600.0, limits=Limits(grace_s=0.0, count=1))
    first = await client.clean(request, 60)
    assert "2 generations" in first.sentence
    assert (first.done, first.generations, first.bytes_over) == (True, 2, 0)
    # The one that stays needs all three archives.
    assert first.bytes_kept == sum(path.stat().st_size for path in stored.place.glob("v1/packs/*"))
    stored.publish("d")
    second = await client.clean(request, 60)
    assert (second.sentence, second.done) == ("", False)
    assert second.age_s is not None
    assert 0 <= second.age_s < 60
    stored.pass_time(7200)
    assert "1 generations" in (await client.clean(request, 60)).sentence


async def test_a_store_that_is_away_is_told_and_nothing_else(tmp_path: Path) -> None:
    result = await CacheClient(time.monotonic).clean(
        CleanRequest(store=str(tmp_path / "no"), interval_s=1, limits=Limits(grace_s=1)), 60
    )
    assert result.failed
    assert "does not exist" in result.sentence


def test_a_store_that_is_read_only_is_not_cleaned(stored: Stored) -> None:
    stored.store = DirectoryStore(stored.place, "read-only", lambda _s: None)
    with pytest.raises(Exception, match="read-only"):
        cleaned(stored, count=1)


def test_a_remembered_fallback_outlives_the_caches_of_its_key(stored: Stored) -> None:
    stored.store.remember_fallback(SCOPE, stored.key, "a", {"change": "--kv-cache-dtype auto"})
    stored.pass_time(9 * GRACE_S)
    cleaned(stored, unused_s=1.0, later_s=9 * GRACE_S)
    assert stored.generations() == []
    assert [each["change"] for each in stored.store.fallbacks(SCOPE, stored.key)] == ["--kv-cache-dtype auto"]
