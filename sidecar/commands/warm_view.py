"""How `warm` is shown: steps while it runs, the table before and after, the stalls it absorbed.

Nothing is sent and nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sidecar.bench.durations import duration
from sidecar.commands.engine_port import in_flags
from sidecar.commands.tables import STYLES, Grid, make_console, show
from sidecar.web import words

if TYPE_CHECKING:
    from sidecar.commands.warm import Story
    from sidecar.warmup.results import StepResult, WarmProgress

#: Lines around the live table: header, activity, the prompt below.
LINES_AROUND = 8
UNSEEN = (
    "No --live-cache was given, so compiling can't be seen: flat latency is the only sign of being warm, "
    "and it is no proof."
)


class WarmView(Protocol):
    """Whoever shows a warm-up while it runs."""

    def begin(self, story: Story) -> None:
        """Show what will be done."""

    def update(self, progress: WarmProgress) -> None:
        """Show how far it is."""

    def close(self) -> None:
        """Leave the terminal as it should be left; may be called twice."""


def make_view() -> WarmView:
    """Draw in place on a terminal, else write a line for each step that was done. Both on standard error."""
    console = Console(stderr=True, highlight=False)
    return LiveView(console) if console.is_terminal else PlainView()


def _beginning(story: Story) -> list[str]:
    plan = story.plan
    assert plan is not None, "a view begins with a plan"
    lines = [
        f"{story.engine} serves {story.model} at {story.url}.",
        story.why,
        f"{len(plan.steps)} steps, {plan.requests} requests and {plan.tokens} tokens a round.",
    ]
    return lines + [f"Note: {in_flags(note)}" for note in plan.notes] + ([] if story.seen else [UNSEEN])


class PlainView:
    """One line for each pass of a step, for logs and pipes."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int]] = {}

    def begin(self, story: Story) -> None:
        """Print engine, profile and plan."""
        for line in _beginning(story):
            click.echo(line, err=True)

    def update(self, progress: WarmProgress) -> None:
        """Print the steps that were done since, and what is done between steps."""
        for step in progress.steps:
            state = (step.state, step.rounds)
            if step.state in ("pending", "running") or self._told.get(step.name) == state:
                continue
            self._told[step.name] = state
            times = f"TTFT first {duration(step.ttft_first_s)}, last {duration(step.ttft_last_s)}"
            click.echo(
                f"{progress.seconds:7.1f} s  {step.name}: {step.state}, {times}, kernels {step.kernels}", err=True
            )

    def close(self) -> None:
        """Nothing is left open."""


