"""Coverage as points for a picture: where a step lies, which state it has, and how many there are at most."""

from __future__ import annotations

import pytest

from sidecar.warmup import coverage_map
from sidecar.warmup.bursts import Ask, single
from sidecar.warmup.coverage import Coverage, Matter
from sidecar.warmup.planner import make_plan
from tests.unit.warmup_engine import FACTS, profile

PLAN = make_plan(profile({"kind": "prefill", "tokens": [64, 300], "output_tokens": 1}), FACTS)
LONG = Matter("searched: 512", single("512", Ask(1, 512, 2)), frozenset({"a"}))
BATCH = Matter("drawn", single("8 at once", Ask(8, 100, 2)), frozenset({"b"}))


def covered(*matters: Matter, **sizes: tuple[int, ...]) -> Coverage:
    named = {name.replace("_", " "): values for name, values in sizes.items()}
    return Coverage("p", matters=matters, sizes=named, converged=True)


def test_sizes_lie_where_the_engine_reads_them() -> None:
    found = covered(token_counts=(16, 48), batch_sizes=(4, 7), token_counts_of_6_at_once=(96,), strange=(5,))
    shown = coverage_map.picture(PLAN, None, found, 0)
    assert shown["visited"] == [(4, 4), (7, 7), (16, 1), (48, 1), (96, 6)]
    assert (shown["max_tokens"], shown["max_requests"], shown["converged"]) == (
        PLAN.limits.max_num_batched_tokens, PLAN.limits.max_num_seqs, True,
    )  # fmt: skip


def test_what_compiled_here_and_what_was_replayed_is_not_visited_only() -> None:
    found = covered(LONG, BATCH, token_counts=(16, 512), token_counts_of_8_at_once=(800,))
    shown = coverage_map.picture(PLAN, covered(LONG), found, 1)
    assert (shown["visited"], shown["replayed"], shown["compiled"]) == ([(16, 1)], [(512, 1)], [(800, 8)])


def test_a_known_burst_that_brought_a_new_kernel_has_compiled() -> None:
    again = Matter(LONG.name, LONG.burst, LONG.names | {"c"})
    assert coverage_map.picture(PLAN, covered(LONG), covered(again), 1)["compiled"] == [(512, 1)]


def test_what_was_not_sent_again_is_not_called_replayed() -> None:
    shown = coverage_map.picture(PLAN, covered(LONG), covered(LONG), 0)
    assert (shown["replayed"], shown["compiled"]) == ([], [])


def test_a_burst_of_the_plan_is_found_by_its_name() -> None:
    step = PLAN.steps[0]
    named = Matter(f"{step.name}/{step.bursts[0].key}", None, frozenset({"k"}))
    assert coverage_map.picture(PLAN, None, covered(named), 0)["compiled"] == [(64, 1)]


def test_a_warm_up_that_tells_nothing_gives_an_empty_map() -> None:
    shown = coverage_map.picture(PLAN, None, None, 0)
    assert not any(shown[state] for state in coverage_map.STATES)


@pytest.mark.parametrize("many", [coverage_map.POINTS_KEPT, 20_000])
def test_the_map_keeps_a_bounded_number_of_points_and_every_one_that_compiled(many: int) -> None:
    shown = coverage_map.picture(PLAN, None, covered(BATCH, token_counts=tuple(range(1, many + 1))), 0)
    assert shown["compiled"] == [(800, 8)]
    assert len(shown["visited"]) == coverage_map.POINTS_KEPT - 1
    assert shown["omitted"] == many - len(shown["visited"])
    assert max(shown["visited"])[0] > many * 0.99
