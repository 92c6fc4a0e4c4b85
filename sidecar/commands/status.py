"""`status`: what one or many running daemons say of themselves, once or again and again, as tables or as their own JSON.

Nothing is worked out here that a daemon does not say.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.asked import ask_port, settings_of, url_option
from sidecar.commands.numbers import Number
from sidecar.commands.settings_flags import settings_options
from sidecar.errors import EXIT_NOT_SO, EXIT_OK
from sidecar.web.client import local_url

if TYPE_CHECKING:
    from sidecar.commands.status_watch import Watched

#: Seconds between two questions: a phase lasts seconds, and an answer costs the daemon a few milliseconds.
INTERVAL_S = 2.0


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@settings_options("listen")
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print /status as it is; of many or with --watch, a line each.")
@click.option("--watch", is_flag=True, help="Ask again and again, and show it live, until Ctrl-C.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=Number(min=0.2, max=3600),
    default=INTERVAL_S,
    show_default=True,
    help="Pause between two questions of --watch.",
)
def command(urls: tuple[str, ...], url: str, as_json: bool, watch: bool, interval: float, **arguments: Any) -> int:
    """Show where running sidecars are: phase, sentence, engine, restore, warm-up steps, last events.

    Of several URLs, a line each. Exit code 0 when all are ready, 3 when one is not or does not answer. With --watch, 0
    after Ctrl-C; a sidecar that is away is a line with the reason, and is asked again.

    \b
    Examples:
      warmup-sidecar status
      warmup-sidecar status --url http://10.0.0.7:9797 --json | jq .warmup.steps
      warmup-sidecar status --watch http://10.0.0.7:9797 http://10.0.0.8:9797
    """
    asked = list(dict.fromkeys([*([url] if url else []), *urls])) or [local_url(settings_of(arguments).listen)]
    if watch:
        return _watch(asked, interval, as_json)
    if len(asked) > 1:
        return _show_many(asked, as_json)
    found = ask_port(asked[0], "", lambda client: client.status())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        from sidecar.commands import status_view
        from sidecar.commands.tables import make_console

        console = make_console()
        console.print(status_view.verdict(found), *status_view.tables(found), sep="\n")
    return EXIT_OK if found.get("ready") is True else EXIT_NOT_SO


def _watch(urls: Sequence[str], interval: float, as_json: bool) -> int:
    from sidecar.commands import status_watch, watch_view

    watched = [status_watch.Watched(url) for url in urls]
    # The terminal has to be given back as it was after either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # It has no other end, so Ctrl-C is no interruption.
    with contextlib.suppress(KeyboardInterrupt), watch_view.make_view(watched, as_json) as view:
        asyncio.run(status_watch.follow(watched, interval, view.update))
    return EXIT_OK


def _show_many(urls: Sequence[str], as_json: bool) -> int:
    from sidecar.commands import status_watch, watch_view
    from sidecar.commands.tables import make_console

    watched: list[Watched] = [status_watch.Watched(url) for url in urls]
    asyncio.run(status_watch.look(watched))
    if as_json:
        for each in watched:
            click.echo(watch_view.json_line(each, time.time()))
    else:
        console = make_console()
        console.print(watch_view.overview(watched, console.width))
    return EXIT_OK if all(each.is_ready for each in watched) else EXIT_NOT_SO
