"""What one answer, and all of them, are worth beside their recording: tolerance that noise never exhausts and damage does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from sidecar.engines.protocol import Completion
from sidecar.golden.files import AnsweredPrompt
from sidecar.golden.judging import (
    MOST,
    Compared,
    changes_of,
    compare,
    margin,
    mean_size,
    percent,
    read_back,
    said_again,
    to_read,
)
from sidecar.golden.limits import Limits
from sidecar.golden.report import FailedPrompt, GoldenResult, text_diff
from sidecar.golden.verdict import judge

#: A machine that is busy with others is no finding.
calmly = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
LIMITS = Limits()
IDS = tuple(range(100, 112))


def recorded(ids: Sequence[int] = IDS, lead: float = 3.0, **more: object) -> AnsweredPrompt:
    """Make a recorded prompt whose every token led by `lead`."""
    answer = {
        "text": " ".join(f"w{each}" for each in ids), "ids": tuple(ids), "prompt_ids": (1, 2),
        "logprobs": (-0.2,) * len(ids), "margins": (lead,) * len(ids), "scored": (-0.2,) * len(ids),
    }  # fmt: skip
    return AnsweredPrompt.model_validate({"name": "p", "text": "q", "answer": {**answer, **more}})


def answered(ids: Sequence[int], now: float = 3.0, other: int = 999) -> Completion:
    """Make an answer; its tokens lead over those recorded by `now` where they differ."""
    places = [
        {each: -0.2, (IDS[at] if at < len(IDS) and each != IDS[at] else other): -0.2 - now}
        for at, each in enumerate(ids)
    ]
    return Completion(
        True, 200, None, 0.1, text=" ".join(f"w{each}" for each in ids), tokens=len(ids),
        logprobs=tuple(-0.2 - at / 1000 for at in range(len(ids))), token_ids=tuple(ids), alternatives=tuple(places),
    )  # fmt: skip


def flipped(at: int) -> tuple[int, ...]:
    """Give tokens that part from the recorded ones at one place."""
    return (*IDS[:at], *range(500, 500 + len(IDS) - at))


def test_the_recorded_answer_itself_agrees_whole():
    found = compare(recorded(), "solo", answered(IDS), LIMITS)
    assert (found.whole, found.agreed, found.reason) == (True, len(IDS), "")


@calmly
@given(at=some.integers(0, len(IDS) - 1), then=some.floats(0, 0.69), now=some.floats(0, 0.69))
def test_parting_at_a_near_tie_is_excused_wherever_it_is(at: int, then: float, now: float):
    found = compare(recorded(lead=then), "solo", answered(flipped(at), now), LIMITS)
    assert (found.tie, found.reason, found.agreed) == (True, "", at)


@calmly
@given(
    at=some.integers(0, len(IDS) - 1),
    pair=some.one_of(
        some.tuples(some.floats(0.71, 15), some.floats(0, 15)), some.tuples(some.floats(0, 15), some.floats(0.71, 15))
    ),
)
def test_parting_where_one_token_led_clearly_then_or_now_fails(at: int, pair: tuple[float, float]):
    found = compare(recorded(lead=pair[0]), "batch", answered(flipped(at), pair[1]), LIMITS)
    assert not found.tie
    assert "another one" in found.reason


def test_what_is_degenerate_fails_unless_the_recorded_answer_was_too():
    loop = (*IDS[:1], *[7] * 11)
    assert "tokens are" in compare(recorded(), "solo", answered(loop), LIMITS).reason
    odd = compare(recorded(lead=0.1, odd="it repeats itself"), "solo", answered(loop, 0.1), LIMITS)
    assert odd.reason == ""


@pytest.mark.parametrize("odd", ["", "it repeats itself"])
def test_a_log_probability_that_is_no_number_always_fails(odd: str):
    answer = dataclasses.replace(answered(IDS), logprobs=(math.nan,) * len(IDS))
    assert "not a number" in compare(recorded(odd=odd), "solo", answer, LIMITS).reason
    assert "not a number" in read_back(recorded(odd=odd), (math.nan,) * len(IDS), LIMITS, "").reason


def test_an_answer_without_tokens_fails():
    nothing = Completion(True, 200, None, 0.1, text="", token_ids=())
    assert compare(recorded(), "solo", nothing, LIMITS).reason == "no text came"


@calmly
@given(some.lists(some.floats(-30, 0), min_size=1), some.lists(some.floats(-30, 0), min_size=1))
def test_changes_are_clipped_and_counted_for_what_both_have(before: list[float], now: list[float]):
    found = changes_of(before, now)
    assert len(found) == min(len(before), len(now))
    assert all(-MOST <= each <= MOST for each in found)
    assert 0 <= percent(mean_size(found)) < 100


@calmly
@given(some.dictionaries(some.integers(0, 9), some.floats(-20, 0), min_size=2))
def test_a_margin_is_never_negative_and_least_to_the_next_best(places: dict[int, float]):
    nearest = margin(places)
    assert nearest is not None
    assert nearest >= 0
    best = max(places, key=lambda token: places[token])
    for token in places:
        if token != best:
            led = margin(places, token)
            assert led is not None
            assert led >= nearest


def test_a_likelihood_is_taken_from_a_batch_only_where_every_answer_was_whole_and_every_token_told():
    prompt, whole = recorded(), answered(IDS)
    untold = dataclasses.replace(whole, logprobs=None)

    def taken(*answers: tuple[str, Completion]) -> dict[str, Compared]:
        return said_again([prompt], [compare(prompt, way, got, LIMITS) for way, got in answers], LIMITS)  # type: ignore[arg-type]

    found = taken(("solo", whole), ("batch", whole))["p"]
    assert (found.way, found.changes) == ("likelihood", compare(prompt, "batch", whole, LIMITS).changes)
    assert not taken(("solo", whole))
    assert not taken(("batch", whole), ("batch", answered(flipped(3))))
    assert not taken(("batch", whole), ("concurrent", answered(flipped(3))))
    assert not taken(("batch", untold))
    # A recording without log-probabilities of generated tokens has nothing to compare generated ones with.
    old = recorded(logprobs=())
    assert not said_again([old], [compare(old, "batch", whole, LIMITS)], LIMITS)
    assert not said_again([recorded(scored=())], [compare(prompt, "batch", whole, LIMITS)], LIMITS)


@pytest.mark.parametrize(
    ("parted", "at", "now", "read"),
    [(0, 9, 0.5, 0), (2, 9, 0.5, 0), (3, 9, 0.5, 3), (1, 9, 3.0, 1), (2, 7, 0.5, 2), (1, 0, 0.5, 1)],
    ids=["none", "few", "more", "no tie", "early", "at once"],
)
def test_answers_that_parted_are_read_back_unless_so_few_did_and_all_late_at_near_ties(
    parted: int, at: int, now: float, read: int
):
    asked = [recorded(lead=0.5).model_copy(update={"name": f"p{number}"}) for number in range(20)]
    got = [answered(flipped(at), now) if number < parted else answered(IDS) for number in range(20)]
    compared = [compare(one, "batch", what, LIMITS) for one, what in zip(asked, got, strict=True)]
    likely = said_again(asked, compared, LIMITS)
    assert len(to_read(asked, compared, likely, LIMITS)) == read
    assert to_read(asked, compared, {}, LIMITS) == asked


def test_an_answer_that_parted_after_tokens_of_another_likelihood_is_read_back():
    asked = [recorded(lead=0.5).model_copy(update={"name": f"p{number}"}) for number in range(20)]
    unlike = dataclasses.replace(answered(flipped(9), 0.5), logprobs=(-0.2 - 2 * LIMITS.worst_prompt,) * len(IDS))
    compared = [compare(one, "batch", unlike if one.name == "p0" else answered(IDS), LIMITS) for one in asked]
    assert not judge(compared, LIMITS).why
    assert to_read(asked, compared, said_again(asked, compared, LIMITS), LIMITS) == asked[:1]


def test_answers_whose_likelihood_nobody_told_are_read_back_however_few():
    asked = [recorded().model_copy(update={"name": f"p{at}"}) for at in range(20)]
    untold = dataclasses.replace(answered(IDS), logprobs=None)
    compared = [compare(one, "batch", untold if one.name == "p0" else answered(IDS), LIMITS) for one in asked]
    assert to_read(asked, compared, said_again(asked, compared, LIMITS), LIMITS) == asked[:1]


def test_a_prompt_whose_generated_tokens_changed_too_much_fails_by_its_likelihood():
    unlikely = dataclasses.replace(answered(IDS), logprobs=(-0.9,) * len(IDS))
    found = said_again([recorded()], [compare(recorded(), "batch", unlikely, LIMITS)], LIMITS)["p"]
    assert "50 % in probability, 39 % are allowed" in found.reason


def many(noise: Sequence[float], way: str = "likelihood") -> list[Compared]:
    """Make answers whose tokens changed by these."""
    return [Compared(f"p{at}", way, 12, True, False, "", (each,) * 12, "a", "a") for at, each in enumerate(noise)]  # type: ignore[arg-type]


@calmly
@given(some.lists(some.floats(-0.02, 0.02), min_size=4, max_size=30))
def test_noise_of_two_percent_never_fails(noise: list[float]):
    assert judge(many(noise), LIMITS).why == ""


@calmly
@given(some.lists(some.floats(0.2, 0.4), min_size=4, max_size=30), some.booleans())
def test_a_change_of_twenty_percent_fails_in_either_direction(sizes: list[float], up: bool):
    found = judge(many([each if up else -each for each in sizes]), LIMITS)
    assert "in probability" in found.why
    assert found.failed


def test_a_small_loss_that_all_prompts_share_fails_though_each_alone_is_within_drift():
    limits = Limits(drift_percent=20)
    assert "less likely" in judge(many([-0.08] * 20), limits).why
    assert judge(many([-0.08, 0.08] * 10), limits).why == ""


def test_one_prompt_that_fails_is_enough_unless_a_share_is_allowed():
    bad = dataclasses.replace(many([0.0])[0], name="bad", way="batch", reason="wrong")
    assert "'bad' sent in a batch, wrong" in judge([*many([0.0] * 20), bad], LIMITS).why
    assert judge([*many([0.0] * 20), bad], Limits(failing=0.05)).why == ""


def test_without_likelihoods_the_share_of_agreeing_answers_decides():
    parted = [Compared(f"p{at}", "solo", 2, False, False, "", (), "a", "b") for at in range(10)]
    agreed = [Compared(f"q{at}", "solo", 12, True, False, "", (), "a", "a") for at in range(10)]
    assert "begin with the 8 recorded tokens" in judge([*parted, *agreed], LIMITS).why
    assert judge([*parted[:3], *agreed], LIMITS).why == ""


def test_a_result_in_json_has_only_finite_numbers():
    result = GoldenResult("failed", "x", drift_percent=math.nan, statistics={"a": math.inf, "b": 1})
    assert result.to_json()["drift_percent"] is None
    assert result.to_json()["statistics"] == {"a": None, "b": 1}


@calmly
@given(some.text(max_size=60), some.text(max_size=60))
def test_a_difference_holds_both_texts_whole(before: str, after: str):
    pieces = text_diff(before, after)
    assert "".join(text for kind, text in pieces if kind != "new") == before
    assert "".join(text for kind, text in pieces if kind != "gone") == after


def parted(count: int, ways: Sequence[str], agreed: int = 0) -> list[Compared]:
    """Make answers that left the recorded ones where nothing tells whether they may."""
    return [Compared(f"p{at}", way, agreed, False, False, "", (), "a", "b") for way in ways for at in range(count)]  # type: ignore[arg-type]


def whole(count: int, way: str) -> list[Compared]:
    """Make answers that are the recorded ones."""
    return [Compared(f"q{at}", way, 12, True, False, "", (), "a", "a") for at in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_answers_of_which_none_is_the_recorded_one_fail(count: int):
    found = judge(parted(count, ("solo", "batch")), LIMITS)
    assert "only 0% of the answers begin with the 8 recorded tokens" in found.why
    assert found.failed[0].reason == "it agrees in 0 of the 8 first tokens"


def test_answers_that_disagree_in_all_ways_together_fail_though_each_way_has_few():
    assert "only 40%" in judge([*parted(3, ("batch",)), *whole(2, "solo")], LIMITS).why


def test_few_answers_of_which_some_are_others_prove_nothing_where_the_engine_tells_too_little():
    found = judge([*parted(2, ("batch",)), *whole(1, "solo")], Limits(agreeing=0.3))
    assert found.why == ""
    assert "2 of 3 answers are not the recorded ones" in found.unsure
    assert judge(whole(3, "solo"), LIMITS).unsure == ""


def test_near_ties_at_the_first_token_of_all_answers_prove_nothing_without_likelihoods():
    ties = [dataclasses.replace(each, tie=True) for each in parted(3, ("solo", "batch"))]
    assert "all answers left the recorded ones at near ties" in judge(ties, LIMITS).unsure
    assert judge([*ties, *many([0.0] * 4)], LIMITS).unsure == ""


def test_a_loop_after_an_early_near_tie_fails_unless_the_trusted_engine_loops_itself():
    early, late = (*IDS[:1], *[7] * 11), (*IDS[:7], *[7] * 5)
    assert "tokens are" in compare(recorded(lead=0.1), "solo", answered(early, 0.1), LIMITS).reason
    assert compare(recorded(lead=0.1), "solo", answered(early, 0.1), LIMITS, loops=True).reason == ""
    ended = dataclasses.replace(answered(late, 0.1), logprobs=(-0.2,) * 12)
    assert compare(recorded(lead=0.1), "solo", ended, LIMITS).reason == ""


def test_allowing_more_drift_allows_no_less_of_the_mean_and_of_single_prompts():
    allowed = Limits().allowing(30)
    assert judge(many([-0.3] * 20), allowed).why == ""
    assert judge(many([-0.3] * 20), Limits()).why
    assert allowed.worst_prompt > 1.5
    closer = Limits().allowing(1)
    assert closer.worst_prompt == Limits().worst_prompt
    assert "1 % are allowed" in judge(many([0.02] * 20), closer).why


def test_long_texts_are_compared_up_to_a_point_that_is_named():
    pieces = text_diff("a b " * 5000, "a c " * 5000)
    assert sum(len(text) for _, text in pieces) < 4200
    assert pieces[-1] == ["same", " [… compared up to here: 20000 and 20000 characters in all]"]
    assert len(text_diff("东" * 3000, "西" * 3000)) == 3


def test_differences_are_made_for_the_first_failures_and_the_rest_is_counted():
    failed = tuple(FailedPrompt(f"p{at}", "solo", "other", "a b", "a c") for at in range(60))
    told = GoldenResult("failed", "x", failed=failed).to_json()
    assert [bool(each["diff"]) for each in told["failed"]] == [True] * 50 + [False] * 10
    assert told["notes"] == ["Differences are shown for the first 50 of 60 wrong answers."]
    assert GoldenResult("failed", "x", failed=failed[:50]).to_json()["notes"] == []


def test_a_log_probability_above_0_fails_where_the_tokens_are_those_recorded():
    answer = dataclasses.replace(answered(IDS), logprobs=(*(-0.2 for _ in IDS[1:]), 0.01))
    assert "above 0" in compare(recorded(), "batch", answer, LIMITS).reason
    assert compare(recorded(odd="it repeats itself"), "batch", answer, LIMITS).reason == ""


def test_a_loss_in_answers_that_parted_counts_though_only_the_others_have_a_likelihood():
    limits = Limits(drift_percent=20)
    whole = many([0.0] * 10)
    parted = [dataclasses.replace(each, name=f"q{at}", way="batch", whole=False, tie=True)
              for at, each in enumerate(many([-0.15] * 10))]  # fmt: skip
    assert "less likely" in judge([*whole, *parted], limits).why
    assert judge([*whole, *parted, *(dataclasses.replace(each, name=f"q{at}") for at, each in enumerate(many([0.0] * 10)))],
                 limits).why == ""  # fmt: skip
