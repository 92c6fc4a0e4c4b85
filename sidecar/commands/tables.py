"""Tables and colours on a terminal; the only file of the commands that imports rich, and only when it is
used.

What a table says is decided by the command that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sidecar.web.words import tone

STYLES = {"good": "green", "work": "cyan", "care": "yellow", "bad": "red", "calm": ""}

#: Columns when the output is no terminal: wide enough that a path and a sentence stay on one line in a log.
PLAIN_WIDTH = 160


@dataclass(frozen=True)
class Grid:
    """Rows of text under headings. `right`: headings of columns of numbers; `toned`: of coloured words, or of texts that begin with
    one and a colon. `rest`: the heading whose column takes what the others leave, so that each row is one line.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = field(default_factory=frozenset)
    toned: frozenset[str] = field(default_factory=frozenset)
    rest: str = ""


def make_console() -> Console:
    """Make a console for standard output: plain and wide when it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH, no_color=True)


def table(grid: Grid) -> Table:
    """Make the rich table of a grid; texts are shown as they are, never taken for markup."""
    made = Table(
        title=grid.title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
        expand=bool(grid.rest),
    )
    for heading in grid.headings:
        made.add_column(
            heading,
            justify="right" if heading in grid.right else "left",
            overflow="ellipsis" if grid.rest else "fold",
            no_wrap=bool(grid.rest),
            ratio=1 if heading and heading == grid.rest else None,
        )
    for row in grid.rows:
        made.add_row(*(_cell(grid, heading, text) for heading, text in zip(grid.headings, row, strict=True)))
    return made


def _cell(grid: Grid, heading: str, text: str) -> str:
    style = STYLES[tone(text.partition(":")[0])] if heading in grid.toned else ""
    return f"[{style}]{escape(text)}[/]" if style else escape(text)


def show(grids: Iterable[Grid], console: Console | None = None) -> None:
    """Print grids with a blank line between them; those without rows are left out."""
    console = console or make_console()
    for position, grid in enumerate(grid for grid in grids if grid.rows):
        if position:
            console.print()
        console.print(table(grid))
