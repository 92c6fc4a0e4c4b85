"""Calls to a running daemon for commands, which are synchronous: where it is, and one call at a time.

How a daemon is spoken to is in `web/client.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sidecar import config
from sidecar.commands.settings_flags import loaded
from sidecar.web.client import DaemonClient, local_url

Answer = TypeVar("Answer")


def url_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--url`."""
    return click.option(
        "--url",
        metavar="URL",
        default="",
        help="Address of the sidecar, such as http://10.0.0.7:9797; by default the one it listens on here.",
    )(function)


def settings_of(arguments: Mapping[str, Any]) -> config.Settings:
    """Give the settings where to find a daemon; a value that can't be used ends the command.

    Only what the command was given flags for matters: a wrong warm-up setting must not keep `status` from
    working.
    """
    found = loaded(arguments)
    wrong = [problem for problem in found.problems if any(name in problem.sentence for name in _names(arguments))]
    return config.Loaded(found.settings, tuple(wrong), found.sources).or_raise()


def _names(arguments: Mapping[str, Any]) -> list[str]:
    fields = [name for name in arguments if name in config.Settings.model_fields]
    return [f"{name}=" for name in fields] + [f"{config.variable(name)}=" for name in fields]


def ask_port(url: str, listen: str, question: Callable[[DaemonClient], Awaitable[Answer]]) -> Answer:
    """Ask a daemon's port one thing: the one at `url`, else the one that listens on `listen` here."""
    return asyncio.run(_ask(DaemonClient(url or local_url(listen)), question))


def ask_socket(control_dir: Path, question: Callable[[DaemonClient], Awaitable[Answer]]) -> Answer:
    """Ask a daemon's control socket one thing."""
    return asyncio.run(_ask(DaemonClient(control_dir=control_dir), question))


async def _ask(client: DaemonClient, question: Callable[[DaemonClient], Awaitable[Answer]]) -> Answer:
    async with client:
        return await question(client)
