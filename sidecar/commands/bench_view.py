"""How `bench` is shown: progress while it runs, tables of figures, bars, and two runs beside each other.

Nothing is measured and no difference is judged here.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import click
from rich.bar import Bar as RichBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sidecar.bench import plot
from sidecar.bench.comparison import compare, differing_circumstances, summary
from sidecar.bench.durations import NOTHING, duration, three_digits
from sidecar.commands.tables import PLAIN_WIDTH, Grid, show
from sidecar.web import words

if TYPE_CHECKING:
    from sidecar.bench.load import Load, LoadPlan
    from sidecar.bench.report import Report, Spread
    from sidecar.bench.targets import Row

#: Time between two pictures on a terminal, and between two lines without one. Seconds.
DRAW_EVERY_S, TELL_EVERY_S = 0.5, 15.0
#: The last so many answers stand for what TTFT is just now.
RECENT = 200
BAR_WIDTH = 34
_TIMES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("total", "total_s"))
_VERDICTS = {"same": "noise", "unknown": "too few", "faster": "faster", "slower": "slower"}
_STYLES = {"faster": "green", "slower": "red"}


class BenchView(Protocol):
    """Whoever shows a load while it runs."""

    async def follow(self, load: Load, plan: LoadPlan, engine: str) -> None:
        """Show how far it is, until cancelled."""

    def close(self) -> None:
        """Leave the terminal as it should be left; may be called twice."""


def make_view() -> BenchView:
    """Draw in place on a terminal, else write a line now and then. Both on standard error."""
    console = Console(stderr=True, highlight=False)
    return LiveView(console) if console.is_terminal else PlainView()


class PlainView:
    """A line every 15 s, for logs and pipes."""

    async def follow(self, load: Load, plan: LoadPlan, engine: str) -> None:
        """Print lines."""
        click.echo(f"Sending to {engine}, {plan.concurrency} at a time.", err=True)
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            click.echo(f"{load.elapsed:7.1f} s  {_now(load)}", err=True)

    def close(self) -> None:
        """Nothing is left open."""


class LiveView:
    """A bar of what was sent, with the median of the latest times to first token."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)

    async def follow(self, load: Load, plan: LoadPlan, engine: str) -> None:
        """Draw twice a second."""
        task = self._progress.add_task(engine, total=plan.requests or plan.duration_s)
        self._progress.start()
        while True:
            done = load.elapsed if plan.requests is None else load.samples.answered + load.samples.failed
            self._progress.update(task, description=_now(load), completed=done)
            await asyncio.sleep(DRAW_EVERY_S)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()


def _now(load: Load) -> str:
    samples = load.samples
    recent = [each for each in samples.ttft[-RECENT:] if not math.isnan(each)]
    median = duration(statistics.median(recent)) if recent else NOTHING
    failed = f", {samples.failed} failed" if samples.failed else ""
    return f"{samples.answered} answered{failed}, {load.running} in flight, TTFT now {median}"


def _console(to_stderr: bool) -> Console:
    console = Console(stderr=to_stderr, highlight=False)
    if console.is_terminal:
        return console
    return Console(stderr=to_stderr, highlight=False, width=PLAIN_WIDTH, no_color=True)


def show_report(report: Report, *, to_stderr: bool) -> None:
    """Print what was sent, how long it took, what failed, and the bars."""
    console = _console(to_stderr)
    about = report.about
    console.print(f"{about['engine']} serves {about['model']} at {about['url']}.", markup=False)
    console.print(_sent(report), markup=False)
    console.print()
    headings = ("", "mean", "p50", "p95", "p99", "worst", "of")
    rows = [_row(name, getattr(report.figures, column)) for name, column in _TIMES]
    show([Grid("Times", headings, rows, frozenset(headings[1:]))], console)
    console.print()
    for line in _lines(report):
        console.print(line, markup=False)
    columns = report.samples
    shown = [(at, ttft) for at, ttft in zip(columns.started_s, columns.ttft_s, strict=True) if ttft is not None]
    started, waits = [at for at, _ in shown], [ttft for _, ttft in shown]
    for title, bars in (
        ("TTFT, number of requests", plot.histogram(waits)),
        ("TTFT over the run, worst of those that were sent then", plot.over_time(started, waits)),
    ):
        if bars:
            console.print()
            console.print(_bars(title, bars))
    if report.sentence:
        console.print()
        console.print(f"Ended early: {report.sentence}", style="bold red", markup=False)


