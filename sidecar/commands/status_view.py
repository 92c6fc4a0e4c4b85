"""The full view of one sidecar for a terminal: verdict, sentence, and the parts of its status as tables.

What a daemon does not say is not worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from sidecar.commands import gpu_view
from sidecar.commands.tables import Grid, table
from sidecar.web import golden_panel, panels, warmup_panels, words

#: As many events as fit below the tables on one screen.
EVENTS_SHOWN = 8

#: Answers of a golden check that went wrong; the JSON has all of them.
WRONG_SHOWN = 5

#: Characters of one cell; a sentence may quote an error.
LONGEST = 2000

SECTIONS = ("restore", "warmup", "golden", "publish")


def verdict(found: Mapping[str, Any]) -> Text:
    """Give the first lines: whether it is ready, the sentence, and what is switched off."""
    flagged = ", by policy without full proof" if found.get("flagged") else ""
    color = "green" if found.get("ready") and not flagged else "yellow"
    shown = Text("ready" if found.get("ready") else "not ready", style=f"bold {color}")
    shown.append(flagged, style="not bold default")
    shown.append(f" (phase {words.one_line(words.plain(found.get('phase')))})", style="not bold dim default")
    shown.append("\n" + words.one_line(found.get("reason", ""), LONGEST), style="not bold default")
    for notice in _list(found.get("degraded")):
        shown.append("\ndegraded: ", style="not bold yellow")
        shown.append(words.one_line(notice, LONGEST), style="not bold default")
    return shown


def tables(found: Mapping[str, Any]) -> list[RenderableType]:
    """Give the tables below the verdict that have any rows, a blank line before each."""
    grids = (
        engine_facts(found),
        outcomes(found),
        wrong_answers(found),
        _timeline(found),
        steps(found),
        kernels(found),
        gpu_view.grid(found),
        events(found, EVENTS_SHOWN),
    )
    shown: list[RenderableType] = []
    for grid in grids:
        if grid.rows:
            shown += [Text(), table(printable(grid))]
    return shown


def printable(grid: Grid) -> Grid:
    """Take out what could move the cursor or recolour the terminal: an engine names itself as it likes."""
    return replace(grid, rows=[[words.one_line(cell, LONGEST) for cell in row] for row in grid.rows])


def engine_facts(found: Mapping[str, Any]) -> Grid:
    """Give what is known of the engine, a row each."""
    engine = _mapping(found.get("engine"))
    limits = _mapping(engine.get("limits"))
    rows = [
        (name.replace("_", " "), str(engine[name]))
        for name in (
            "url",
            "kind",
            "version",
            "model",
            "state",
            "detail",
            "running",
            "waiting",
            "restarts",
            "last_exit",
        )
        if engine.get(name) not in (None, "", {}, [])
    ]
    if fallback := _mapping(engine.get("fallback")):
        rows.append(("fallback", f"{fallback.get('change')} ({fallback.get('number')} of {fallback.get('of')})"))
    if engine.get("kv_cache_usage") is not None:
        rows.append(("KV cache in use", words.percent(engine["kv_cache_usage"])))
    if (room := _mapping(engine.get("kv_cache")).get("sentence")) is not None:
        rows.append(("KV cache", str(room)))
    if engine.get("healthy_after_s") is not None:
        rows.append(("answered after", words.seconds(engine["healthy_after_s"])))
    sources = _mapping(engine.get("sources"))
    rows += [
        (name.replace("_", " "), panels.untold(value, sources.get(name)) or str(value))
        for name, value in limits.items()
        if value not in (None, "")
    ]
    return Grid("Engine", ("fact", "value"), rows)


def outcomes(found: Mapping[str, Any]) -> Grid:
    """Give how restore, warm-up, output check and publish ended, or how far they are."""
    rows = []
    for name in SECTIONS:
        part = _mapping(found.get(name))
        rows.append(
            (
                _TITLES[name],
                str(part.get("outcome", "")),
                words.seconds(part.get("seconds")),
                str(part.get("sentence", "")),
            )
        )
    return Grid("Parts", ("part", "outcome", "took", "sentence"), rows, frozenset({"took"}), frozenset({"outcome"}))


_TITLES = {"restore": "restore", "warmup": "warm-up", "golden": "output check", "publish": "publish"}


def wrong_answers(found: Mapping[str, Any]) -> Grid:
    """Give the first answers of the golden check that went wrong."""
    compared = _mapping(_mapping(found.get("golden")).get("golden"))
    failed = map(_mapping, _list(compared.get("failed"))[:WRONG_SHOWN])
    rows = [tuple(str(one.get(name, "")) for name in ("name", "way", "reason", "expected", "got")) for one in failed]
    title = f"Went wrong: {golden_panel.went_wrong(compared)}"
    return Grid(title, ("prompt", "sent", "why", "expected", "got"), rows)


def _timeline(found: Mapping[str, Any]) -> Grid:
    rows = [
        (words.plain(span.get("phase")), words.moment(span.get("since")), words.seconds(span.get("seconds")))
        for span in map(_mapping, _list(found.get("timeline")))
    ]
    return Grid("Phases", ("phase", "since (UTC)", "seconds"), rows, frozenset({"seconds"}))


def steps(found: Mapping[str, Any]) -> Grid:
    """Give the steps of warm-up with their times to first token."""
    rows = [
        (
            str(step.get("name", "")),
            str(step.get("state", "")),
            words.count(step.get("requests")),
            words.seconds(step.get("ttft_first_s")),
            words.seconds(step.get("ttft_best_s")),
            words.seconds(step.get("ttft_last_s")),
            words.count(step.get("kernels")),
            str(step.get("detail") or ""),
        )
        for step in map(_mapping, _list(_mapping(found.get("warmup")).get("steps")))
    ]
    headings = ("step", "state", "requests", "first TTFT", "best", "last", "kernels", "detail")
    return Grid("Warm-up steps", headings, rows, frozenset(headings[2:7]), frozenset({"state"}))


def kernels(found: Mapping[str, Any]) -> Grid:
    """Give by family how many kernels were compiled before and after ready."""
    rows = [
        (family, words.count(before), words.count(after))
        for family, (before, after) in sorted(warmup_panels.kernel_rows(found).items())
        if before or after
    ]
    headings = ("family", "before ready", "after ready")
    return Grid("Kernels compiled", headings, rows, frozenset(headings[1:]))


def events(found: Mapping[str, Any], shown: int | None) -> Grid:
    """Give the last events, newest last; `shown` is how many, None: all."""
    last = [_mapping(event) for event in _list(found.get("events"))[-(shown or 0) :]]
    rows = [(words.moment(event.get("at")), str(event.get("level", "")), str(event.get("text", ""))) for event in last]
    return Grid("Last events", ("at (UTC)", "level", "event"), rows, toned=frozenset({"level"}))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
