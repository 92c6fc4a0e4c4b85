"""What `status --watch` shows: one daemon as a picture, many as a line each, live on a terminal, else lines of what changes.

What is shown of one daemon is in `live_view.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sidecar.commands import live_view
from sidecar.commands.status_watch import Watched
from sidecar.commands.tables import STYLES, make_console
from sidecar.web import parts, warmup_panels, words

#: Those compiled before ready and after it; the second number should be 0.
KERNELS = "kernels"
#: Columns of the overview, and how wide a terminal must be to show each.
COLUMNS = {"sidecar": 0, "phase": 0, "for": 50, KERNELS: 80, "restore": 100, "KV": 100, "sentence": 60}
RIGHT = ("for", KERNELS, "KV")
#: Lines of a terminal beside those of the daemons: title, headings, the cursor's.
ROOM = 3
#: Drawn at most so often a second, however many daemons answer.
DRAWS_A_SECOND = 4


class View(Protocol):
    """Shows each answer as it comes; used with `with`."""

    def update(self, watched: Watched) -> None:
        """Take note of an answer."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the terminal as it was."""


def make_view(watched: Sequence[Watched], as_json: bool) -> View:
    """Make what fits the output: lines of JSON, a live picture on a terminal, else plain lines."""
    console = make_console()
    if as_json or not console.is_terminal or console.is_dumb_terminal:
        return Lines(as_json)
    return Picture(watched, console)


def json_line(watched: Watched, now: float) -> str:
    """Give one answer as a line of JSON: `at` in seconds since the epoch, `url`, `status` or null, and `trouble`."""
    told = {
        "at": round(now, 3),
        "url": watched.url,
        "status": watched.status or None,
        "trouble": watched.trouble or None,
    }
    return json.dumps(told)


class Lines:
    """A line for each answer as JSON, or for each answer that says something new as text."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told: dict[str, tuple[str, ...]] = {}

    def update(self, watched: Watched) -> None:
        """Print a line."""
        if self._as_json:
            click.echo(json_line(watched, time.time()))
            return
        row = cells(watched)
        news = tuple(text for name, text in row.items() if name not in ("for", "KV"))
        if self._told.get(watched.url) != news:
            self._told[watched.url] = news
            counted = f", kernels {row[KERNELS]}" if row["kernels"] else ""
            restored = f", restore {row['restore']}" if row["restore"] else ""
            click.echo(
                f"{words.moment(time.time())}  {row['sidecar']}  {row['phase']}{counted}{restored}: {row['sentence']}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is left open."""


class Picture:
    """The whole screen, drawn anew; afterwards the last picture stays in the scroll-back."""

    def __init__(self, watched: Sequence[Watched], console: Console) -> None:
        self._watched = watched
        self._console = console
        self._live = Live(console=console, screen=True, refresh_per_second=DRAWS_A_SECOND, get_renderable=self._draw)

    def update(self, watched: Watched) -> None:
        """Nothing at once: the picture is drawn from what is known, a few times a second."""

    def _draw(self) -> RenderableType:
        if len(self._watched) > 1:
            return overview(self._watched, self._console.width, self._console.height)
        only = self._watched[0]
        head = Text(
            f"{words.one_line(only.url)}  {words.moment(time.time())} UTC, Ctrl-C ends", style="dim", no_wrap=True
        )
        if only.trouble or not only.status:
            return Group(head, Text(words.one_line(only.trouble) or "Asking.", style="yellow" if only.trouble else ""))
        return live_view.picture(only.status, head, self._console)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()
        self._console.print(overview(self._watched, self._console.width))


def cells(watched: Watched) -> dict[str, str]:
    """Give the cells of one daemon by column, as text of one line."""
    status: dict[str, Any] = dict(watched.status)
    shown = {"sidecar": words.one_line(watched.url.removeprefix("http://"))}
    if watched.trouble or not status:
        away = {"phase": "away" if watched.trouble else "asking", "for": "", KERNELS: "", "restore": "", "KV": ""}
        return {**shown, **away, "sentence": words.one_line(watched.trouble)}
    stays = parts.mappings(status, "timeline")
    before, after = warmup_panels.kernel_sums(status)
    restore = parts.section(status, "restore").get("outcome")
    return {
        **shown,
        "phase": words.one_line(words.plain(status.get("phase"))) + (", flagged" if status.get("flagged") else ""),
        "for": words.seconds(stays[-1].get("seconds")) if stays else words.NOTHING,
        KERNELS: f"{words.count(before)} + {words.count(after)}",
        "restore": words.one_line(words.plain(restore or words.NOTHING)),
        "KV": words.percent(parts.section(status, "engine").get("kv_cache_usage")),
        "sentence": words.one_line(status.get("reason", "")),
    }


def overview(watched: Sequence[Watched], width: int, height: int = 0) -> Table:
    """Make the table of many daemons, a line each; on a narrow terminal the less telling columns are left out.

    On one of fewer than all lines (`height`, 0: endless), those that are ready are left out first.
    """
    names = [name for name, least in COLUMNS.items() if width >= least]
    ready = sum(each.is_ready for each in watched)
    lines = max(1, height - ROOM)
    shown = watched if not height or len(watched) <= lines else sorted(watched, key=lambda each: each.is_ready)[:lines]
    hidden = f", {len(watched) - len(shown)} not shown" if len(shown) < len(watched) else ""
    made = Table(
        title=f"{ready} of {len(watched)} ready{hidden}, {words.moment(time.time())} UTC",
        title_justify="left",
        expand="sentence" in names,
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    for name in names:
        # The sentence takes what is left; else a long one would be given room from all others.
        ratio = 1 if name == "sentence" else None
        justify: Literal["left", "right"] = "right" if name in RIGHT else "left"
        made.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for each in shown:
        row = cells(each)
        made.add_row(*(Text(row[name], style=_style(each) if name == "phase" else "") for name in names))
    return made


def _style(watched: Watched) -> str:
    if watched.trouble:
        return STYLES["bad"]
    if not watched.is_ready:
        return STYLES["work"]
    _, late = warmup_panels.kernel_sums(watched.status)
    return STYLES["care"] if late or watched.status.get("flagged") else STYLES["good"]
