"""A flag for every setting, made from the settings' declaration: name, help text, default and variable.

Values stay text here; whether they are usable is decided in `config.py` alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import click
import pydantic

from sidecar import config

CONFIG_FLAG = "--config"


def flag(field: str) -> str:
    """Name the flag of a setting."""
    return "--" + field.replace("_", "-")


def is_switch(field: str) -> bool:
    """Say whether the setting is true or false, so that its flag takes no value."""
    return config.Settings.model_fields[field].annotation is bool


def default_text(field: str) -> str:
    """Give the default of a setting as one would write it; empty for none."""
    default = config.Settings.model_fields[field].default
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def words_of(field: str) -> tuple[str, ...]:
    """List the words a setting may be, or nothing when it is not a choice of words."""
    info = config.Settings.model_fields[field]
    if isinstance(info.json_schema_extra, dict) and isinstance(listed := info.json_schema_extra.get("enum"), list):
        return tuple(map(str, listed))
    return tuple(str(word) for word in get_args(info.annotation) if isinstance(word, str))


def settings_options(*fields: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--config` and the flags of these settings, of all of them when none is named."""
    chosen = fields or tuple(config.Settings.model_fields)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(chosen):
            function = _option(field)(function)
        return click.option(
            CONFIG_FLAG,
            "config_file",
            metavar="FILE",
            default=None,
            help=f"YAML file with settings. [{config.FILE_VARIABLE}]",
        )(function)

    return decorate


def loaded(arguments: Mapping[str, Any]) -> config.Loaded:
    """Merge the flags of a command over the environment, the file and the defaults. Never raises."""
    environment = dict(os.environ)
    if arguments.get("config_file"):
        environment[config.FILE_VARIABLE] = str(arguments["config_file"])
    fields = config.Settings.model_fields
    flags = {name: value for name, value in arguments.items() if name in fields and value is not None}
    return config.load(environment, flags)


def _option(field: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    info = config.Settings.model_fields[field]
    shown = default_text(field)
    notes = [config.variable(field)] + ([f"default: {shown}"] if shown else [])
    help_text = f"{(info.description or '').replace('`', '')} [{'; '.join(notes)}]"
    if is_switch(field):
        return click.option(f"{flag(field)}/--no-{flag(field)[2:]}", field, default=None, help=help_text)
    return click.option(flag(field), field, metavar=_metavar(field, info), default=None, help=help_text)


def _metavar(field: str, info: pydantic.fields.FieldInfo) -> str:
    if words := words_of(field):
        return "|".join(words)
    if field.endswith("_s"):
        return "SECONDS"
    return "PATH" if "Path" in str(info.annotation) else "TEXT"


def value_flags(fields: Iterable[str] = ()) -> dict[str, bool]:
    """Map every flag of the settings, and `--config`, to whether a value follows it."""
    known = {CONFIG_FLAG: True}
    for field in fields or config.Settings.model_fields:
        known[flag(field)] = not is_switch(field)
        if is_switch(field):
            known[f"--no-{flag(field)[2:]}"] = False
    return known
