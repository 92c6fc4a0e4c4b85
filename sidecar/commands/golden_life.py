"""`golden run` and `golden lift`: check a running pod's output again, and forget a fallback that earlier pods came to.

What is recorded and compared is in `golden.py`; how a fallback comes about is decided by the daemon.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.asked import ask_socket, settings_of
from sidecar.commands.settings_flags import settings_options
from sidecar.commands.store_given import STORE, opened
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar.caches.store import Store

_JSON = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.command("run")
@settings_options("control_dir")
@_JSON
def run(as_json: bool, **arguments: Any) -> None:
    """Have a running sidecar check its engine's output once more, with its own golden file and policies.

    The pod is not ready meanwhile; `warmup-sidecar wait` says when it is. Goes through the socket in the control directory.

    \b
    Example:
      warmup-sidecar golden run && warmup-sidecar wait --timeout 600
    """
    sentence = ask_socket(settings_of(arguments).control_dir, lambda client: client.call("/check"))
    click.echo(json.dumps({"ok": True, "sentence": sentence}) if as_json else sentence)


@click.command("lift")
@click.argument("key", default="")
@STORE
@click.option("--list", "only_list", is_flag=True, help="Show what is remembered, and lift nothing.")
@_JSON
def lift(key: str, location: str, only_list: bool, as_json: bool) -> int:
    """Forget the fallback that is remembered for a KEY, so that its engines start as they are asked to and are checked anew.

    The beginning of a key will do; without one, the only key that has a fallback is meant. Pods that run with the fallback
    keep it until they are deleted.

    \b
    Examples:
      warmup-sidecar golden lift --list
      warmup-sidecar golden lift 60e1
    """
    store = opened(location, "read-only" if only_list else "read-write")
    known = {each: store.fallbacks("exact", each) for each in store.keys("exact") if each.startswith(key)}
    known = {each: records for each, records in known.items() if records}
    told = [{"key": each, **record} for each, records in known.items() for record in records]
    if not known:
        where = f"a key that begins with {key}" if key else "any key"
        click.echo(json.dumps([]) if as_json else f"No fallback is remembered for {where}.")
        return EXIT_OK if only_list else EXIT_NOT_SO
    if not only_list:
        if len(known) > 1:
            raise UsageError(f"Fallbacks are remembered for {len(known)} keys: name one of {', '.join(known)}.")
        store.lift_fallbacks("exact", *known)
    if as_json:
        click.echo(json.dumps(told, indent=1))
        return EXIT_OK
    for each in told:
        click.echo(remembered_sentence(each))
    if not only_list:
        click.echo("Lifted: the next pod with this key starts as it is asked to, and is checked.")
    return EXIT_OK


def show_remembered(store: Store) -> None:
    """Print a sentence for each fallback that is remembered in a store."""
    for key in store.keys("exact"):
        for record in store.fallbacks("exact", key):
            click.echo(remembered_sentence({"key": key, **record}))


def remembered_sentence(record: dict[str, Any]) -> str:
    """Say what is remembered: key, fallback, since when and why."""
    at = record.get("at")
    since = time.strftime(" since %Y-%m-%d %H:%M UTC", time.gmtime(at)) if isinstance(at, int | float) else ""
    why = f" Without it: {record['reason']}" if record.get("reason") else ""
    return f"Engines of key {str(record.get('key'))[:12]} start with the fallback `{record.get('change')}`{since}.{why}"
