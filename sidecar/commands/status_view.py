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
from sidecar.web import words

#: As many events as fit below the tables on one screen.
EVENTS_SHOWN = 8

#: Prompts of a golden check that went wrong; the JSON has all of them.
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
        _engine(found),
        _parts(found),
        _wrong(found),
        _timeline(found),
        _steps(found),
        _kernels(found),
        gpu_view.grid(found),
        _events(found),
    )
    shown: list[RenderableType] = []
    for grid in grids:
        if grid.rows:
            shown += [Text(), table(_printable(grid))]
    return shown


def _printable(grid: Grid) -> Grid:
    """Take out what could move the cursor or recolour the terminal: an engine names itself as it likes."""
    return replace(grid, rows=[[words.one_line(cell, LONGEST) for cell in row] for row in grid.rows])


def _engine(found: Mapping[str, Any]) -> Grid:
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
    rows += [(name.replace("_", " "), str(value)) for name, value in limits.items() if value not in (None, "")]
    return Grid("Engine", ("fact", "value"), rows)


def _parts(found: Mapping[str, Any]) -> Grid:
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


def _wrong(found: Mapping[str, Any]) -> Grid:
    failed = map(_mapping, _list(_mapping(_mapping(found.get("golden")).get("golden")).get("failed"))[:WRONG_SHOWN])
    rows = [tuple(str(one.get(name, "")) for name in ("name", "way", "reason", "expected", "got")) for one in failed]
    return Grid("Prompts that went wrong", ("prompt", "sent", "why", "expected", "got"), rows)


def _timeline(found: Mapping[str, Any]) -> Grid:
    rows = [
        (words.plain(span.get("phase")), words.moment(span.get("since")), words.seconds(span.get("seconds")))
        for span in map(_mapping, _list(found.get("timeline")))
    ]
    return Grid("Phases", ("phase", "since (UTC)", "seconds"), rows, frozenset({"seconds"}))


def _steps(found: Mapping[str, Any]) -> Grid:
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


def _kernels(found: Mapping[str, Any]) -> Grid:
    warmup = _mapping(found.get("warmup"))
    before, after = _mapping(warmup.get("kernels_before_ready")), _mapping(warmup.get("kernels_after_ready"))
    rows = [
        (family, words.count(before.get(family, 0)), words.count(after.get(family, 0)))
        for family in sorted({*before, *after})
        if before.get(family) or after.get(family)
    ]
    headings = ("family", "before ready", "after ready")
    return Grid("Kernels compiled", headings, rows, frozenset(headings[1:]))


def _events(found: Mapping[str, Any]) -> Grid:
    last = [_mapping(event) for event in _list(found.get("events"))[-EVENTS_SHOWN:]]
    rows = [(words.moment(event.get("at")), str(event.get("level", "")), str(event.get("text", ""))) for event in last]
    return Grid("Last events", ("at (UTC)", "level", "event"), rows, toned=frozenset({"level"}))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
