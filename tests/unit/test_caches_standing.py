"""Claims about what people are told of a claim in the store: held, lapsed, or that nobody can say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sidecar.caches.claims import TTL_S, Claims, beat
from sidecar.caches.messages import Claim
from sidecar.caches.standing import GONE_S, Standing, Watch, standings
from sidecar.caches.store import DirectoryStore

KEY = "a" * 32
PLACE = ("exact", KEY, "first")


class Scene:
    """One claim in a real store; time passes only while somebody watches, and then `meanwhile` happens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = DirectoryStore(root, "read-write", lambda _s: None)
        claim = Claims(self.store, "exact", KEY, "pod-a").take("first", 0)
        assert claim is not None
        self.claim: Claim = claim
        self.now = 0.0
        self.beats_at: list[float] = []

    def aged(self, seconds: float) -> None:
        """Let the last beat be so long ago by the store's clock."""
        for path in self.root.glob("v1/exact/*/claims/first/*/*.json"):
            os.utime(path, (time.time() - seconds, time.time() - seconds))

    def watched(self, seconds: float) -> Standing:
        return standings(self.store, [PLACE], Watch(seconds, lambda: self.now, self.sleep))[PLACE]

    def judged(self) -> Standing:
        return standings(self.store, [PLACE])[PLACE]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.beats_at and self.beats_at[0] <= self.now:
            beat(self.store, self.claim, 100 - len(self.beats_at))
            self.beats_at.pop(0)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("age_s", "state"),
    [
        (0, "held"),
        (35, "held"),
        (60, "unsure"),
        (TTL_S, "unsure"),
        (TTL_S + 60, "lapsed"),
        (840, "lapsed"),
        (-40, "unsure"),
    ],
)
def test_the_age_of_the_last_beat_on_the_stores_clock_says_how_a_claim_stands(
    scene: Scene, age_s: float, state: str
) -> None:
    scene.aged(age_s)
    found = scene.judged()
    assert (found.holder, found.state) == ("pod-a", state)
    assert found.beat_age_s == pytest.approx(age_s, abs=15)


def test_a_claim_without_a_beat_is_as_old_as_its_holders_name(scene: Scene) -> None:
    [path] = scene.root.glob("v1/exact/*/claims/first/*/beat.json")
    path.unlink()
    scene.aged(840)
    assert scene.judged().state == "lapsed"


def test_of_a_store_that_cant_be_written_nobody_says_more_than_it_knows(scene: Scene) -> None:
    scene.aged(840)
    reader = DirectoryStore(scene.root, "read-only", lambda _s: None)
    assert standings(reader, [PLACE])[PLACE] == Standing("pod-a", "unsure", None)


def test_a_beat_that_changes_while_it_is_watched_is_held_whatever_the_clocks_say(scene: Scene) -> None:
    reader = DirectoryStore(scene.root, "read-only", lambda _s: None)
    scene.beats_at = [14.0]
    watch = Watch(40, lambda: scene.now, scene.sleep)
    assert standings(reader, [PLACE], watch)[PLACE] == Standing("pod-a", "held", None)
    assert scene.now == 14.0


def test_a_beat_that_stays_as_it_is_for_longer_than_pods_wait_has_lapsed_whatever_the_clocks_say(scene: Scene) -> None:
    assert scene.watched(GONE_S).state == "lapsed"


def test_a_fresh_beat_that_did_not_change_while_it_was_watched_is_no_longer_called_held(scene: Scene) -> None:
    assert scene.watched(20).state == "held"
    assert scene.watched(60).state == "unsure"


def test_what_was_given_back_is_not_told_not_even_when_that_happens_during_the_watch(scene: Scene) -> None:
    def sleep(seconds: float) -> None:
        scene.now += seconds
        beat(scene.store, scene.claim, 7, released=True)

    assert standings(scene.store, [PLACE], Watch(40, lambda: scene.now, sleep)) == {}
    assert standings(scene.store, [PLACE, ("exact", KEY, "nothing")]) == {}


def test_who_took_a_silent_holders_place_during_the_watch_is_the_holder(scene: Scene) -> None:
    scene.aged(840)

    def sleep(seconds: float) -> None:
        scene.now += seconds
        if scene.now == 3.0:
            Claims(scene.store, "exact", KEY, "pod-b").try_to_take("first")

    found = standings(scene.store, [PLACE], Watch(40, lambda: scene.now, sleep))[PLACE]
    assert (found.holder, found.state, scene.now) == ("pod-b", "held", 3.0)
