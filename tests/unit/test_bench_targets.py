"""Runs of `bench` beside targets: what is kept, what is missed, and files of targets that can't be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.bench.report import Client, Columns, Figures, Rates, Report, Spread
from sidecar.bench.targets import Targets, compared, read_targets, verdict
from sidecar.errors import UsageError
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.commands import sidecar

LOAD = {"prompt_tokens": 64, "output_tokens": 8, "concurrency": 2}
SPREAD = Spread(count=9, mean=0.2, p50=0.1, p95=0.4, p99=0.5, worst=0.6)


def run(**figures: Spread) -> Report:
    times: dict[str, Any] = dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "total_s"))
    return Report(
        about={}, settings={}, ended="complete", sentence="", seconds=1, sent=9, answered=9, errors={}, notes=[],
        figures=Figures(**(times | figures)), mean_concurrency=2, busiest=2,
        rates=Rates(requests_per_s=9, prompt_tokens_per_s=1, output_tokens_per_s=72),
        client=Client(loop_lag_p99_s=0, loop_lag_worst_s=0, peak_memory_bytes=1),
        samples=Columns(started_s=[], ttft_s=[], tpot_s=[], total_s=[], prompt_tokens=[], tokens=[]),
    )  # fmt: skip


def kept(targets: dict[str, Any], **figures: Spread) -> list[bool | None]:
    return [row.kept for row in compared(run(**figures), Targets.model_validate(LOAD | targets))]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ({"ttft_ms": 200}, True),
        ({"ttft_ms": 199.9}, False),
        ({"ttft_ms": 200, "statistic": "p95"}, False),
        ({"ttft_ms": 400, "statistic": "p95"}, True),
        ({"ttft_ms": 100, "statistic": "p50"}, True),
    ],
)
def test_a_target_is_kept_when_the_chosen_figure_is_not_above_it(targets: dict[str, Any], expected: bool) -> None:
    assert kept(targets, ttft_s=SPREAD) == [expected]


def test_a_time_that_no_request_showed_keeps_no_target() -> None:
    rows = compared(run(), Targets.model_validate(LOAD | {"tpot_ms": 50}))
    assert [(row.kept, row.measured) for row in rows] == [(False, "not measured")]
    assert verdict(rows) == "Missed: TPOT mean."


def test_what_is_predicted_is_shown_and_is_no_target() -> None:
    targets = {"ttft_ms": 300, "predicted": {"ttft_ms": 1, "tpot_ms": 2, "output_tokens_per_s": 900}}
    rows = compared(run(ttft_s=SPREAD, tpot_s=SPREAD), Targets.model_validate(LOAD | targets))
    assert [(row.name, row.predicted, row.kept) for row in rows] == [
        ("TTFT mean", "1.00 ms", True), ("TPOT mean", "2.00 ms", None), ("output", "900 tok/s", None),
    ]  # fmt: skip
    assert verdict(rows) == "All targets are kept."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt_tokens: 8\noutput_tokens: 8\nconcurrency: 1\n", "at least one of ttft_ms"),
        ("prompt_tokens: 8\noutput_tokens: 8\nconcurrency: 0\nttft_ms: 5\n", ":3:1: concurrency"),
        ("prompt_tokens: 8\noutput_tokens: 8\nconcurrency: 1\nttft: 5\n", "did you mean `ttft_ms`"),
        ("prompt_tokens: 8\noutput_tokens: 8\nconcurrency: 1\nttft_ms: .nan\n", ":4:1: ttft_ms"),
        ("version: 2\n", "install a newer one"),
        ("- 1\n", "are a mapping"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_file_that_can_not_be_used_says_where_it_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "targets.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_targets(tmp_path / "targets.yaml")
    assert words in str(raised.value)


async def test_bench_sends_the_load_of_the_targets_and_ends_with_3_where_one_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text("prompt_tokens: 64\noutput_tokens: 8\nconcurrency: 2\nttft_ms: 60000\ntpot_ms: 0.001\n")
    async with FakeEngine(Script(token_seconds=0.002)) as engine:
        ended = await sidecar("bench", "--url", engine.url, "--targets", str(path), "--requests", "20")
        sent = engine.requests[1:]
        assert {(each["prompt_tokens"], each["max_tokens"]) for each in sent} == {(64, 8)}
        assert len(sent) == 20
    assert ended.code == 3, ended.err
    assert "Missed: TPOT mean." in ended.out
    [line] = [line for line in ended.out.splitlines() if line.startswith("TTFT mean")]
    assert line.split()[-1] == "kept"


async def test_targets_beside_a_load_of_ones_own_are_wrong_use(tmp_path: Path) -> None:
    ended = await sidecar("bench", "--targets", str(tmp_path / "t.yaml"), "--concurrency", "4", "--prompt-tokens", "8")
    assert ended.code == 2
    assert "leave --concurrency and --prompt-tokens out" in ended.err
    (tmp_path / "t.yaml").write_text("prompt_tokens: 8\noutput_tokens: 8\nconcurrency: 1\nttft_ms: 5\n")
    ended = await sidecar("bench", "--targets", str(tmp_path / "t.yaml"), "--compare", "a.json", "b.json")
    assert (ended.code, "leave --targets out" in ended.err) == (2, True)
