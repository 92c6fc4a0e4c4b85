"""What the demo shows: lines without a terminal, a picture with one, and a closing table made of figures alone."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from sidecar.demo.engine_setup import Progress
from sidecar.demo.figures import CaseFigures, DemoFigures, Machine, StartFigures
from sidecar.demo.live_view import LiveView
from sidecar.demo.measure import CASES
from sidecar.demo.summary import rows, sentences
from sidecar.demo.view import PlainView, StartPicture

STEP = {
    "name": "prefill 16",
    "state": "done",
    "requests": 4,
    "ttft_first_s": 1.41,
    "ttft_best_s": 0.011,
    "ttft_last_s": 0.012,
    "kernels": 3,
}
STATUS = {
    "timeline": [{"phase": "restoring", "seconds": 0.4}, {"phase": "warming", "seconds": 3.25}],
    "warmup": {"outcome": "running", "steps": [STEP, {**STEP, "name": "decode [8]", "state": "running"}]},
}
MACHINE = Machine("Some CPU", 2, 8 * 10**9, "6.1", 0.5, 1.5, "2026-01-02", "3.11.7", "0.32.0+cpu", "0.1.0")


def progress(phase: str, seconds: float, done: int = 0, unit: str = "bytes") -> Progress:
    return Progress(phase, "", done, None, unit, seconds, Path("log"))


def test_without_a_terminal_each_change_is_one_line():
    lines: list[str] = []
    view = PlainView(lines.append)
    picture = StartPicture("first", doing="Warming up.", status=STATUS)
    view.update(picture)
    view.update(picture)
    picture.doing = "Ready."
    view.update(picture)
    assert [line.partition("first: ")[2] for line in lines] == [
        "Warming up.",
        "step prefill 16 done: TTFT first 1.41 s, last 12 ms, kernels 3",
        "Ready.",
    ]


def test_without_a_terminal_a_long_wait_shows_that_it_is_alive():
    lines: list[str] = []
    view = PlainView(lines.append)
    for wall in (0.0, 5.0, 14.0, 16.0, 20.0):
        view.update(StartPicture("first", wall_s=wall, cpu_s=wall, kernels=2))
    assert [line.strip() for line in lines] == [
        "0.0 s  first: starting",
        "16.0 s  first: 16 CPU s of the engine, 2 kernels compiled so far",
    ]


def test_without_a_terminal_the_preparation_is_told_by_phase_and_every_15_seconds():
    lines: list[str] = []
    view = PlainView(lines.append)
    for seconds in (0, 1, 14, 16, 17):
        view.preparing(progress("download", seconds, 5 * 10**6))
    view.preparing(progress("install", 18, 3, "packages"))
    assert len(lines) == 3
    assert "5.0 MB" in lines[0]


def test_on_a_terminal_phases_steps_and_kernels_are_drawn():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    view = LiveView(console)
    view.preparing(progress("download", 1, 5 * 10**6))
    view.update(StartPicture("first", wall_s=12, cpu_s=20, kernels=17, health_s=8.25, status=STATUS))
    view.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("restoring", "0.4 s", "prefill 16", "1.41 s", "decode [8]", "17 kernels compiled", "8.25 s"):
        assert part in text


def test_on_a_terminal_that_is_small_the_running_step_stays_in_sight():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=20)
    view = LiveView(console)
    steps = [
        {**STEP, "name": f"step {number}", "state": "running" if number == 30 else "pending"} for number in range(40)
    ]
    view.update(StartPicture("first", status={"warmup": {"steps": steps}}))
    view.close()
    assert "step 30" in console.file.getvalue()  # type: ignore[attr-defined]


def start(title: str, cpu: float, kernels: int, logprobs: float, **more) -> StartFigures:
    cases = tuple(
        CaseFigures(case.name, logprobs if case.name == "log-probabilities" else 0.02, (0.01, 0.011, 0.5))
        for case in CASES
    )
    return StartFigures(
        title,
        health_cpu_s=cpu,
        health_wall_s=cpu + 1,
        kernels_at_health=kernels,
        kernels_before=kernels,
        kernels_after=0,
        cases=cases,
        **more,
    )


def table(*starts: StartFigures) -> dict[str, tuple[str, ...]]:
    return {name: tuple(cells) for name, *cells in rows(starts)}


def test_the_closing_table_shows_each_start_and_a_dash_for_what_there_was_not():
    restored = start(
        "2",
        40,
        0,
        0.011,
        ready_wall_s=45.0,
        ready_cpu_s=44.0,
        status={
            "restore": {"outcome": "hit", "files": 41, "bytes": 2_000_000},
            "publish": {"outcome": "nothing_new"},
        },
    )
    found = table(restored, start("alone", 80, 16, 1.4))
    assert found["engine's CPU seconds to /health"] == ("40.0", "80.0")
    assert found["wall seconds to ready"] == ("45.0", "–")
    assert found["kernels compiled before ready"] == ("0", "–")
    assert found["first TTFT, log-probabilities"] == ("11 ms", "1.40 s")
    assert found["later TTFT, log-probabilities"] == ("11 ms", "11 ms")
    assert found["restore"] == ("hit: 41 files, 2.0 MB", "–")
    assert found["publish"] == ("nothing new", "–")


def test_a_case_that_failed_is_no_number():
    broken = StartFigures("1", cases=(CaseFigures("16 tokens", None, (), "HTTP 500"),))
    assert table(broken)["first TTFT, 16 tokens"] == ("failed",)
    said = sentences(DemoFigures(MACHINE, (broken,)))
    assert any("HTTP 500" in sentence for sentence in said)


def test_the_sentences_compare_the_starts_and_name_the_machine_and_the_date():
    figures = DemoFigures(MACHINE, (start("1", 80, 17, 0.01), start("2", 40, 0, 0.011), start("alone", 80, 16, 1.4)))
    said = " ".join(sentences(figures))
    assert "0.50 of the empty one's CPU seconds" in said
    assert "compiled 0 kernels" in said
    assert "waited 11 ms after ready, and 1.40 s" in said
    assert "Some CPU" in said
    assert "2026-01-02" in said
