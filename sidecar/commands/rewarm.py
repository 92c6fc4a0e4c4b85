"""`rewarm`: ask a running daemon, through its control socket, to warm up and check the output once more.

What warming up means is decided by the daemon.
"""

from __future__ import annotations

import json
from typing import Any

import click

from sidecar.commands.asked import ask_socket, settings_of
from sidecar.commands.settings_flags import settings_options


@click.command()
@settings_options("control_dir")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(as_json: bool, **arguments: Any) -> None:
    """Warm the engine up and check its output once more, also after a drain or while the pod is held.

    The pod is not ready meanwhile; `warmup-sidecar wait` says when it is.

    \b
    Examples:
      warmup-sidecar rewarm && warmup-sidecar wait --timeout 1800
    """
    sentence = ask_socket(settings_of(arguments).control_dir, lambda client: client.call("/rewarm"))
    click.echo(json.dumps({"ok": True, "sentence": sentence}) if as_json else sentence)