class LiveView:
    """The steps as a table, drawn anew four times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def begin(self, story: Story) -> None:
        """Print engine, profile and plan, and start drawing below."""
        for line in _beginning(story):
            self._console.print(line, markup=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def update(self, progress: WarmProgress) -> None:
        """Draw."""
        if self._live is None:
            return
        head = Text(f"{words.seconds(progress.seconds)} · {words.count(progress.requests)} requests · ", style="bold")
        head.append(f"{words.count(sum(progress.kernels.values()))} kernels compiled", style="bold")
        room = max(3, self._console.height - LINES_AROUND)
        activity = Text(progress.activity, style="italic", overflow="ellipsis", no_wrap=True)
        self._live.update(Group(head, activity, _picture(progress.steps, room)))

    def close(self) -> None:
        """Stop drawing; the table that stays is printed by the command."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _picture(steps: Sequence[StepResult], room: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("step", no_wrap=True, overflow="ellipsis")
    table.add_column("state")
    for heading in ("first TTFT", "best", "last", "kernels"):
        table.add_column(heading, justify="right")
    current = next((at for at, step in enumerate(steps) if step.state == "running"), len(steps) - 1)
    start = max(0, min(current - room // 2, len(steps) - room))
    for step in steps[start : start + room]:
        times = (step.ttft_first_s, step.ttft_best_s, step.ttft_last_s)
        state = Text(step.state, style=STYLES[words.tone(step.state)])
        table.add_row(Text(step.name), state, *map(duration, times), words.count(step.kernels))
    return table


def show_table(story: Story) -> None:
    """Print each step before and after, what went wrong with steps, and the kernels per family."""
    steps = _steps(story)
    headings = ("step", "first TTFT", "best", "last", "stalls", "kernels")
    rows = [
        (
            step.name,
            duration(step.ttft_first_s),
            duration(step.ttft_best_s),
            duration(step.ttft_last_s),
            _stalls_cell(step),
            str(step.kernels) if story.seen else "?",
        )
        for step in steps
    ]
    console = make_console()
    console.print()
    show([Grid("Time to first token, slowest request of each step", headings, rows, frozenset(headings[1:]))], console)
    console.print()
    for step in steps:
        if step.detail or step.state not in ("done", "pending", "running"):
            console.print(f"{step.name}: {step.state}. {step.detail}".rstrip(), markup=False)
    for sentence in (stalls_sentence(story), _kernels_sentence(story)):
        console.print(sentence, markup=False)


def _stalls_cell(step: StepResult) -> str:
    """Give the sum of a step's stalls, and of how many bursts where that is more than one."""
    if not step.stalls:
        return ""
    several = f" in {len(step.stalls)}" if len(step.stalls) > 1 else ""
    return f"{duration(step.stall_s)}{several}"


def stalls_sentence(story: Story) -> str:
    """Say what the stalls were that no user meets any more."""
    steps = _steps(story)
    stalls = [(step.name, each) for step in steps for each in step.stalls]
    if all(step.rounds < 2 for step in steps):
        return "No step was sent twice, so there is nothing to compare first answers with."
    if not stalls:
        return "No burst was slower at any time than at its best: nothing had to be absorbed."
    name, worst = max(stalls, key=lambda each: each[1].absorbed_s)
    bursts = f"{len(stalls)} burst{'' if len(stalls) == 1 else 's'} of {sum(bool(step.stalls) for step in steps)}"
    return (
        f"Stalls absorbed: {duration(sum(step.stall_s for step in steps))} in {bursts} of {len(steps)} steps; the longest "
        f"in {name}/{worst.burst}: {duration(worst.slowest_s)} at its slowest, {duration(worst.steady_s)} steady."
    )


def _kernels_sentence(story: Story) -> str:
    if not story.seen:
        return UNSEEN
    kernels = _kernels(story)
    told = ", ".join(f"{count} {family}" for family, count in sorted(kernels.items()) if count)
    return f"Kernels compiled: {told}." if told else "Kernels compiled: none."


def outcome_sentence(story: Story) -> str:
    """Say how it ended."""
    result = story.result
    if result is None:
        return "Interrupted before it converged: the table shows how far it was."
    if result.outcome == "converged" and not story.seen:
        return (
            f"Flat: {result.requests} requests in {words.seconds(result.seconds)} and {result.rounds} rounds; "
            "every step answers as fast as at its best."
        )
    return in_flags(result.sentence)


def to_json(story: Story) -> dict[str, Any]:
    """Give everything that was found out."""
    result = story.result.to_json() if story.result else story.last.to_json() if story.last else {}
    steps = _steps(story)
    return {
        "url": story.url,
        "engine": story.engine,
        "model": story.model,
        **result,
        "outcome": story.result.outcome if story.result else "interrupted",
        "sentence": outcome_sentence(story),
        "profile_reason": story.why,
        "compiling_seen": story.seen,
        "stalls": [{"step": step.name, **each.to_json()} for step in steps for each in step.stalls],
        "stalls_s": round(sum(step.stall_s for step in steps), 4),
    }


def _steps(story: Story) -> Sequence[StepResult]:
    known = story.result or story.last
    return known.steps if known is not None else ()


def _kernels(story: Story) -> dict[str, int]:
    known = story.result or story.last
    return dict(known.kernels) if known is not None else {}
