"""One sidecar on a terminal that shows it again and again: what changes and what is wrong first, as much as has room.

The full view, which may be longer than the screen, is in `status_view.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from sidecar.commands import gpu_view, status_view
from sidecar.commands.tables import STYLES, Grid, table
from sidecar.web import golden_panel, gpu_facts, parts, warmup_panels, words

#: Columns of a terminal from which on tables show all of theirs, and lines from which on there is a blank one between.
WIDE, TALL = 110, 36
#: Lines of the reason and of each line about what is wrong, of a screen of `TALL` lines or less.
REASON_LINES, WRONG_LINES = 4, 2
#: Order of warm-up steps by state when not all have room; a later one of the same state comes first.
URGENT = ("running", "failed", "unsupported")
_PLACES = {"restore": "restore", "warmup": "warm-up", "golden": "output check", "publish": "publish"}
_NARROW_LEAVES_OUT = frozenset({"requests", "best", "load"})


@dataclass(frozen=True)
class Block:
    """A part of the picture: lines, and a table of rows by importance, of which as many are shown as have room.

    `what` names a row that is left out. At least `least` rows are shown, else the block is left out whole; beyond
    `enough` (None: all) its rows come after everything else. `late`: it changes little, and comes after the others' rows.
    """

    name: str
    lines: tuple[Text, ...]
    grid: Grid | None = None
    rank: tuple[int, ...] = ()
    least: int = 0
    what: str = ""
    enough: int | None = None
    late: bool = False

    def cut(self, rows: int) -> Grid | None:
        """Give the table of the most important rows, in their own order."""
        if self.grid is None or not rows:
            return None
        return replace(self.grid, title="", rows=[self.grid.rows[index] for index in sorted(self.rank[:rows])])


def picture(status: Mapping[str, Any], head: Text, console: Console) -> Group:
    """Draw a status so that it fits the terminal; the last line says what was left out."""
    width, height = console.width, console.height
    top = [head, *_top(status, console)]
    blank = [Text()] if height >= TALL else []
    room = height - sum(_height(each, console) for each in top) - 1
    blocks = _blocks(status, wide=width >= WIDE)
    shown = _shared(blocks, room, {block.name: _cost(block, blank, console) for block in blocks})
    drawn: list[RenderableType] = list(top)
    for block in blocks:
        if block.name in shown:
            grid = block.cut(shown[block.name])
            drawn += [*blank, *block.lines, *([table(grid)] if grid else [])]
    return Group(*drawn, *_left_out(blocks, shown))


def _cost(block: Block, blank: Sequence[Text], console: Console) -> int:
    return len(blank) + sum(_height(line, console) for line in block.lines)


def _shared(blocks: Sequence[Block], room: int, costs: Mapping[str, int]) -> dict[str, int]:
    """Share out the lines of the screen: how many rows of which block are shown; a block that is left out isn't named."""
    shown: dict[str, int] = {}
    for late in (False, True):
        turn = [block for block in blocks if block.late is late]
        for block in turn:
            least = min(block.least, len(block.rank))
            cost = costs[block.name] + (1 + least if least else 0)
            if cost <= room:
                shown[block.name], room = least, room - cost
        for block in turn:
            room -= _grown(block, block.enough, shown, room)
    for block in blocks:
        room -= _grown(block, None, shown, room)
    return shown


def _grown(block: Block, enough: int | None, shown: dict[str, int], room: int) -> int:
    """Show more rows of a block that is there, while there is room; give how many."""
    if block.name not in shown:
        return 0
    most = len(block.rank) if enough is None else min(enough, len(block.rank))
    more = max(0, min(most - shown[block.name], room))
    shown[block.name] += more
    return more


def _left_out(blocks: Sequence[Block], shown: Mapping[str, int]) -> list[Text]:
    missing = []
    for block in blocks:
        rest = len(block.rank) - shown.get(block.name, 0)
        if block.name not in shown:
            missing.append(block.name.lower() if block.name != "GPUs" else block.name)
        elif rest:
            missing.append(f"{rest} {block.what}{'s' if rest > 1 else ''}")
    if not missing:
        return []
    return [_line(f"`status` without --watch has also: {', '.join(missing)}", "dim")]


def _height(text: Text, console: Console) -> int:
    return 1 if text.no_wrap else len(text.wrap(console, console.width)) or 1


def _line(text: str, style: str = "") -> Text:
    """Make a line that is cut at the edge of the terminal; a break or a control character would be another line."""
    return Text(words.one_line(text, status_view.LONGEST), style=style, no_wrap=True, overflow="ellipsis")


