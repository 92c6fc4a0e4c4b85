"""`launcher`: put the launcher into the control directory and end, where no native sidecar can do it in time.

What the launcher does is in `launcher/`; how it is packed, in `handshake/launcher_file.py`.
"""

from __future__ import annotations

from typing import Any

import click

from sidecar.commands.asked import settings_of
from sidecar.commands.settings_flags import settings_options


@click.command()
@settings_options("control_dir")
def command(**arguments: Any) -> None:
    """Put the launcher into the control directory, as an init container of a cluster without native sidecars.

    There the sidecar is a plain container that starts beside the engine's, so the launcher must lie there before both.
    The launcher then waits for the sidecar as long as WARMUP_LAUNCHER_GRACE_S in the engine's container says.

    \b
    Example:
      warmup-sidecar launcher --control-dir /run/warmup
    """
    from sidecar.handshake.launcher_file import lay_launcher

    click.echo(f"{lay_launcher(settings_of(arguments).control_dir)} is there.")
