"""`wait`: block until a running daemon says that it is ready, or that the engine may start.

Only the probes are asked; no decision is made here.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from sidecar.commands.asked import ask_port, settings_of, url_option
from sidecar.commands.numbers import Number
from sidecar.commands.settings_flags import settings_options
from sidecar.errors import DaemonUnreachable, NotSo
from sidecar.web.client import DaemonClient

#: Seconds between two questions: often enough for a script, seldom enough to cost nothing.
PERIOD_S = 0.5

PATHS = {"startup": "/startupz", "ready": "/readyz"}
#: Endings of a publish after which the store holds what this start compiled, and those after which it never will.
STORED, NEVER_STORED = ("published", "nothing_new"), ("read_only", "disabled")


@click.command()
@settings_options("listen")
@url_option
@click.option(
    "--for",
    "what",
    type=click.Choice([*PATHS, "published"]),
    default="ready",
    show_default=True,
    help="startup: the engine's container may start; ready: traffic may come; published: what this start compiled is "
    "in the store.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Number(min=0),
    default=None,
    help="Give up after this long, with exit code 3. By default there is no limit.",
)
@click.option("--quiet", is_flag=True, help="Do not print the sentences on the way.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object at the end, sentences on standard error.")
def command(url: str, what: str, timeout: float | None, quiet: bool, as_json: bool, **arguments: Any) -> None:
    """Wait until a running sidecar is ready, and print why it is not whenever that changes.

    A sidecar that does not answer yet is waited for too. `--for published` ends with exit code 3 at once where
    nothing is ever published: no store, or a read-only one.

    \b
    Examples:
      warmup-sidecar wait --timeout 1800 && echo ready
      warmup-sidecar wait --for startup --url http://10.0.0.7:9797
    """
    settings = settings_of(arguments)
    started = time.monotonic()
    told = [""]

    def tell(sentence: str) -> None:
        if sentence != told[0] and not quiet:
            click.echo(f"{time.monotonic() - started:7.1f} s  {sentence}", err=as_json)
        told[0] = sentence

    async def until(client: DaemonClient) -> str:
        while True:
            is_open, sentence = await (_look(client, PATHS[what]) if what in PATHS else _look_for_publish(client))
            tell(sentence)
            if is_open:
                return sentence
            if timeout is not None and time.monotonic() - started + PERIOD_S > timeout:
                raise NotSo(f"Not {what} after {timeout:g} s: {sentence}")
            await asyncio.sleep(PERIOD_S)

    sentence = ask_port(url, settings.listen, until)
    if as_json:
        click.echo(json.dumps({"ok": True, "sentence": sentence, "seconds": round(time.monotonic() - started, 3)}))


async def _look(client: DaemonClient, path: str) -> tuple[bool, str]:
    try:
        probe = await client.probe(path)
    except DaemonUnreachable as error:
        return False, str(error)
    return probe.open, probe.sentence


async def _look_for_publish(client: DaemonClient) -> tuple[bool, str]:
    """Tell whether the first publish after ready has ended well. Raises NotSo where there will be none."""
    try:
        status = await client.status()
    except DaemonUnreachable as error:
        return False, str(error)
    publish = status.get("publish") or {}
    outcome, sentence = publish.get("outcome", ""), str(publish.get("sentence") or "")
    if outcome in NEVER_STORED:
        raise NotSo(f"Nothing is published here: {sentence or outcome}")
    if not status["ready"]:
        return False, str(status.get("reason") or "Not ready.")
    return outcome in STORED, sentence or f"Publish: {outcome or 'pending'}."
