"""How recordings and results of golden checks look at a terminal: tables, bars of drift, differences word by word.

Nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

import click
from rich.console import Console
from rich.markup import escape

from sidecar.commands.tables import Grid, make_console, show
from sidecar.golden import FailedPrompt, GoldenProgress, GoldenResult, GoldenSet
from sidecar.golden.files import GoldenFile
from sidecar.golden.report import text_diff

#: Prompts whose texts are shown; the file has all.
SHOWN = 8
#: Characters of a bar; the mark in it is what is allowed.
BAR = 24
WAYS = ("solo", "concurrent", "batch", "likelihood")
NOTHING = "–"


class Counter:
    """Shows how many answers have come, on one line that is written over; nothing where nobody watches."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, sys.stderr.isatty()

    def __enter__(self) -> Counter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)

    def __call__(self, progress: GoldenProgress) -> None:
        """Write the line anew."""
        if self._shown:
            line = f"\r\033[K{self._what}: {progress.done} of {progress.total} answers ({progress.way})"
            click.echo(line, nl=False, err=True)


def show_result(result: GoldenResult) -> None:
    """Print the result of a check: the sentence, a row for each way of sending, and what went wrong."""
    console = make_console()
    tone = {"passed": "green", "failed": "red"}.get(result.outcome, "yellow")
    console.print(f"[{tone}]{result.outcome}[/] {escape(result.sentence)}", soft_wrap=True)
    if result.statistics:
        console.print()
        show([_ways(result)], console)
    for each in result.failed[:SHOWN]:
        _show_failed(console, each)
    if len(result.failed) > SHOWN:
        console.print(f"… and {len(result.failed) - SHOWN} more; --json has all.", markup=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _ways(result: GoldenResult) -> Grid:
    rows = []
    for way in WAYS:
        drift = result.statistics.get(f"{way}_drift_percent")
        share = result.statistics.get(f"{way}_agreeing")
        count = result.statistics.get(f"{way}_prompts")
        if drift is None and not count:
            continue
        failed = sum(each.way == way for each in result.failed)
        rows.append((
            way, str(count) if count is not None else NOTHING, str(failed),
            f"{share:.0%}" if share is not None else NOTHING,
            f"{drift:.2f} %" if drift is not None else NOTHING,
            bar(drift, result.allowed_percent),
        ))  # fmt: skip
    allowed = f"of {result.allowed_percent:g} % allowed" if result.allowed_percent else ""
    headings = ("sent", "answers", "wrong", "first tokens", "drift", allowed)
    return Grid("", headings, rows, frozenset({"answers", "wrong", "first tokens", "drift"}))


def bar(drift: float | None, allowed: float | None) -> str:
    """Draw how much of the allowed drift is used; beyond it the bar is full and ends in an arrow."""
    if drift is None or not allowed:
        return ""
    filled = round(BAR * min(1.0, drift / allowed))
    return "█" * filled + "·" * (BAR - filled) + ("▶" if drift > allowed else "")


def _show_failed(console: Console, each: FailedPrompt) -> None:
    console.print()
    console.print(f"[bold]{escape(each.name)}[/] ({each.way}): {escape(each.reason)}", soft_wrap=True)
    if each.expected == each.got:
        console.print(f"  the same text: {_visible(each.got)}", markup=False, soft_wrap=True)
        return
    styles = {"same": ("", ""), "gone": ("[red]\\[-", "-][/]"), "new": ("[green]{+", "+}[/]")}
    pieces = []
    for kind, text in text_diff(each.expected, each.got):
        before, after = styles[kind]
        pieces.append(f"{before}{escape(_visible(text))}{after}")
    console.print("  " + "".join(pieces), soft_wrap=True)


def _visible(text: str) -> str:
    """Write line ends and what can't be printed so that a terminal shows it."""
    shown = text.replace("\n", "⏎").replace("\t", "→")
    return "".join(each if each.isprintable() else "\ufffd" for each in shown)


def show_recording(golden: GoldenSet, *, prompts: bool = False) -> None:
    """Print from which engine each recording of a path is, what is allowed, and on demand its prompts."""
    console = make_console()
    for file in golden.files:
        recorded = file.recorded
        title = f"{golden.path}{f': {file.label}' if file.label else ''}"
        console.print(title, markup=False)
        console.print()
        facts = [(name.replace("_", " "), str(value)) for name, value in _facts(file) if value not in ("", None)]
        limits = [(name.replace("_", " "), f"{value:g}") for name, value in file.limits.model_dump().items()]
        show([Grid("Recorded", ("fact", "value"), facts), Grid("Allowed", ("limit", "value"), limits)], console)
        if prompts:
            console.print()
            show([_prompts(file)], console)
        odd = sum(bool(each.answer.odd) for each in file.prompts)
        console.print()
        read = sum(bool(each.answer.scored) for each in file.prompts)
        told = f"{len(file.prompts)} prompts, {read} of them can be read back; the engine drifts from itself by "
        console.print(f"{told}{recorded.noise_percent:.2f} %.", markup=False)
        if odd:
            console.print(f"{odd} answers are degenerate already, which is not held against others.", markup=False)
        for note in file.left_out:
            console.print(f"left out: {note}", markup=False, soft_wrap=True)


def _facts(file: GoldenFile) -> Sequence[tuple[str, object]]:
    shown = ("at", "engine", "model", "kv_cache_dtype", "quantization", "attention_backend", "tensor_parallel", "by")
    return [("models", ", ".join(file.models)), *((name, getattr(file.recorded, name)) for name in shown)]


def _prompts(file: GoldenFile) -> Grid:
    rows = []
    for each in file.prompts:
        kind = "picture" if each.picture else "chat" if each.messages else each.passage or "text"
        text = _visible(each.answer.text)
        rows.append((each.name, kind, str(len(each.answer.ids)), text if len(text) <= 60 else text[:59] + "…"))
    return Grid("Prompts", ("prompt", "kind", "tokens", "answer"), rows, frozenset({"tokens"}))
