"""Claims about a publisher that lost a race: how long it goes on, on a clock that only moves when it sleeps."""

from __future__ import annotations

import pytest

from sidecar.caches.racing import LIMIT_S, UNFINISHED_S, UNSEEN_S, Race
from sidecar.errors import LostRace


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 5
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_number_that_stays_taken_and_unseen_is_passed_over_after_its_time(clock: Clock) -> None:
    race, began = Race(clock, clock.sleep, lambda: 0.5), clock.now
    while race.number(following=3) == 3:
        race.lost(3)
    assert UNSEEN_S <= clock.now - began < UNSEEN_S + 5
    assert race.number(following=3) == 4
    assert race.number(following=9) == 9


def test_each_number_that_others_take_has_its_own_time_and_all_of_them_have_an_end(clock: Clock) -> None:
    race, began = Race(clock, clock.sleep, lambda: 0.5), clock.now
    taken = 0

    def lose() -> None:
        nonlocal taken
        taken += 1
        for _ in range(20):
            assert race.number(following=taken) == taken, "none was passed over"
            race.lost(taken)

    def lose_for_ever() -> None:
        while True:
            lose()

    with pytest.raises(LostRace, match="next publish"):
        lose_for_ever()
    assert LIMIT_S <= clock.now - began < LIMIT_S + 5
    assert taken > 5


def test_a_crowd_that_lost_together_does_not_come_back_together(clock: Clock) -> None:
    pauses = set()
    for lot in (0.0, 0.3, 0.9):
        race, began = Race(clock, clock.sleep, lambda lot=lot: lot), clock.now
        race.lost(1)
        pauses.add(clock.now - began)
    assert len(pauses) == 3


def test_a_damaged_manifest_may_be_in_the_making_for_some_seconds_and_no_longer(clock: Clock) -> None:
    race, began = Race(clock, clock.sleep, lambda: 0.5), clock.now
    while race.may_be_unfinished("00000001-ab"):
        assert clock.now - began < UNFINISHED_S + 5
    assert clock.now - began >= UNFINISHED_S
    assert not race.may_be_unfinished("00000001-ab"), "looked at once, not at every try"


def test_a_clock_that_stands_still_does_not_make_a_race_last_for_ever() -> None:
    race = Race(lambda: 1000.0, lambda _s: None, lambda: 0.5)
    for _ in range(200):
        if race.number(following=1) == 2:
            return
        race.lost(1)
    raise AssertionError("the number was never passed over")
