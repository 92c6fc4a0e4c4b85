"""`store`: what lies in the shared store, why something is a miss, whether it is whole, and what must not be used.

How the store is laid out is known in `caches/store.py`; looking at it is in `caches/inspection.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.settings_flags import loaded
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError, WarmupError
from sidecar.files import read_json

if TYPE_CHECKING:
    from sidecar.caches.fingerprint import Fingerprint, KeyScope
    from sidecar.caches.inspection import Listed
    from sidecar.caches.store import DirectoryStore
    from sidecar.config import Settings

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_STORE = click.option("--store", "location", default="", metavar="DIRECTORY", help="The store; default: WARMUP_STORE.")


@click.group()
def command() -> None:
    """Look into the shared store, check it, and keep bad generations from being used.

    \b
    Examples:
      warmup-sidecar store ls --store /mnt/store
      warmup-sidecar store verify --deep
      warmup-sidecar store explain --facts /run/warmup/attempts/…/facts.json
      warmup-sidecar store quarantine 60e1c2/00000003 --reason "wrong output on node 7"
    """


@command.command("ls")
@_STORE
@_JSON
def ls(location: str, as_json: bool) -> int:
    """List all generations: scope, key, state, files, sizes, boots.

    \b
    Example:
      warmup-sidecar store ls --json
    """
    from sidecar.caches.inspection import listed
    from sidecar.commands.tables import Grid, make_console, table
    from sidecar.web import words

    found = list(listed(_open(location, "read-only")))
    if as_json:
        click.echo(json.dumps([each.to_json() for each in found], indent=1))
        return EXIT_OK
    if not found:
        click.echo("The store is empty: nothing was published to it yet.")
        return EXIT_OK
    rows = [
        (
            each.scope,
            each.key[:12],
            each.name,
            _state(each),
            str(each.files),
            words.size(each.bytes),
            words.size(each.packed),
            f"{each.ready} ready, {each.died} died",
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(each.created_unix_s)) if each.created_unix_s else "–",
        )
        for each in found
    ]
    heads = ("scope", "key", "generation", "state", "files", "unpacked", "packed", "boots", "published (UTC)")
    right = frozenset({"files", "unpacked", "packed"})
    make_console().print(table(Grid("", heads, rows, right, frozenset({"state"}))))
    for each in found:
        if each.detail:
            click.echo(f"{each.scope} {each.key[:12]}/{each.name}: {each.detail}")
    return EXIT_OK


@command.command("show")
@click.argument("generation")
@_STORE
@_JSON
def show(generation: str, location: str, as_json: bool) -> int:
    """Show one generation: its families, archives, and whom it builds on. The beginning of a key or name will do.

    \b
    Example:
      warmup-sidecar store show 60e1
    """
    from sidecar.caches.inspection import find
    from sidecar.commands.tables import Grid, make_console, table
    from sidecar.web import words

    store = _open(location, "read-only")
    scope, key, name = find(store, generation)
    manifest = store.read_manifest(scope, key, name)
    if manifest is None:
        raise UsageError(f"Generation {name} has no manifest: its publisher died, or is at work.")
    if as_json:
        click.echo(json.dumps(manifest.to_json()))
        return EXIT_OK
    families: dict[str, tuple[int, int]] = {}
    for file in manifest.files:
        count, size = families.get(file.family, (0, 0))
        families[file.family] = (count + 1, size + file.size)
    click.echo(
        f"{scope} key {key}, generation {name}, builds on {manifest.parent or 'nothing'}, by {manifest.created_by}."
    )
    rows = [(family, str(count), words.size(size)) for family, (count, size) in sorted(families.items())]
    console = make_console()
    console.print(table(Grid("Families", ("family", "files", "size"), rows, frozenset({"files", "size"}))))
    packs = [(pack.digest, words.size(pack.bytes), words.size(pack.unpacked)) for pack in manifest.packs]
    console.print(table(Grid("Archives", ("digest", "packed", "unpacked"), packs, frozenset({"packed", "unpacked"}))))
    return EXIT_OK


@command.command("verify")
@click.option("--deep", is_flag=True, help="Read every archive and check the digest of every file.")
@_STORE
@_JSON
def verify(deep: bool, location: str, as_json: bool) -> int:
    """Check that the store is whole; exit 3 and name what is not.

    \b
    Example:
      warmup-sidecar store verify --deep
    """
    from sidecar.caches.inspection import verify as check

    store = _open(location, "read-only")
    if deep and not as_json:
        with _progress() as advance:
            findings = list(check(store, deep, advance))
    else:
        findings = list(check(store, deep))
    if as_json:
        click.echo(json.dumps([each.to_json() for each in findings], indent=1))
    elif findings:
        for each in findings:
            click.echo(f"{each.where}: {each.sentence}")
    else:
        click.echo("Every archive is there in its right size." if not deep else "Every byte is what was published.")
    return EXIT_NOT_SO if findings else EXIT_OK


@command.command("explain")
@click.option("--facts", "file", type=click.Path(path_type=Path), help="facts.json of an attempt; default: the newest.")
@_STORE
@_JSON
def explain(file: Path | None, location: str, as_json: bool) -> int:
    """Say fact by fact why an engine's caches were a miss, against the nearest key in the store; exit 3 for a miss.

    \b
    Example:
      warmup-sidecar store explain
    """
    from sidecar.caches.fingerprint import fingerprint
    from sidecar.caches.ownership import SCOPES

    settings = loaded({}).settings
    facts = _facts(file, settings.control_dir)
    store = _open(location, "read-only")
    known = fingerprint(facts, _live_cache(file, settings))
    result = {scope: _compared(store, known, scope) for scope in SCOPES}
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        for scope, each in result.items():
            _print_comparison(scope, each)
    return EXIT_OK if all(each["hit"] for each in result.values()) else EXIT_NOT_SO


def _state(each: Listed) -> str:
    if each.state == "awaited":
        return f"being made by {each.claimed_by}"
    return f"candidate, tried by {each.claimed_by}" if each.claimed_by and each.state == "candidate" else each.state


def _live_cache(file: Path | None, settings: Settings) -> str:
    """Give the live cache that the sidecar beside these facts used: a child's may lie in its user's own cache."""
    folders = [settings.control_dir] if file is None else [*file.resolve().parents][:3]
    for folder in folders:
        with suppress(OSError, WarmupError):
            return str(read_json(folder / "sidecar.json").get("live_cache") or settings.live_cache)
    return str(settings.live_cache)


def _compared(store: DirectoryStore, known: Fingerprint, scope: KeyScope) -> dict[str, Any]:
    from sidecar.caches.choice import usable
    from sidecar.caches.explain import nearest

    near = nearest(store, known, scope)
    return {
        "key": known.key(scope),
        "hit": usable(store, known, scope) is not None,
        "nearest": near.key,
        "differs": [{"fact": one.fact, "here": one.ours, "there": one.theirs} for one in near.differences],
    }


def _print_comparison(scope: str, found: dict[str, Any]) -> None:
    from sidecar.commands.tables import Grid, make_console, table

    if found["hit"]:
        click.echo(f"{scope}: hit, key {found['key']}.")
    elif not found["nearest"]:
        click.echo(f"{scope}: miss, key {found['key']}; the store knows no other key of this scope.")
    else:
        click.echo(f"{scope}: miss, key {found['key']}; the nearest is {found['nearest']}, which differs in:")
        rows = [(one["fact"], one["here"] or "–", one["there"] or "–") for one in found["differs"]]
        make_console().print(table(Grid("", ("fact", "here", "there"), rows)))


@command.command("quarantine")
@click.argument("generation")
@click.option("--reason", required=True, help="Why it must not be used; shown to whoever asks.")
@_STORE
def quarantine(generation: str, reason: str, location: str) -> int:
    """Keep a generation from being restored or built on again. Pods that run on it are not touched.

    \b
    Example:
      warmup-sidecar store quarantine 60e1c2/00000003 --reason "wrong output on node 7"
    """
    from sidecar.caches.inspection import find

    store = _open(location, "read-write")
    scope, key, name = find(store, generation)
    if name in store.quarantined(scope, key):
        known = store.quarantine_record(scope, key, name).get("reason", "no reason given")
        click.echo(f"Generation {name} of {scope} key {key} is quarantined already: {known}")
        return EXIT_OK
    store.quarantine(scope, key, name, {"reason": reason, "generation": name, "by": "operator"})
    click.echo(f"Generation {name} of {scope} key {key} is quarantined; the next start takes an older one, or is cold.")
    return EXIT_OK


@command.command("unquarantine")
@click.argument("generation")
@_STORE
def unquarantine(generation: str, location: str) -> int:
    """Let a quarantined or condemned generation be used again.

    \b
    Example:
      warmup-sidecar store unquarantine 60e1c2/00000003
    """
    from sidecar.caches.inspection import find

    store = _open(location, "read-write")
    scope, key, name = find(store, generation)
    if not store.release(scope, key, name):
        click.echo(f"Generation {name} of {scope} key {key} was neither quarantined nor condemned.")
        return EXIT_NOT_SO
    click.echo(f"Generation {name} of {scope} key {key} may be used again.")
    return EXIT_OK


def _open(location: str, mode: Any) -> DirectoryStore:
    from sidecar.caches.store import open_store

    given = loaded({})
    where = location or given.settings.store
    if not where:
        wrong = "".join(f" {problem}" for problem in given.problems if "store" in str(problem).lower())
        raise UsageError(f"No store is named: give --store DIRECTORY, or set WARMUP_STORE.{wrong}")
    return open_store(where, mode, time.sleep)


def _facts(file: Path | None, control: Path) -> dict[str, Any]:

    chosen = file or max(control.glob("attempts/*/facts.json"), default=None)
    if chosen is None:
        raise UsageError(f"No launcher has reported in {control}; name a facts.json with --facts.")
    try:
        return read_json(chosen)
    except OSError as error:
        raise UsageError(f"{chosen} can't be read ({error.strerror}); name a facts.json with --facts.") from error


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar over bytes on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    with Progress("{task.description}", BarColumn(), DownloadColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("reading archives", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
