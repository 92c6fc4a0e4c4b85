"""`drain`: ask a running daemon, through its control socket, to withdraw readiness.

What draining means is decided by the daemon.
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
    """Withdraw readiness of a running sidecar; requests in flight may end.

    Goes through the socket in the control directory, so it is run in the sidecar's container. `rewarm` takes the
    pod back.

    \b
    Examples:
      warmup-sidecar drain
      kubectl exec POD -c warmup-sidecar -- warmup-sidecar drain
    """
    sentence = ask_socket(settings_of(arguments).control_dir, lambda client: client.call("/drain"))
    click.echo(json.dumps({"ok": True, "sentence": sentence}) if as_json else sentence)