def _sent(report: Report) -> str:
    asked = report.settings
    mix = (
        f"mix of profile {asked['profile']}"
        if "profile" in asked
        else f"prompts of {asked['prompt_tokens']} tokens, outputs of {asked['output_tokens']}"
    )
    early = ""
    if report.ended == "interrupted":
        early = f", then interrupted with {report.sent - report.answered - report.failed} in flight"
    return (
        f"{report.sent} requests in {words.seconds(report.seconds)}{early}, {asked['concurrency']} at a time; "
        f"{mix}, seed {asked['seed']}."
    )


def _row(name: str, spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return (name, *[NOTHING] * 5, "0")
    times = (spread.mean, spread.p50, spread.p95, spread.p99, spread.worst)
    return (name, *map(duration, times), words.count(spread.count))


def _lines(report: Report) -> list[str]:
    rates, client = report.rates, report.client
    lines = [
        f"Throughput   {_rate(rates.output_tokens_per_s)} output tokens/s, {_rate(rates.prompt_tokens_per_s)} prompt "
        f"tokens/s, {three_digits(rates.requests_per_s)} requests/s",
        f"In flight    {three_digits(report.mean_concurrency)} on average, {report.busiest} at most",
        f"This client  loop lag p99 {duration(client.loop_lag_p99_s)}, worst {duration(client.loop_lag_worst_s)}; "
        f"memory at most {words.size(client.peak_memory_bytes)}",
    ]
    if not report.errors:
        lines.append(f"Errors       none of {report.answered} requests")
    for kind, each in report.errors.items():
        lines.append(f"Errors       {each.count} of {report.sent}: {kind} (first: {each.first})")
    return lines + [f"Note: {note}" for note in report.notes]


def _rate(value: float) -> str:
    return words.count(value) if value >= 100 else three_digits(value)


def _bars(title: str, bars: Sequence[plot.Bar]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(width=BAR_WIDTH)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for bar in bars:
        # A single request among thousands is a bar, too.
        length = max(bar.share, 1 / (8 * BAR_WIDTH)) if bar.share else 0.0
        table.add_row(bar.label, RichBar(1.0, 0.0, length, width=BAR_WIDTH), bar.text)
    return table


def show_comparison(
    first: Report, second: Report, names: tuple[str, str], different: Sequence[str], *, to_stderr: bool
) -> None:
    """Print two runs beside each other, and which of the differences are more than noise."""
    console = _console(to_stderr)
    console.print()
    console.print(f"First: {names[0]}, {first.about['at']}. Second: {names[1]}, {second.about['at']}.", markup=False)
    if different:
        console.print(
            f"NOT LIKE FOR LIKE, different things were sent: {'; '.join(different)}.", style="bold red", markup=False
        )
    for each in differing_circumstances(first, second):
        console.print(f"Different: {each}.", markup=False)
    for name, report in zip(("first", "second"), (first, second), strict=True):
        if report.failed or report.ended != "complete":
            what = f"{report.failed} of {report.sent} requests failed"
            console.print(f"In the {name} run, {what}; it was {report.ended}.", style="yellow", markup=False)
    rows = compare(first, second)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for heading in ("first", "second", "ratio", "99 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        interval = f"{row.interval.low:.2f} to {row.interval.high:.2f}" if row.interval else NOTHING
        verdict = Text(_VERDICTS[row.verdict], style=_STYLES.get(row.verdict, "dim"))
        table.add_row(row.name, row.first, row.second, f"{row.ratio:.2f}", interval, verdict)
    console.print()
    console.print(table)
    console.print()
    console.print(summary(rows), markup=False)


def show_targets(rows: Sequence[Row], sentence: str, *, to_stderr: bool) -> None:
    """Print figures beside their targets and what was predicted."""
    console = _console(to_stderr)
    words_of = {True: "kept", False: "MISSED", None: ""}
    cells = [(row.name, row.measured, row.target, row.predicted, words_of[row.kept]) for row in rows]
    headings = ("", "measured", "target", "predicted", "")
    console.print()
    show([Grid("Targets", headings, cells, frozenset(headings[1:4]))], console)
    console.print()
    console.print(sentence, markup=False)
