"""Claims about cleaning up whole keys, and what is signed: a first claim stays, a remembered fallback, archives that are whole."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sidecar.caches.claims import Claims
from sidecar.caches.cleaning import Cleaned, clean
from sidecar.caches.messages import FIRST, Limits
from sidecar.caches.signing import sign_again
from sidecar.caches.trust import KeyFiles, trust
from tests.fakes.keys import pair
from tests.fakes.stored import SCOPE, Stored

NEW_KEY = "ab" * 16
UNUSED_S = 86400.0


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def cleaned(stored: Stored, *, dry: bool = False, later_s: float = 0.0) -> Cleaned:
    return clean(stored.store, Limits(grace_s=600.0, unused_s=UNUSED_S), dry=dry, now=lambda: time.time() + later_s)


def test_the_claim_of_a_pod_that_makes_the_first_generation_of_a_key_stays(stored: Stored) -> None:
    claims = Claims(stored.store, "exact", NEW_KEY, "pod-1")
    assert claims.take(FIRST, 0)
    assert cleaned(stored).keys == ()
    seen = claims.look(FIRST)
    assert seen is not None
    assert seen.holder == "pod-1"
    stored.pass_time(3600.0)
    assert cleaned(stored).keys == (("exact", NEW_KEY),), "its pod is gone"


def test_a_key_of_which_only_a_fallback_is_left_is_not_told_as_removed_again_and_again(stored: Stored) -> None:
    stored.store.remember_fallback("exact", NEW_KEY, "a", {"change": "--kv-cache-dtype auto"})
    assert [cleaned(stored, dry=dry).keys for dry in (True, False, False)] == [(), (), ()]
    assert stored.store.fallbacks("exact", NEW_KEY)


def test_no_record_is_left_that_the_next_generation_of_a_name_would_be_taken_for(stored: Stored) -> None:
    stored.publish("a")
    [name] = stored.generations()
    for number in range(2):
        stored.store.record_boot(SCOPE, stored.key, f"{name}.died.{number}", {"outcome": "died"})
    stored.store.remember_fallback(SCOPE, stored.key, "a", {"change": "--kv-cache-dtype auto"})
    stored.pass_time(9 * UNUSED_S)
    cleaned(stored, later_s=9 * UNUSED_S)
    assert stored.generations() == []
    stored.publish("b")
    assert stored.generations() == [name]
    stored.restore()
    assert stored.kernels() == {"b"}
    assert stored.store.fallbacks(SCOPE, stored.key)


def test_a_generation_that_is_published_while_its_key_is_removed_stays(stored: Stored) -> None:
    stored.publish("old")
    stored.pass_time(9 * UNUSED_S)
    look, done = stored.store._is_there, []

    def published_after_the_look(path: Path) -> bool:
        found = look(path)
        if not done and path.name == "manifest.json" and stored.key in path.parts and not found:
            done.append(True)
            stored.publish("new")
        return found

    folder = stored.place / f"v1/{SCOPE}/{stored.key}/generations"
    for manifest in folder.glob("*/manifest.json"):
        manifest.rename(manifest.with_name("gone"))
    stored.store._is_there = published_after_the_look  # type: ignore[method-assign]
    stored.store.remove_key(SCOPE, stored.key)
    assert done
    stored.restore()
    assert stored.kernels() == {"new"}


def test_a_quarantine_outlives_the_key_that_its_generation_was_signed_with(stored: Stored) -> None:
    old, new = pair(stored.root, "old"), pair(stored.root, "new")
    stored.publish("bad", **old.fields)
    [bad] = stored.generations()
    stored.store.quarantine(SCOPE, stored.key, bad, {"reason": "wrong output"})
    stored.publish("good", **new.fields)
    stored.store.trust = trust(KeyFiles(trusted=str(new.public)), time.time)
    clean(stored.store, Limits(grace_s=600.0, count=1), dry=False, now=lambda: time.time() + UNUSED_S)
    assert bad not in stored.generations()
    assert stored.publish("bad", **new.fields).outcome == "nothing_new"


def test_archives_stay_while_only_the_signature_of_their_generation_can_not_be_read(stored: Stored) -> None:
    keys = pair(stored.root)
    stored.publish("a", **keys.fields)
    [name] = stored.generations()
    stored.store.write_signature(SCOPE, stored.key, name, b"x" * 100_000)
    stored.store.trust = trust(KeyFiles(trusted=str(keys.public)), time.time)
    found = cleaned(stored)
    assert (found.waiting, found.generations) == (0, ())
    signer = trust(KeyFiles(signing=str(keys.private)), time.time)
    assert signer is not None
    assert sign_again(stored.store, signer, (SCOPE, stored.key, name), skip=True)
    stored.restore(**keys.trusting)
    assert stored.kernels() == {"a"}


def test_nothing_goes_for_a_newer_generation_whose_manifest_is_cut_short(stored: Stored) -> None:
    for kernel in "abc":
        stored.publish(kernel)
    for name in stored.generations()[1:]:
        path = stored.place / f"v1/{SCOPE}/{stored.key}/generations" / name / "manifest.json"
        path.write_bytes(path.read_bytes()[:-20])
    limits = Limits(grace_s=600.0, count=1)
    would, did = (clean(stored.store, limits, dry=dry, now=lambda: time.time() + UNUSED_S) for dry in (True, False))
    assert [one.reason for one in would.generations] == ["nobody can restore it"]
    assert would.generations == did.generations
    stored.restore()
    assert stored.kernels() == {"a"}


def test_a_newer_generation_whose_manifest_is_not_the_signed_one_is_told_as_untrusted(stored: Stored) -> None:
    keys = pair(stored.root)
    for kernel in "abc":
        stored.publish(kernel, **keys.fields)
    for name in stored.generations()[1:]:
        path = stored.place / f"v1/{SCOPE}/{stored.key}/generations" / name / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b"warmup-sidecar ", b"somebody "))
    stored.store.trust = trust(KeyFiles(trusted=str(keys.public)), time.time)
    found = clean(stored.store, Limits(grace_s=600.0, count=1), dry=False, now=lambda: time.time() + UNUSED_S)
    assert [one.reason for one in found.generations] == ["it is untrusted"]
    stored.restore(**keys.trusting)
    assert stored.kernels() == {"a"}
