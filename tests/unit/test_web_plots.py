"""The pictures of the status page: coverage and earlier starts, with nothing, with too much, and with what is no number."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.web import coverage_panel, history_panel, plots
from tests.fakes import scenes

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
#: Bytes that either card may have, whatever it shows: a page is loaded every three seconds.
LARGEST_CARD = 60_000


def started(generation: str, outcome: str, seconds: Any = 90.0, at: Any = scenes.EPOCH) -> dict[str, Any]:
    return {"generation": generation, "outcome": outcome, "seconds": seconds, "cold": None, "at": at}


def test_there_is_no_map_before_a_warm_up_has_ended() -> None:
    assert coverage_panel.coverage({}) is None
    assert coverage_panel.coverage({"coverage": {"visited": [], "compiled": [], "max_tokens": 8192}}) is None


def test_a_step_is_drawn_by_what_it_compiled_and_told_as_text_too() -> None:
    shown = coverage_panel.coverage(
        {
            "coverage": {
                "visited": [[16, 1], [512, 4]],
                "replayed": [[64, 1]],
                "compiled": [[8192, 1]],
                "max_tokens": 8192,
            }
        }
    )
    assert shown is not None
    assert [name for name in coverage_panel.STATES if f'class="s-{name}"' in shown] == [
        "visited",
        "replayed",
        "compiled",
    ]
    assert (
        "2 visited, compiled nothing, 1 compiled by an earlier pod, replayed here, 1 compiled in this warm-up" in shown
    )
    assert "16 to 8\N{NARROW NO-BREAK SPACE}192" in shown


def test_what_compiled_is_drawn_over_what_did_not() -> None:
    across, up = plots.LogAxis(8192, plots.COLUMNS), plots.LogAxis(256, plots.ROWS)
    found = plots.cells({"visited": [(512, 1), (16, 1)], "compiled": [(513, 1)]}, across, up)
    assert [len(places) for places in found.values()] == [1, 1]


def test_a_map_of_any_size_has_a_bounded_picture() -> None:
    many = [[1 + (n * 7919) % 1_000_000, 1 + n % 4096] for n in range(200_000)]
    shown = coverage_panel.coverage(
        {"coverage": {"visited": many, "compiled": many[::3], "omitted": 12, "max_tokens": 1}}
    )
    assert shown is not None
    assert len(shown) < LARGEST_CARD
    assert "12 visited steps more are not drawn" in shown


@pytest.mark.parametrize(
    "odd", [None, "x", [1], [1, 2, 3], [0, 1], [-4, 4], [math.inf, 1], [math.nan, 1], [True, 1], [1e300, 2]]
)
def test_what_is_no_point_is_left_out_of_the_map(odd: Any) -> None:
    alone = coverage_panel.coverage({"coverage": {"visited": [[4, 2]]}})
    assert coverage_panel.coverage({"coverage": {"visited": [[4, 2], odd]}}) == alone


def test_without_a_store_there_are_no_earlier_starts_and_with_an_empty_one_that_is_said() -> None:
    assert history_panel.history({"history": {}}) is None
    shown = history_panel.history({"history": {"key": "k", "starts": []}})
    assert shown is not None
    assert "no record of an earlier start with this key" in shown


def test_each_start_is_a_bar_with_its_generation_time_and_day() -> None:
    starts = [
        started("00000005-5f1c9e2d5f1c9e2d", "made", 762.0),
        started("00000005-5f1c9e2d5f1c9e2d", "ready", 96.0),
        started("00000006-5f1c9e2d5f1c9e2d", "died", None, None),
    ]
    status = {"history": {"key": "k", "starts": starts}, "engine": {"ready_after_s": 92.5}}
    shown = history_panel.history(status)
    assert shown is not None
    assert re.findall(r"<rect[^>]*class=\"k-(\w+)\"><title>([^<]*)", shown) == [
        ("made", "generation 5, compiled the generation: 12 min 42 s, 2026-11-29 17:00 UTC"),
        ("ready", "generation 5, restored from it: 96.0 s, 2026-11-29 17:00 UTC"),
        ("died", "generation 6, died before ready: time not known"),
        ("this", "this start: 92.5 s"),
    ]
    assert "Time to ready of 4 starts: from 92.5 s to 12 min 42 s; the last one 92.5 s." in shown


def test_records_without_times_are_counted_and_not_drawn() -> None:
    shown = history_panel.history({"history": {"key": "k", "starts": [started("g", "ready", None)] * 3}})
    assert shown is not None
    assert "do not say how long they took" in shown
    assert 'class="plot"' not in shown


def test_a_history_of_any_length_has_a_bounded_picture() -> None:
    starts = [started(f"{number:08d}-5f1c9e2d5f1c9e2d", "ready", 1.0 + number) for number in range(20_000)]
    shown = history_panel.history({"history": {"key": "k", "starts": starts}})
    assert shown is not None
    assert len(shown) < LARGEST_CARD


def test_what_the_store_holds_never_becomes_an_element() -> None:
    starts = [started(ATTACK, ATTACK, ATTACK, ATTACK), started(ATTACK, "ready", 3.0, 1e300), {ATTACK: ATTACK}, ATTACK]
    shown = history_panel.history({"history": {ATTACK: ATTACK, "starts": starts}, "restore": {"generation": ATTACK}})
    drawn = coverage_panel.coverage(
        {"coverage": {"visited": [[4, 2], [ATTACK, ATTACK]], "omitted": ATTACK, ATTACK: ATTACK}}
    )
    for card in (shown, drawn):
        assert card is not None
        assert "<script" not in card
        assert "<img" not in card


nothing_or_odd = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["visited", "compiled", "starts", "generation", "outcome", "seconds", "at", "max_tokens", "omitted"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(nothing_or_odd, nothing_or_odd)
@settings(max_examples=150, deadline=None)
def test_no_shape_of_either_section_stops_the_page(coverage: Any, history: Any) -> None:
    coverage_panel.coverage({"coverage": coverage})
    history_panel.history({"history": history, "engine": history})
