"""Claims about retention: what may go and what never does, decided without a store."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.caches.messages import Limits
from sidecar.caches.retention import Generation, Key, Plan, Planner, kept_for_ever

GRACE_S = 600.0
DAY_S = 86400.0


def generation(
    number: int, state: str = "proven", age_s: float = DAY_S, packs: tuple[int, ...] = (), held: bool = False
):
    return Generation(f"{number:08d}-{number:016x}", state, age_s, packs, held)


def planned(*keys: Key, sizes: tuple[int, ...] = (), **limits: float) -> Plan:
    return Planner(keys, sizes, Limits(grace_s=GRACE_S, **limits)).plan()  # type: ignore[arg-type]


def key(*generations: Generation, name: str = "k", idle_s: float = 0.0) -> Key:
    return Key("exact", name, generations, idle_s)


def gone(plan: Plan) -> list[int]:
    return [int(one.name[:8]) for one in plan.generations]


def test_without_limits_nothing_goes() -> None:
    assert gone(planned(key(*(generation(number, age_s=1e9) for number in (3, 2, 1)), idle_s=1e9))) == []


def test_the_newest_of_a_key_stay_and_those_beyond_the_count_go_with_a_reason() -> None:
    plan = planned(key(*map(generation, (4, 3, 2, 1))), count=2)
    assert gone(plan) == [2, 1]
    assert plan.generations[0].reason == "its key has 2 newer ones"


def test_generations_that_cannot_be_restored_do_not_count_and_go() -> None:
    plan = planned(key(generation(5), generation(4, "quarantined"), generation(3, "condemned"), generation(2)), count=2)
    assert gone(plan) == [4, 3]


def test_what_is_too_old_goes_but_never_the_newest_nor_the_newest_proven_one() -> None:
    old = [generation(4, "candidate", 9e9), generation(3, "proven", 9e9), generation(2, "proven", 9e9)]
    assert gone(planned(key(*old), age_s=DAY_S)) == [2]


def test_the_highest_number_stays_even_when_it_is_of_no_use() -> None:
    plan = planned(key(generation(3, "quarantined", 9e9), generation(2), generation(1)), count=1)
    assert gone(plan) == [1]


def test_what_is_young_or_tried_or_unknown_stays() -> None:
    young, tried = generation(4, age_s=10), generation(3, held=True)
    plan = planned(key(generation(5), young, tried, generation(2, "unknown"), generation(1)), count=1)
    assert gone(plan) == [1]


def test_an_age_that_is_not_known_is_young() -> None:
    plan = planned(key(generation(2), generation(1, age_s=-5.0)), count=1)
    assert gone(plan) == []


def test_an_unsigned_crowd_is_no_reason_to_let_the_signed_one_go() -> None:
    planted = [generation(number, "untrusted") for number in range(9, 3, -1)]
    plan = planned(key(*planted, generation(2), generation(1)), count=1)
    assert gone(plan) == [8, 7, 6, 5, 4, 1]


def test_a_damaged_one_goes_without_any_limit() -> None:
    assert gone(planned(key(generation(2), generation(1, "damaged")))) == [1]


def test_a_key_that_nobody_used_goes_as_a_whole() -> None:
    plan = planned(
        key(generation(2), generation(1), idle_s=9 * DAY_S), key(generation(1), name="used"), unused_s=8 * DAY_S
    )
    assert (gone(plan), plan.keys) == ([2, 1], [("exact", "k")])


def test_an_unused_key_with_something_young_or_tried_stays() -> None:
    for one in (generation(1, held=True), generation(1, age_s=1), generation(1, "unknown")):
        assert planned(key(one, idle_s=9e9), unused_s=1.0).keys == []


def test_past_the_limit_the_least_recently_used_key_gives_its_oldest_first() -> None:
    fresh = key(generation(2, packs=(0,)), generation(1, packs=(1,)), name="fresh", idle_s=1.0)
    stale = key(
        generation(3, packs=(2,)), generation(2, packs=(3,)), generation(1, packs=(4,)), name="stale", idle_s=9.0
    )
    plan = planned(fresh, stale, sizes=(10, 10, 10, 10, 10), bytes=40)
    assert [(one.key, int(one.name[:8])) for one in plan.generations] == [("stale", 1)]
    assert (plan.bytes_kept, plan.bytes_over) == (40, 0)


def test_an_archive_that_another_generation_needs_frees_nothing() -> None:
    plan = planned(key(generation(2, packs=(0, 1)), generation(1, packs=(0,))), sizes=(10, 10), bytes=5)
    assert plan.generations[0].bytes == 0
    assert (plan.bytes_kept, plan.bytes_over) == (20, 15)


@st.composite
def stores(draw: st.DrawFn) -> tuple[list[Key], tuple[int, ...]]:
    sizes = tuple(draw(st.lists(st.integers(0, 50), min_size=6, max_size=6)))
    states = st.sampled_from(["candidate", "proven", "quarantined", "condemned", "untrusted", "damaged", "unknown"])
    keys = []
    for name in range(draw(st.integers(1, 3))):
        found = [
            generation(
                number,
                draw(states),
                draw(st.sampled_from([-1.0, 10.0, 1e4, 1e7])),
                tuple(draw(st.lists(st.integers(0, 5), max_size=3))),
                draw(st.booleans()),
            )
            for number in range(draw(st.integers(0, 5)), 0, -1)
        ]
        keys.append(Key("exact", str(name), found, draw(st.sampled_from([0.0, 1e5, float("inf")]))))
    return keys, sizes


@given(stores(), st.integers(0, 3), st.sampled_from([0.0, 1e5]), st.integers(0, 100), st.booleans())
def test_whatever_the_limits_what_must_stay_stays_and_the_sums_are_right(
    store: tuple[list[Key], tuple[int, ...]], count: int, age_s: float, limit: int, unused: bool
) -> None:
    keys, sizes = store
    plan = planned(*keys, sizes=sizes, count=count, age_s=age_s, bytes=limit, unused_s=1e4 if unused else 0.0)
    names = {(one.key, one.name) for one in plan.generations}
    assert len(names) == len(plan.generations), "nothing goes twice"
    left: set[int] = set()
    for each in keys:
        for one in each.generations:
            if (each.key, one.name) not in names:
                left.update(one.packs)
                continue
            assert not one.held
            assert one.state != "unknown"
            assert one.age_s >= GRACE_S
            assert one.name not in kept_for_ever(each) or (each.scope, each.key) in plan.keys
    if limit:
        assert plan.bytes_kept == sum(sizes[pack] for pack in left)
