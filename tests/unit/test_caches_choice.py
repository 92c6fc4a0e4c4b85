"""Claims about which generation a pod is restored from while others try, wait or have died."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.choice import Choice
from sidecar.caches.claims import TTL_S, Claims, beat
from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.holding import hold
from sidecar.caches.manifest import Manifest, generation_name
from sidecar.caches.messages import HoldRequest, Progress, RestoreRequest
from sidecar.caches.store import open_store
from tests.fakes.live_cache import facts

KNOWN = fingerprint(facts(), "/live")
KEY = KNOWN.exact_key


class Fleet:
    """One store, its generations, and pods that choose among them; time passes only while a pod sleeps."""

    def __init__(self, place: object) -> None:
        self.store = open_store(str(place), "read-write", lambda _s: None)
        self.now = 0.0
        self.said: list[str] = []
        self.while_waiting: Callable[[], None] = lambda: None

    def publish(self, sequence: int) -> str:
        name = generation_name("exact", KEY, sequence)
        manifest = Manifest(scope="exact", key=KEY, name=name, parent=None, created_unix_s=1.0, created_by="test")
        self.store.create_generation(manifest)
        return name

    def boot(self, name: str, outcome: str, pod: str) -> None:
        self.store.record_boot("exact", KEY, f"{name}.{outcome}.{pod}", {"generation": name, "outcome": outcome})

    def pod(self, holder: str, **changes: Any) -> Choice:
        request = RestoreRequest(
            store="", live_cache="/live", facts=facts(), attempt="1", **{"holder": holder, **changes}
        )
        return Choice(request, self.store, KNOWN, lambda: self.now, self._sleep, self._told)

    def chosen(self, holder: str, **changes: Any) -> str | None:
        found = self.pod(holder, **changes).choose("exact", Counter())
        return found.name if found else None

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.while_waiting()

    def _told(self, progress: Progress) -> None:
        self.said.append(progress.waiting)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_the_newest_generation_is_taken_by_all_while_nobody_was_ready_on_any(fleet: Fleet) -> None:
    fleet.publish(1)
    newest = fleet.publish(2)
    assert [fleet.chosen(pod) for pod in "abc"] == [newest] * 3


def test_only_one_pod_at_a_time_tries_a_candidate_while_a_proven_one_is_there(fleet: Fleet) -> None:
    proven, _, candidate = (fleet.publish(number) for number in (1, 2, 3))
    fleet.boot(proven, "ready", "z")
    rejected = Counter[str]()
    assert fleet.chosen("a") == candidate
    found = fleet.pod("b").choose("exact", rejected)
    assert found is not None
    # Not the older candidate either: one pod at a time.
    assert (found.name, rejected) == (proven, Counter(claimed=2))


def test_a_candidate_that_became_ready_once_is_taken_by_all(fleet: Fleet) -> None:
    for number in (1, 2):
        fleet.boot(fleet.publish(number), "ready", "z")
    assert [fleet.chosen(pod) for pod in "ab"] == [generation_name("exact", KEY, 2)] * 2


def test_the_next_pod_tries_a_candidate_when_its_holder_gave_it_back(fleet: Fleet) -> None:
    fleet.boot(fleet.publish(1), "ready", "z")
    candidate = fleet.publish(2)
    first = fleet.pod("a")
    first.choose("exact", Counter())
    first.give_back(set())
    assert fleet.chosen("b") == candidate


def test_a_holder_that_lapsed_does_not_keep_a_candidate_for_ever(fleet: Fleet, tmp_path: Path) -> None:
    proven, candidate = fleet.publish(1), fleet.publish(2)
    fleet.boot(proven, "ready", "z")
    fleet.chosen("a")
    [path] = tmp_path.glob("v1/exact/*/claims/*/00000001/beat.json")
    # The last one: the store's clock was set back since the beat.
    for age, expected in ((TTL_S - 60, proven), (TTL_S + 60, candidate), (-TTL_S - 60, candidate)):
        now = time.time()
        os.utime(path, (now - age, now - age))
        pod = fleet.pod("b")
        found = pod.choose("exact", Counter())
        assert found is not None
        assert found.name == expected
        pod.give_back(set())
        path = max(tmp_path.glob("v1/exact/*/claims/*/*/beat.json"))
        path.write_text(path.read_text().replace("true", "false"))


def test_two_deaths_in_two_pods_condemn_a_generation_that_nobody_was_ready_on(fleet: Fleet) -> None:
    older, bad = fleet.publish(1), fleet.publish(2)
    fleet.boot(bad, "died", "x")
    assert fleet.chosen("a") == bad
    fleet.boot(bad, "died", "y")
    rejected = Counter[str]()
    found = fleet.pod("b").choose("exact", rejected)
    assert found is not None
    assert (found.name, rejected) == (older, Counter(condemned=1))


def test_deaths_do_not_condemn_a_generation_that_another_pod_was_ready_on(fleet: Fleet) -> None:
    good = fleet.publish(1)
    fleet.boot(good, "ready", "w")
    for pod in "xyz":
        fleet.boot(good, "died", pod)
    assert fleet.chosen("a") == good


@pytest.mark.parametrize("changes", [{"store_mode": "read-only"}, {"holder": ""}])
def test_a_pod_that_may_not_claim_takes_the_proven_one(fleet: Fleet, changes: dict[str, str]) -> None:
    proven = fleet.publish(1)
    fleet.publish(2)
    fleet.boot(proven, "ready", "z")
    assert fleet.chosen(**{"holder": "a", **changes}) == proven
    assert not list(fleet.store.root.glob("v1/exact/*/claims/*"))


def test_a_store_that_takes_no_claims_is_restored_from_all_the_same(fleet: Fleet) -> None:
    proven = fleet.publish(1)
    fleet.publish(2)
    fleet.boot(proven, "ready", "z")
    # A file in the way of the folder, as on a volume where nothing can be made.
    (fleet.store.root / "v1/exact" / KEY / "claims").write_text("")
    assert fleet.chosen("a") == proven


def test_without_single_flight_an_empty_key_is_not_waited_for(fleet: Fleet) -> None:
    assert (fleet.chosen("a"), fleet.now) == (None, 0.0)


def test_the_first_pod_of_an_empty_key_goes_on_and_holds_the_claim(fleet: Fleet) -> None:
    pod = fleet.pod("a", single_flight_s=600)
    assert pod.choose("exact", Counter()) is None
    assert (fleet.now, [claim.what for claim in pod.claims]) == (0.0, ["first"])
    assert pod.give_back(set()) == tuple(pod.claims)


def test_followers_wait_until_the_first_generation_is_there_and_say_for_whom(fleet: Fleet) -> None:
    leader = fleet.pod("pod-a", single_flight_s=600)
    leader.choose("exact", Counter())

    def publish_at_50_s() -> None:
        beat(fleet.store, leader.claims[0], int(fleet.now))
        if fleet.now == 50:
            fleet.publish(1)

    fleet.while_waiting = publish_at_50_s
    follower = fleet.pod("pod-b", single_flight_s=600)
    found = follower.choose("exact", Counter())
    assert found is not None
    assert (found.name, follower.waited_s) == (generation_name("exact", KEY, 1), 50)
    assert "Waiting for pod-a" in fleet.said[-1]
    assert "since 48 s, for at most 600 s" in fleet.said[-1]


def test_followers_start_cold_when_the_first_publisher_takes_longer_than_they_wait(fleet: Fleet) -> None:
    leader = fleet.pod("a", single_flight_s=600)
    leader.choose("exact", Counter())
    fleet.while_waiting = lambda: beat(fleet.store, leader.claims[0], int(fleet.now))
    follower = fleet.pod("b", single_flight_s=300)
    assert (follower.choose("exact", Counter()), follower.waited_s, follower.claims) == (None, 300, [])


def test_one_follower_takes_the_place_of_a_first_publisher_that_fell_silent(fleet: Fleet) -> None:
    fleet.pod("a", single_flight_s=600).choose("exact", Counter())
    follower = fleet.pod("b", single_flight_s=600)
    follower.choose("exact", Counter())
    assert (follower.waited_s, follower.claims[0].epoch) == (TTL_S, 2)


def test_a_first_publisher_that_gave_up_is_followed_at_once(fleet: Fleet) -> None:
    leader = fleet.pod("a", single_flight_s=600)
    leader.choose("exact", Counter())
    beat(fleet.store, leader.claims[0], 9, released=True)
    follower = fleet.pod("b", single_flight_s=600)
    follower.choose("exact", Counter())
    assert (follower.waited_s, follower.claims[0].holder) == (0, "b")


def test_a_claim_is_taken_by_one_of_those_who_saw_it_free(fleet: Fleet) -> None:
    both = [Claims(fleet.store, "exact", KEY, holder) for holder in "ab"]
    taken = [claims.take("first", 0) for claims in both]
    assert [claim is not None for claim in taken] == [True, False]


def test_claims_of_long_ago_are_removed(fleet: Fleet) -> None:
    claims = Claims(fleet.store, "exact", KEY, "a")
    for epoch in range(4):
        assert claims.take("first", epoch)
    assert sorted(path.name for path in fleet.store.root.glob("v1/exact/*/claims/first/*")) == ["00000003", "00000004"]


def test_a_held_claim_is_renewed_and_given_back_in_the_end(fleet: Fleet) -> None:
    claims = Claims(fleet.store, "exact", KEY, "a")
    claim = claims.take("first", 0)
    assert claim is not None
    seen = []

    def asked_back(_seconds: float) -> bool:
        found = claims.look("first")
        assert found is not None
        seen.append((found.beat, found.released))
        return len(seen) == 3

    hold(HoldRequest(store="", claims=(claim,)), asked_back, lambda: fleet.store)
    end = claims.look("first")
    assert end is not None
    assert (seen, end.released) == ([(1, False), (2, False), (3, False)], True)
