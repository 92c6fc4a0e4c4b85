"""The picture of one sidecar that `status --watch` draws: it fits the terminal, and what changes and is wrong stands first."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from sidecar.commands import gpu_view, live_view, status_view
from sidecar.commands.tables import table
from sidecar.engines.server_facts import SMALLEST
from tests.fakes import scenes
from tests.fakes.readings import full_gpu, full_snapshot

SIZES = [(80, 24), (100, 40), (200, 60)]
ESCAPE = "\x1b[2J\x1b]0;owned\x07 \u202e\nfour\nmore\nlines"


def drawn(status: Mapping[str, Any], width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(live_view.picture(status, Text("http://pod", no_wrap=True), console))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def warming(steps: int = 0, **more: Any) -> dict[str, Any]:
    status = scenes.warming().to_json()
    status["gpu"] = full_snapshot(8).to_json()
    if steps:
        one = status["warmup"]["steps"][0]
        states = ["done"] * (steps - 3) + ["running", "pending", "pending"]
        status["warmup"] = {
            **status["warmup"],
            "steps": [{**one, "name": f"step-{number}", "state": state} for number, state in enumerate(states)],
        }
    return {**status, **more}


def place(lines: list[str], word: str) -> int:
    return next(number for number, line in enumerate(lines) if word in line)


@pytest.mark.parametrize(("width", "height"), [*SIZES, (40, 15), (80, 8)])
@pytest.mark.parametrize("name", list(scenes.SCENES))
def test_the_picture_of_each_phase_fits_the_terminal(name: str, width: int, height: int) -> None:
    lines = drawn(scenes.SCENES[name]().to_json(), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_during_warm_up_all_that_changes_is_on_the_screen_in_its_order(width: int, height: int) -> None:
    lines = drawn(warming(), width, height)
    wanted = (
        "not ready (phase warming)",
        "traffic waits",
        "Phases",
        "3 of 8 steps",
        "mixed-prefill-decode",
        "deep_gemm 14",
    )
    shown = [place(lines, word) for word in (*wanted, "The engine answers: vLLM", "0: NVIDIA H200", "12 running")]
    assert shown == sorted(shown)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_was_left_out_is_said_and_where_it_is(width: int, height: int) -> None:
    lines = drawn(warming(60), width, height)
    assert lines[-1].startswith("`status` without --watch has also: ")
    steps = sum(line.startswith("step-") for line in lines)
    assert f": {60 - steps} steps" in lines[-1]


def test_when_all_has_room_nothing_is_said_to_be_left_out() -> None:
    lines = drawn(warming(), 200, 100)
    assert not any("without --watch" in line for line in lines)
    assert any(line.startswith("max num seqs") for line in lines)


def test_of_many_steps_the_running_one_is_shown_with_those_that_ended_last() -> None:
    lines = drawn(warming(60), 80, 24)
    shown = [line.split()[0] for line in lines if line.startswith("step-")]
    assert "step-57" in shown
    assert "step-56" in shown
    assert "step-0" not in shown


def test_what_changes_has_room_before_what_does_not() -> None:
    lines = drawn(warming(60), 100, 40)
    assert sum(line.startswith("step-") for line in lines) > 8
    assert "Parts" not in lines
    assert "Engine facts" not in lines
    assert "Parts" in drawn(warming(), 200, 60)


def test_a_lost_gpu_is_red_in_the_table() -> None:
    gpus = {"gpus": [dataclasses.replace(full_gpu(0), lost=True).to_json(), full_gpu(1).to_json()]}
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(table(gpu_view.grid({"gpu": gpus})))
    assert console.file.getvalue().count("\x1b[31mlost: ") == 1  # type: ignore[attr-defined]


def test_what_is_wrong_stands_before_all_tables_and_the_reason_is_not_said_twice() -> None:
    lost = dataclasses.replace(
        full_snapshot(8), gpus=(*map(full_gpu, range(7)), dataclasses.replace(full_gpu(7), lost=True))
    )
    status = {**scenes.suspended().to_json(), "gpu": lost.to_json()}
    lines = drawn({**status, "degraded": ["The store is full."]}, 80, 24)
    assert place(lines, "GPU 7: NVIDIA H200: lost") < place(lines, "Phases")
    assert place(lines, "degraded: The store is full.") < place(lines, "Phases")
    assert "\n".join(lines).count("The engine makes no progress") == 2
    assert not any("no token for 120" in text for text, _ in live_view.wrongs(status))


def test_what_is_wrong_with_several_gpus_alike_is_one_line() -> None:
    worn = tuple(dataclasses.replace(full_gpu(each), row_remap_failed=1.0, ecc_errors=None) for each in range(3))
    found = live_view.wrongs({"gpu": {"gpus": [gpu.to_json() for gpu in worn]}})
    assert [text for text, _ in found] == ["3 GPUs (0, 1, 2): memory that could not be remapped"]


def test_kernels_are_counted_while_warm_up_runs_and_has_not_said_which_were_before_ready() -> None:
    running = {"outcome": "running", "kernels": {"triton": 37}, "kernels_before_ready": {"triton": 2}}
    assert "Kernels compiled: before ready triton 39; after ready none" in drawn(warming(warmup=running), 80, 24)
    ended = {**running, "outcome": "converged", "kernels_before_ready": {"triton": 39}}
    assert "Kernels compiled: before ready triton 39; after ready none" in drawn(warming(warmup=ended), 80, 24)


def test_of_eight_gpus_the_lost_one_is_shown_when_there_is_room_for_one() -> None:
    found = [full_gpu(each) for each in range(8)]
    found[6] = dataclasses.replace(found[6], lost=True)
    status = warming(60, gpu=dataclasses.replace(full_snapshot(8), gpus=tuple(found)).to_json())
    lines = drawn(status, 80, 24)
    assert lines[place(lines, "remarks") + 1].startswith("6: NVIDIA H200")


def test_answers_that_went_wrong_are_counted_by_prompt_and_answer() -> None:
    failed = [{"name": "bread", "way": way, "reason": "Another token."} for way in ("solo", "batch")]
    golden = {"outcome": "wrong", "sentence": "1 of 3.", "golden": {"prompts": 3, "failed": failed}}
    assert any("went wrong: 1 of 3 prompts, 2 answers" in line for line in drawn(warming(golden=golden), 80, 24))
    assert status_view.wrong_answers({"golden": golden}).title == "Went wrong: 1 of 3 prompts, 2 answers"


def test_a_reason_of_a_page_is_cut_and_leaves_room_for_the_rest() -> None:
    lines = drawn(warming(reason="A long story. " * 100), 80, 24)
    assert len(lines) <= 24
    assert "…" in lines[place(lines, "Phases") - 1]
    assert any("mixed-prefill-decode" in line for line in lines)


def test_nothing_an_engine_says_makes_other_lines_or_moves_the_cursor() -> None:
    status = warming()
    poisoned = {**status["warmup"], "steps": [{**status["warmup"]["steps"][3], "name": ESCAPE, "detail": ESCAPE}]}
    engine = {**status["engine"], "model": ESCAPE, "state": "stalled", "detail": ESCAPE}
    events = [{"at": scenes.EPOCH, "level": "info", "text": ESCAPE}]
    lines = drawn({**status, "warmup": poisoned, "engine": engine, "degraded": [ESCAPE], "events": events}, 80, 24)
    assert sum("owned" in line for line in lines) >= 4
    assert len(lines) <= 24
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines))


@pytest.mark.parametrize("odd", [None, 7, "x", [None], {"steps": [None, {}], "events": 3}])
@pytest.mark.parametrize("section", ["engine", "warmup", "golden", "gpu", "timeline", "events", "degraded", "reason"])
def test_shapes_of_a_newer_daemon_are_drawn_as_far_as_they_go(section: str, odd: object) -> None:
    assert drawn({**warming(), section: odd}, 80, 24)


def test_a_limit_that_nobody_told_is_not_shown_as_the_engines() -> None:
    engine = {"limits": {"max_num_seqs": 256}, "sources": {"max_num_seqs": SMALLEST}}
    rows = [tuple(row) for row in status_view.engine_facts({"engine": engine}).rows]
    assert rows == [("max num seqs", "not told; vLLM's smallest default is 256")]
