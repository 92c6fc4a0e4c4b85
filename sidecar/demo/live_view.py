"""The demo on a terminal: phases with their seconds, steps, kernels, drawn anew twice a second.

What is drawn comes from `view.py`; nothing is measured here.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sidecar.demo import engine_setup
from sidecar.demo.view import StartPicture, describe
from sidecar.web import words

STYLES = {"good": "green", "work": "cyan", "care": "yellow", "bad": "red", "calm": ""}

#: Lines around the table of steps: panels, phases, sentence.
LINES_AROUND = 16

_STATES = {"running": "cyan", "done": "green", "failed": "red"}


class LiveView:
    """Draw the picture in place; sentences that stay are printed above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._starts: dict[str, StartPicture] = {}
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        """Print the sentence above the picture."""
        self._console.print(text, markup=False)

    def preparing(self, progress: engine_setup.Progress) -> None:
        """Draw a progress bar."""
        if self._progress is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("", total=None)
            self._progress.start()
        assert self._task is not None, "the task is made with the bar"
        scale = 10**6 if progress.unit == "bytes" else 1
        total = progress.total // scale if progress.total else None
        self._progress.update(self._task, description=describe(progress), completed=progress.done // scale, total=total)
        if progress.phase == "done":
            self._end_progress()

    def update(self, start: StartPicture) -> None:
        """Draw this start, with the ones before it as a line each."""
        self._end_progress()
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        self._starts[start.title] = start
        before = [_line(one) for title, one in self._starts.items() if title != start.title]
        self._live.update(Group(*before, _panel(start, max(3, self._console.height - LINES_AROUND))))

    def close(self) -> None:
        """Stop drawing and leave one line per start."""
        self._end_progress()
        if self._live is not None:
            self._live.stop()
            self._live = None
            for start in self._starts.values():
                self._console.print(_line(start))

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _line(start: StartPicture) -> Text:
    parts = [f"/health after {words.seconds(start.health_s)}"] if start.health_s is not None else []
    parts += [f"ready after {words.seconds(start.ready_s)}"] if start.ready_s is not None else []
    parts += [f"{start.kernels} kernels compiled"] if start.kernels is not None else []
    text = Text(start.title, style="bold")
    text.append(f"  {start.state}", style=_STATES.get(start.state, ""))
    text.append("  " + ", ".join(parts), style="dim")
    return text


def _panel(start: StartPicture, room: int) -> RenderableType:
    facts = [f"{start.wall_s:.0f} s"]
    if start.cpu_s is not None:
        facts.append(f"{start.cpu_s:.0f} CPU s of the engine")
    if start.kernels is not None:
        facts.append(f"{start.kernels} kernels compiled")
    if start.health_s is not None:
        facts.append(f"/health after {words.seconds(start.health_s)}")
    if start.ready_s is not None:
        facts.append(f"ready after {words.seconds(start.ready_s)}")
    parts: list[RenderableType] = [Text(" · ".join(facts)), _phases(start), Text(start.doing, style="italic")]
    if start.steps():
        parts.append(_steps(start, room))
    return Panel(Group(*parts), title=start.title, title_align="left", border_style=_STATES.get(start.state, ""))


def _phases(start: StartPicture) -> Text:
    text = Text()
    timeline = start.timeline()
    for position, (phase, seconds) in enumerate(timeline):
        last = position == len(timeline) - 1
        text.append(" → " if position else "")
        text.append(words.plain(phase), style="bold cyan" if last else "")
        text.append(f" {seconds:.1f} s", style="dim")
    return text


def _steps(start: StartPicture, room: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("step")
    table.add_column("state")
    for heading in ("requests", "first TTFT", "best", "last", "kernels"):
        table.add_column(heading, justify="right")
    steps = start.steps()
    current = next((at for at, step in enumerate(steps) if step.get("state") == "running"), len(steps) - 1)
    first = max(0, min(current - room // 2, len(steps) - room))
    for step in steps[first : first + room]:
        state = str(step.get("state"))
        table.add_row(
            Text(str(step.get("name"))),
            Text(words.plain(state), style=STYLES[words.tone(state)]),
            words.count(step.get("requests")),
            words.seconds(step.get("ttft_first_s")),
            words.seconds(step.get("ttft_best_s")),
            words.seconds(step.get("ttft_last_s")),
            words.count(step.get("kernels")),
        )
    return table
