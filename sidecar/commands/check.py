"""`check`: the merged settings with their sources, what is wrong with them, and what this machine says to
them.

What is tried is in `checks.py`; what a setting may be is in `config.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import click

from sidecar import config
from sidecar.commands.checks import every_check
from sidecar.commands.finding import Finding
from sidecar.commands.settings_flags import default_text, flag, loaded, settings_options
from sidecar.errors import EXIT_OK, EXIT_USAGE

#: Credentials in an address.
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")

_MARKS = {"good": "ok", "note": "note", "problem": "problem"}


@click.command()
@settings_options()
@click.option("--list", "only_list", is_flag=True, help="List all settings with meaning and default, and try nothing.")
@click.option("--offline", is_flag=True, help="Check the settings alone; do not touch disks, ports or the engine.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(only_list: bool, offline: bool, as_json: bool, **arguments: Any) -> int:
    """Print every setting with its value and where it comes from, and say what is wrong.

    Then tries what the settings name: store, live cache, control directory, profile, key file, port, engine.
    Nothing is changed and no secret is printed. Exit code 2 when there is a problem.

    \b
    Examples:
      warmup-sidecar check
      warmup-sidecar check --store /mnt/store --profile sm90
      warmup-sidecar check --list
    """
    if only_list:
        _list_settings(as_json)
        return EXIT_OK
    found = loaded(arguments)
    findings = [Finding(problem.source, "problem", problem.sentence) for problem in found.problems]
    findings += [] if offline else list(every_check(found.settings))
    findings = [Finding(each.what, each.level, _without_secrets(each.sentence)) for each in findings]
    wrong = any(each.level == "problem" for each in findings)
    if as_json:
        settings = {name: {"value": _value(found, name), "source": _source(found, name)} for name in _fields()}
        shown = [{"what": each.what, "level": each.level, "sentence": each.sentence} for each in findings]
        click.echo(json.dumps({"ok": not wrong, "settings": settings, "findings": shown}, indent=2))
    else:
        _show(found, findings, wrong)
    return EXIT_USAGE if wrong else EXIT_OK


def _fields() -> list[str]:
    return list(config.Settings.model_fields)


def _value(found: config.Loaded, name: str) -> Any:
    value = found.settings.model_dump(mode="json")[name]
    return _without_secrets(value) if isinstance(value, str) else value


def _source(found: config.Loaded, name: str) -> str:
    source = found.sources.get(name, "default")
    named: Mapping[str, str] = {"flag": flag(name), "environment": config.variable(name)}
    return named.get(source, source)


def _without_secrets(text: str) -> str:
    return _SECRET.sub("***@", text)


def _show(found: config.Loaded, findings: list[Finding], wrong: bool) -> None:
    from sidecar.commands.tables import Grid, make_console, show

    console = make_console()
    rows = [(name, _text(_value(found, name)), _source(found, name)) for name in _fields()]
    tried = [(each.what, _MARKS[each.level], each.sentence) for each in findings]
    show(
        [
            Grid("Settings", ("setting", "value", "source"), rows),
            Grid("Checks", ("what", "", "sentence"), tried),
        ],
        console,
    )
    console.print()
    problems = sum(each.level == "problem" for each in findings)
    console.print(f"{problems} problem{'s' if problems != 1 else ''}." if wrong else "No problems.")
    if wrong:
        console.print("`run` starts all the same, with defaults in place of what can't be used.")


def _text(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _list_settings(as_json: bool) -> None:
    if as_json:
        entries = [
            {
                "setting": name,
                "variable": config.variable(name),
                "flag": flag(name),
                "default": default_text(name),
                "meaning": config.Settings.model_fields[name].description,
            }
            for name in _fields()
        ]
        click.echo(json.dumps(entries, indent=2))
        return
    from sidecar.commands.tables import Grid, show

    rows = [
        (
            config.variable(name),
            default_text(name) or "–",
            config.Settings.model_fields[name].description or "",
        )
        for name in _fields()
    ]
    show([Grid("Settings", ("variable", "default", "meaning"), rows)])