def _cropped(text: Text, lines: int, console: Console) -> Text:
    """Wrap a text and keep so many lines; the mark at the end says that it goes on."""
    wrapped = text.wrap(console, console.width)
    if len(wrapped) <= lines:
        return text
    last = wrapped[lines - 1]
    last.rstrip()
    last.truncate(console.width - 2)
    return Text("\n").join([*wrapped[: lines - 1], last.append(" …")])


# --- what stands first


def _top(status: Mapping[str, Any], console: Console) -> list[Text]:
    """Say whether it is ready, why, and what is wrong, each in a few lines."""
    share = max(1, console.height // TALL)
    verdict = status_view.verdict({**status, "degraded": []})
    found = [_cropped(verdict, 1 + min(REASON_LINES * share, max(1, console.height // 5)), console)]
    wrong, most = wrongs(status), max(1, console.height // 4)
    lines = max(1, min(WRONG_LINES * share, most // max(1, len(wrong))))
    for text, tone in wrong[:most]:
        line = Text(words.one_line(text, status_view.LONGEST), style=STYLES[tone])
        found.append(_cropped(line, lines, console))
    if len(wrong) > most:
        found.append(_line(f"{len(wrong) - most} more things are wrong; `status` without --watch has them.", "yellow"))
    return found


def wrongs(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List what is wrong and its tone, worst first; what the reason says already isn't said again."""
    reason, found = str(status.get("reason", "")), list[tuple[str, str]]()

    def say(text: str, tone: str, sentence: str = "") -> None:
        if not sentence or sentence.rstrip(".") not in reason:
            found.append((text, tone))

    gpus = parts.section(status, "gpu")
    for text in _gpu_troubles(parts.mappings(gpus, "gpus")):
        say(text, "bad")
    engine = parts.section(status, "engine")
    if (tone := words.tone(engine.get("state"))) in ("bad", "care"):
        detail = str(engine.get("detail") or "")
        say(f"engine {words.plain(engine['state'])}: {detail}", tone, detail)
    for name, title in _PLACES.items():
        part = parts.section(status, name)
        outcome, sentence = part.get("outcome"), str(part.get("sentence") or "")
        if (tone := words.tone(outcome)) in ("bad", "care"):
            say(f"{title} {words.plain(outcome)}: {sentence}", tone, sentence)
    if failed := golden_panel.went_wrong(parts.section(parts.section(status, "golden"), "golden")):
        say(f"went wrong: {failed}", "bad")
    _, late = warmup_panels.kernel_sums(status)
    if late:
        say(f"{words.count(late)} kernels compiled after ready, each a stall for somebody's request", "care")
    for notice in parts.listed(status, "degraded"):
        say(f"degraded: {notice}", "care")
    if gpus.get("kind") not in gpu_view.ABSENT:
        for note in gpu_facts.notes(gpus):
            say(note, "care", note)
    return found


def _gpu_troubles(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in one line what is wrong with one GPU, or with several alike."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for gpu in gpu_facts.ordered(gpus):
        if wrong := gpu_facts.troubles(gpu):
            alike.setdefault("; ".join(wrong), []).append(gpu)
    return [f"{_together(which)}: {wrong}" for wrong, which in alike.items()]


def _together(gpus: Sequence[Mapping[str, Any]]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpu_facts.title(gpus[0])}"
    numbers = [str(gpu.get("uuid") if gpu.get("index") is None else gpu["index"]) for gpu in gpus]
    return f"{len(gpus)} GPUs ({', '.join(numbers)})"


# --- what follows, in this order


def _blocks(status: Mapping[str, Any], *, wide: bool) -> list[Block]:
    found = [
        _phases(status),
        _steps(status, wide=wide),
        _kernels(status),
        _rows(status_view.events(status, None), "Events", 3, "event", newest=True),
        _rows(_fitting(gpu_view.grid(status), wide), "GPUs", 1, "GPU"),
        _engine(status),
        _rows(status_view.outcomes(status), "Parts", 4, "part", late=True),
        _rows(status_view.wrong_answers(status), "Answers that went wrong", 1, "wrong answer", late=True),
        _rows(status_view.engine_facts(status), "Engine facts", 3, "engine fact", late=True),
    ]
    return [block for block in found if block is not None]


def _fitting(grid: Grid, wide: bool) -> Grid:
    """Leave out the columns that tell less on a narrow terminal."""
    if wide:
        return grid
    kept = [index for index, name in enumerate(grid.headings) if name not in _NARROW_LEAVES_OUT]
    rows = [[row[index] for index in kept] for row in grid.rows]
    return replace(grid, headings=tuple(grid.headings[index] for index in kept), rows=rows)


def _rows(grid: Grid, title: str, least: int, what: str, *, newest: bool = False, late: bool = False) -> Block | None:
    if not grid.rows:
        return None
    rank = tuple(range(len(grid.rows)))
    shown = replace(status_view.printable(grid), rest=grid.headings[-1])
    enough = status_view.EVENTS_SHOWN if newest else None
    return Block(title, (_line(title, "bold"),), shown, rank[::-1] if newest else rank, least, what, enough, late)


def _phases(status: Mapping[str, Any]) -> Block | None:
    """Tell the latest phases as one line, since each is over soon; the table has a line for each."""
    stays = parts.mappings(status, "timeline")
    if not stays:
        return None
    told = [f"{words.plain(stay.get('phase'))} {words.seconds(stay.get('seconds'))}" for stay in stays]
    line = Text(words.one_line("Phases, the latest first: " + " ← ".join(told[::-1]), status_view.LONGEST))
    line.no_wrap, line.overflow = True, "ellipsis"
    line.stylize("bold", 0, len("Phases"))
    return Block("Phases", (line,))


def _steps(status: Mapping[str, Any], *, wide: bool) -> Block | None:
    steps, warmup = warmup_panels.steps_of(status), parts.section(status, "warmup")
    if not warmup.get("outcome") and not steps:
        return None
    done = sum(step.get("state") not in ("pending", "running") for step in steps)
    about = [
        words.plain(warmup.get("outcome", "")),
        f"{done} of {len(steps)} steps" if steps else "",
        f"round {warmup['round']}" if warmup.get("round") else "",
        f"{words.count(warmup['requests'])} requests" if warmup.get("requests") else "",
        words.seconds(warmup["seconds"]) if warmup.get("seconds") else "",
    ]
    title = _line("Warm-up: " + ", ".join(part for part in about if part))
    title.stylize("bold", 0, len("Warm-up"))
    lines = [title]
    if warmup.get("sentence") and str(warmup["sentence"]) not in str(status.get("reason", "")):
        lines.append(_line(str(warmup["sentence"])))
    grid = status_view.steps(status)
    if not steps:
        return Block("Warm-up", tuple(lines))
    states = [str(step.get("state", "")) for step in steps]
    order = [*URGENT, *sorted(set(states) - {*URGENT, "pending"}), "pending"]
    last = {state: position for position, state in enumerate(order)}
    # Of those that are over the latest is the news, of those to come the next.
    rank = sorted(range(len(steps)), key=lambda at: (last[states[at]], at if states[at] == "pending" else -at))
    shown = replace(_fitting(status_view.printable(grid), wide), rest=grid.headings[-1])
    return Block("Warm-up", tuple(lines), shown, tuple(rank), 3, "step")


def _kernels(status: Mapping[str, Any]) -> Block | None:
    grid = status_view.kernels(status)
    if not parts.section(status, "warmup").get("outcome") and not grid.rows:
        return None
    told = []
    for name, column in (("before ready", 1), ("after ready", 2)):
        counted = [f"{row[0]} {row[column]}" for row in grid.rows if row[column] not in ("0", words.NOTHING)]
        told.append(f"{name} {', '.join(counted) or 'none'}")
    line = _line("Kernels compiled: " + "; ".join(told))
    line.stylize("bold", 0, len("Kernels compiled"))
    return Block("Kernels", (line,))


def _engine(status: Mapping[str, Any]) -> Block | None:
    """Tell of the engine what changes, in a line."""
    engine = parts.section(status, "engine")
    told = [
        " ".join(str(engine[name]) for name in ("kind", "version") if engine.get(name)),
        str(engine.get("model") or ""),
        words.plain(engine.get("state") or ""),
        f"{words.count(engine['running'])} running" if engine.get("running") is not None else "",
        f"{words.count(engine['waiting'])} waiting" if engine.get("waiting") is not None else "",
        f"KV cache {words.percent(engine['kv_cache_usage'])}" if engine.get("kv_cache_usage") is not None else "",
        f"restarts: {words.count(engine['restarts'])}" if engine.get("restarts") else "",
    ]
    if not any(told):
        return None
    line = _line("Engine: " + ", ".join(part for part in told if part))
    line.stylize("bold", 0, len("Engine"))
    return Block("Engine", (line,))
