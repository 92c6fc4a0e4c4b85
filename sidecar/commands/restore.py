"""`restore`: lay the kernel caches down once and end, as an init container where there are no native sidecars.

The restore itself is the daemon's; here is that the command ends with 0 whatever happened.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from sidecar import config
from sidecar.commands.run import RunCommand, Split
from sidecar.commands.settings_flags import loaded, settings_options
from sidecar.errors import EXIT_OK

WITH_LAUNCHER = (
    "Nothing to do: WARMUP_LAUNCHER is true, so the launcher has the caches laid down when it has reported its facts. "
    "Put the launcher there with `warmup-sidecar launcher`, or set WARMUP_LAUNCHER=false here and in the sidecar."
)


@click.command(cls=RunCommand, options_metavar="[FLAGS]")
@settings_options()
@click.pass_context
def command(ctx: click.Context, /, **arguments: Any) -> int:
    """Restore the kernel caches once, from the facts that are declared, and end with 0 whatever happened.

    For the init container of a pod without a native sidecar whose engine starts without the launcher: WARMUP_IMAGE (pinned
    by digest) and WARMUP_SM say what fits. The sidecar that runs beside the engine afterwards, with the same settings and
    the same control directory, knows what was restored.

    It takes WARMUP_RESTORE_TIMEOUT_S and 30 s at most; an engine whose restore failed starts cold.

    \b
    Example:
      warmup-sidecar restore --store /mnt/store --image vllm/vllm-openai@sha256:… --sm sm90
    """
    from sidecar.daemon import run_daemon

    found: Split = ctx.meta["split"]
    merged = loaded(arguments)
    if merged.settings.launcher and "launcher" in merged.sources:
        click.echo(WITH_LAUNCHER)
        return EXIT_OK
    problems = tuple(config.Problem("flag", sentence) for sentence in found.unknown)
    settings = merged.settings.model_copy(update={"launcher": False})
    try:
        run_daemon(dataclasses.replace(merged, settings=settings, problems=problems + merged.problems), (), once=True)
    except Exception as error:  # an init container that fails keeps its engine from starting for ever
        click.echo(
            f"The restore ended by a bug of ours; please report it: {error!r}. The engine starts cold.", err=True
        )
    return EXIT_OK
