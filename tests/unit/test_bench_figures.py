"""Percentiles, what counts as answered, lengths of requests, and the rows of plots."""

from __future__ import annotations

import math
import random
import statistics
from itertools import islice

import pytest

from sidecar.bench import plot
from sidecar.bench.durations import duration
from sidecar.bench.percentiles import Tally, percentile
from sidecar.bench.samples import Samples
from sidecar.bench.shapes import Lengths, from_ranges
from sidecar.engines.protocol import Completion
from sidecar.errors import UsageError


def answer(**changes: object) -> Completion:
    values: dict = {"ok": True, "status": 200, "ttft_s": 0.5, "total_s": 1.0, "gaps_s": (0.1, 0.3), "tokens": 5}
    return Completion(**{**values, **changes})


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_a_percentile_lies_between_two_values_as_numpy_has_it(share, expected):
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(expected)


def test_a_percentile_agrees_with_the_standard_library():
    values = sorted(random.Random(1).expovariate(1) for _ in range(501))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert [percentile(values, share / 100) for share in (1, 50, 95, 99)] == pytest.approx(
        [cuts[at] for at in (0, 49, 94, 98)]
    )


def test_a_tally_of_many_gaps_is_within_half_a_percent_and_stays_small():
    rng, tally = random.Random(2), Tally()
    values = sorted(rng.lognormvariate(-4, 1) for _ in range(20_000))
    for value in values:
        tally.add(value)
    for share in (0.5, 0.95, 0.99):
        exact = values[math.ceil(share * len(values)) - 1]
        assert tally.percentile(share) == pytest.approx(exact, rel=0.0051)
    assert tally.worst == values[-1]
    assert len(tally._buckets) < 1000


def test_tpot_is_the_time_after_the_first_text_per_token_after_the_first():
    samples = Samples()
    samples.take(0.0, answer())
    assert list(samples.tpot) == [pytest.approx(0.4 / 4)]
    assert samples.gaps.count == 2


def test_an_answer_of_one_token_has_no_tpot_and_is_answered():
    samples = Samples()
    assert samples.take(0.0, answer(tokens=1, gaps_s=()))
    assert math.isnan(samples.tpot[0])


def test_tokens_without_readable_text_are_an_answer_without_a_ttft():
    samples = Samples()
    assert samples.take(0.0, answer(ttft_s=None, gaps_s=()))
    assert math.isnan(samples.ttft[0])
    assert samples.failures == {}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"ok": False, "status": 500, "error_kind": "broken"}, "HTTP 500"),
        ({"ok": False, "status": 429, "error_kind": "timed_out"}, "HTTP 429"),
        ({"ok": False, "status": 200, "error_kind": "broken"}, "error in a 200 answer"),
        ({"ok": False, "status": None, "error_kind": "refused"}, "connection refused"),
        ({"ok": False, "status": 200, "error_kind": "reset"}, "connection lost"),
        ({"ok": True, "ttft_s": None, "tokens": 0}, "no text"),
    ],
)
def test_a_request_that_was_not_answered_is_counted_by_kind_and_is_in_no_figure(changes, kind):
    samples = Samples()
    assert not samples.take(0.0, answer(**changes))
    assert (list(samples.failures), samples.failed, samples.answered) == ([kind], 1, 0)


@pytest.mark.parametrize(("text", "low", "high"), [("64:2048", 64, 2048), ("7", 7, 7), ("7:7", 7, 7)])
def test_a_range_of_tokens_is_read(text, low, high):
    assert Lengths.parse(text) == Lengths(low, high)


@pytest.mark.parametrize("text", ["", "a", "0:5", "9:3", "1:", "-1:4", "1:2:3", "1.5"])
def test_what_is_no_range_of_tokens_is_told(text):
    with pytest.raises(ValueError, match="is not a range of tokens"):
        Lengths.parse(text)


def test_the_same_seed_gives_the_same_lengths_and_another_gives_others():
    def drawn(seed: int) -> list:
        return list(islice(from_ranges(Lengths(8, 1000), Lengths(1, 99), None, seed), 50))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_no_request_is_longer_than_the_model():
    shapes = list(islice(from_ranges(Lengths(10, 900), Lengths(5, 800), 256, 3), 500))
    assert all(each.prompt_tokens >= 1 and each.output_tokens >= 1 for each in shapes)
    assert max(each.prompt_tokens + each.output_tokens for each in shapes) <= 256


def test_requests_that_can_not_fit_are_refused():
    with pytest.raises(UsageError, match="256 tokens"):
        from_ranges(Lengths(250, 300), Lengths(50, 60), 256, 1)


def test_a_histogram_holds_every_value_once():
    values = [random.Random(4).lognormvariate(0, 2) for _ in range(1000)] + [0.0]
    assert sum(int(bar.text) for bar in plot.histogram(values)) == 1001


def test_values_that_are_all_the_same_are_one_bar():
    [bar] = plot.histogram([0.25] * 9)
    assert (bar.text, bar.share) == ("9", 1.0)


def test_a_stall_stands_out_in_the_stretch_in_which_it_happened():
    bars = plot.over_time([float(at) for at in range(24)], [0.1] * 10 + [5.0] + [0.1] * 13)
    assert [at for at, bar in enumerate(bars) if bar.share == 1.0] == [5]
    assert bars[0].share == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.00085, "850 µs"), (0.00834, "8.34 ms"), (0.0999, "99.9 ms"), (2.314, "2.31 s"), (84.21, "84.2 s")],
)
def test_a_time_is_written_with_three_digits_and_its_unit(seconds, text):
    assert duration(seconds) == text


def test_a_run_too_short_for_stretches_shows_none_and_a_short_one_has_as_many_as_labels_tell_apart() -> None:
    assert plot.over_time([0.0], [0.2]) == []
    assert plot.over_time([0.0, 0.0002, 0.015], [0.2, 0.1, 0.1]) == []
    bars = plot.over_time([0.0, 0.02, 0.045], [0.2, 0.1, 0.1])
    assert [bar.label for bar in bars] == ["0.00 to 0.01 s", "0.01 to 0.02 s", "0.02 to 0.03 s", "0.03 to 0.04 s"]
    assert len({bar.label for bar in plot.over_time([0.0, 0.3], [0.2, 0.1])}) == plot.ROWS
