"""`status`: what a running daemon says of itself, as tables or as its own JSON.

Nothing is worked out here that the daemon does not say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands import gpu_view
from sidecar.commands.asked import ask_port, settings_of, url_option
from sidecar.commands.settings_flags import settings_options
from sidecar.errors import EXIT_NOT_SO, EXIT_OK
from sidecar.web import words

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid

#: As many events as fit below the tables on one screen.
EVENTS_SHOWN = 8

SECTIONS = ("restore", "warmup", "golden", "publish")


@click.command()
@settings_options("listen")
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print /status as it is.")
def command(url: str, as_json: bool, **arguments: Any) -> int:
    """Show where a running sidecar is: phase, sentence, engine, restore, warm-up steps, last events.

    Exit code 0 when it is ready, 3 when it is not or does not answer.

    \b
    Examples:
      warmup-sidecar status
      warmup-sidecar status --url http://10.0.0.7:9797 --json | jq .warmup.steps
    """
    found = ask_port(url, settings_of(arguments).listen, lambda client: client.status())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    return EXIT_OK if found.get("ready") is True else EXIT_NOT_SO


def _show(found: Mapping[str, Any]) -> None:
    from rich.markup import escape

    from sidecar.commands.tables import make_console, show

    console = make_console()
    state = "ready" if found.get("ready") else "not ready"
    flagged = ", by policy without full proof" if found.get("flagged") else ""
    color = "green" if found.get("ready") and not flagged else "yellow"
    console.print(f"[bold {color}]{state}[/]{flagged} [dim](phase {words.plain(found.get('phase'))})[/]")
    console.print(escape(str(found.get("reason", ""))))
    for notice in _list(found.get("degraded")):
        console.print(f"[yellow]degraded:[/] {escape(str(notice))}")
    console.print()
    show(
        [_engine(found), _parts(found), _timeline(found), _steps(found), _kernels(found), gpu_view.grid(found), _events(found)],
        console,
    )


def _engine(found: Mapping[str, Any]) -> Grid:
    from sidecar.commands.tables import Grid

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
    if engine.get("kv_cache_usage") is not None:
        rows.append(("KV cache in use", words.percent(engine["kv_cache_usage"])))
    if (room := _mapping(engine.get("kv_cache")).get("sentence")) is not None:
        rows.append(("KV cache", str(room)))
    if engine.get("healthy_after_s") is not None:
        rows.append(("answered after", words.seconds(engine["healthy_after_s"])))
    rows += [(name.replace("_", " "), str(value)) for name, value in limits.items() if value not in (None, "")]
    return Grid("Engine", ("fact", "value"), rows)


def _parts(found: Mapping[str, Any]) -> Grid:
    from sidecar.commands.tables import Grid

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


def _timeline(found: Mapping[str, Any]) -> Grid:
    from sidecar.commands.tables import Grid

    rows = [
        (words.plain(span.get("phase")), words.moment(span.get("since")), words.seconds(span.get("seconds")))
        for span in map(_mapping, _list(found.get("timeline")))
    ]
    return Grid("Phases", ("phase", "since (UTC)", "seconds"), rows, frozenset({"seconds"}))


def _steps(found: Mapping[str, Any]) -> Grid:
    from sidecar.commands.tables import Grid

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
    from sidecar.commands.tables import Grid

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
    from sidecar.commands.tables import Grid

    last = [_mapping(event) for event in _list(found.get("events"))[-EVENTS_SHOWN:]]
    rows = [(words.moment(event.get("at")), str(event.get("level", "")), str(event.get("text", ""))) for event in last]
    return Grid("Last events", ("at (UTC)", "level", "event"), rows, toned=frozenset({"level"}))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
