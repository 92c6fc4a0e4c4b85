"""`store`: what lies in the shared store, why something is a miss, whether it is whole, and what must not be used.

How the store is laid out is known in `caches/store.py`; looking at it is in `caches/inspection.py`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.numbers import Number
from sidecar.commands.settings_flags import loaded
from sidecar.commands.store_exchange import bring, export, progress
from sidecar.commands.store_gc import gc
from sidecar.commands.store_given import JSON, STORE, opened
from sidecar.commands.store_keys import keygen, sign
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar.caches.fingerprint import Fingerprint, KeyScope
    from sidecar.caches.inspection import Listed
    from sidecar.caches.standing import Watch
    from sidecar.caches.store import Store

#: A person waits for the answer: more keys are compared than within a restore's budget.
MOST_KEYS = 10_000
_HEADS = ("scope", "key", "generation", "state", "files", "unpacked", "packed", "boots", "published (UTC)")
_RIGHT = frozenset({"files", "unpacked", "packed"})
_WATCH = click.option(
    "--watch",
    "watch_s",
    type=Number(0, 600),
    default=0.0,
    metavar="SECONDS",
    help="Watch claims for so long, to be sure that their holders are at work; they beat every 15 s.",
)


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
@STORE
@_WATCH
@JSON
def ls(location: str, watch_s: float, as_json: bool) -> int:
    """List all generations: scope, key, state, files, sizes, boots, and which pods try or make one.

    Named too, with --json in the state `removed`, are those that are gone and whose files are never published again.

    \b
    Examples:
      warmup-sidecar store ls --json
      warmup-sidecar store ls --watch 40
    """
    from sidecar.caches.inspection import listed, removed
    from sidecar.commands.golden_life import show_remembered
    from sidecar.commands.tables import Grid, make_console, table

    store = opened(location, None, trusting=True)
    found, gone = listed(store, _watch(watch_s)), removed(store)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in (*found, *gone)], indent=1))
        return EXIT_OK
    show_remembered(store)
    if not found and not gone:
        click.echo("The store is empty: nothing was published to it yet.")
        return EXIT_OK
    rows = [_row(each) for each in found]
    if rows:
        make_console().print(table(Grid("", _HEADS, rows, _RIGHT, frozenset({"state"}))))
    for each in found:
        for said in filter(None, (each.detail, _claim(each))):
            click.echo(f"{each.scope} {each.key[:12]}/{each.name}: {said}")
    for each in gone:
        lift = f"`warmup-sidecar store unquarantine {each.key[:12]}/{each.name}` lifts that"
        click.echo(f"{each.scope} {each.key[:12]}/{each.name}: {each.detail[:-1]}; {lift}.")
    return EXIT_OK


def _row(each: Listed) -> tuple[str, ...]:
    from sidecar.web import words

    made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(each.created_unix_s)) if each.created_unix_s else "–"
    boots = f"{each.ready} ready, {each.died} died"
    sizes = (str(each.files), words.size(each.bytes), words.size(each.packed))
    return (each.scope, each.key[:12], each.name, _state(each), *sizes, boots, made)


@command.command("show")
@click.argument("generation")
@STORE
@_WATCH
@JSON
def show(generation: str, location: str, watch_s: float, as_json: bool) -> int:
    """Show one generation: its state, families, archives, and whom it builds on. The beginning of a key or name will do.

    \b
    Example:
      warmup-sidecar store show 60e1
    """
    from sidecar.caches.inspection import find, state_of
    from sidecar.commands.golden_life import remembered_sentence
    from sidecar.commands.tables import Grid, make_console, table
    from sidecar.web import words

    store = opened(location, None, trusting=True)
    scope, key, name = find(store, generation)
    # What nobody vouches for can be looked at; its state says so.
    manifest = store.unbelieved(scope, key, name)
    if manifest is None:
        raise UsageError(f"Generation {name} has no manifest: its publisher died, or is at work.")
    state = state_of(store, scope, key, name, _watch(watch_s))
    if as_json:
        told = {field: state.to_json()[field] for field in ("state", "detail", "ready", "died", "claim")}
        click.echo(json.dumps({**manifest.to_json(), **told, "fallbacks": store.fallbacks(scope, key)}))
        return EXIT_OK
    families: dict[str, tuple[int, int]] = {}
    for file in manifest.files:
        count, size = families.get(file.family, (0, 0))
        families[file.family] = (count + 1, size + file.size)
    click.echo(
        f"{scope} key {key}, generation {name}, builds on {manifest.parent or 'nothing'}, by {manifest.created_by}."
    )
    click.echo(" ".join(filter(None, (f"State: {_state(state)}.", state.detail, _claim(state)))))
    for record in store.fallbacks(scope, key):
        click.echo(remembered_sentence({"key": key, **record}))
    rows = [(family, str(count), words.size(size)) for family, (count, size) in sorted(families.items())]
    console = make_console()
    console.print(table(Grid("Families", ("family", "files", "size"), rows, frozenset({"files", "size"}))))
    packs = [(pack.digest, words.size(pack.bytes), words.size(pack.unpacked)) for pack in manifest.packs]
    console.print(table(Grid("Archives", ("digest", "packed", "unpacked"), packs, frozenset({"packed", "unpacked"}))))
    return EXIT_OK


@command.command("verify")
@click.option("--deep", is_flag=True, help="Read every archive and check the digest of every file.")
@STORE
@JSON
def verify(deep: bool, location: str, as_json: bool) -> int:
    """Check that the store is whole, and signed where WARMUP_TRUSTED_KEYS_FILE is set; exit 3 and name what is not.

    \b
    Example:
      warmup-sidecar store verify --deep
    """
    from sidecar.caches.inspection import verify as check

    store = opened(location, "read-only", trusting=True)
    if deep and not as_json:
        with progress("reading archives") as advance:
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
        if store.trust is not None:
            click.echo("Every generation is signed by a trusted key.")
    return EXIT_NOT_SO if findings else EXIT_OK


@command.command("explain")
@click.option(
    "--facts",
    "file",
    type=click.Path(path_type=Path),
    help="facts.json of an attempt; default: the newest, or what the last run left in the live cache.",
)
@STORE
@JSON
def explain(file: Path | None, location: str, as_json: bool) -> int:
    """Say fact by fact why an engine's caches were a miss, against the nearest key in the store; exit 3 for a miss.

    \b
    Example:
      warmup-sidecar store explain
    """
    from sidecar.caches.fingerprint import fingerprint
    from sidecar.caches.ownership import SCOPES
    from sidecar.commands.given_facts import given_facts

    given = given_facts(file, loaded({}).settings)
    store = opened(location, "read-only", trusting=True)
    known = fingerprint(given.facts, str(given.live_cache))
    result = {scope: _compared(store, known, scope) for scope in SCOPES}
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        click.echo(f"By {given.source}:")
        for scope, each in result.items():
            _print_comparison(scope, each)
    return EXIT_OK if all(each["hit"] for each in result.values()) else EXIT_NOT_SO


def _state(each: Listed) -> str:
    claim = each.claim
    if claim is None or each.state not in ("candidate", "awaited", "abandoned"):
        return each.state
    if each.state == "candidate":
        tried = {"held": "tried by", "lapsed": "no longer tried by", "unsure": "perhaps tried by"}
        return f"candidate, {tried[claim.state]} {claim.holder}"
    made = {"held": "being made by", "lapsed": "abandoned by", "unsure": "perhaps being made by"}
    return f"{made[claim.state]} {claim.holder}"


def _claim(each: Listed) -> str:
    """Say how a claim stands, and how that is known."""
    from sidecar.caches.standing import GONE_S
    from sidecar.web import words

    claim = each.claim
    if claim is None or each.state not in ("candidate", "awaited", "abandoned"):
        return ""
    age = claim.beat_age_s
    beat = (
        "when its last beat was can't be told, because the store can't be written from here"
        if age is None
        else f"last beat {words.seconds(age)} ago"
        if age >= 0
        else "its last beat lies in the future: the store's clock was set back"
    )
    watched = f", unchanged for the {words.seconds(claim.watched_s)} that it was watched" if claim.watched_s else ""
    then = {
        "held": "",
        "lapsed": " The next pod takes its place.",
        "unsure": f" --watch 40 looks whether it still beats; after {GONE_S:.0f} s without one it counts as lapsed.",
    }
    return f"{claim.holder}: {claim.state}, {beat}{watched}.{then[claim.state]}"


def _watch(seconds: float) -> Watch | None:
    from sidecar.caches.standing import Watch

    return Watch(seconds, time.monotonic, time.sleep) if seconds else None


def _compared(store: Store, known: Fingerprint, scope: KeyScope) -> dict[str, Any]:
    from sidecar.caches.choice import usable
    from sidecar.caches.explain import nearest

    near = nearest(store, known, scope, MOST_KEYS)
    return {
        "key": known.key(scope),
        "hit": usable(store, known, scope) is not None,
        "nearest": near.key,
        "differs": [
            {"fact": one.fact, "how": one.how, "here": one.ours, "there": one.theirs} for one in near.differences
        ],
        "older_keys": near.older,
    }


def _print_comparison(scope: str, found: dict[str, Any]) -> None:
    from sidecar.caches.explain import older_sentence
    from sidecar.caches.fingerprint import Difference
    from sidecar.commands.tables import Grid, make_console, table

    if found["hit"]:
        click.echo(f"{scope}: hit, key {found['key']}.")
    elif not found["nearest"]:
        click.echo(f"{scope}: miss, key {found['key']}; the store knows no other key of this scope.")
        if found["older_keys"]:
            click.echo(older_sentence(found["older_keys"]))
    else:
        click.echo(f"{scope}: miss, key {found['key']}; the nearest is {found['nearest']}, which differs in:")
        differs = [Difference(one["fact"], one["here"], one["there"]) for one in found["differs"]]
        rows = [(one.fact, one.how, one.said(one.ours), one.said(one.theirs)) for one in differs]
        make_console().print(table(Grid("", ("fact", "how", "here", "there"), rows)))
        if any(one.how != "changed" and not one.is_given for one in differs):
            click.echo(
                "What is not known on one side is not in that engine's image (a compiler), or was not learned there: the launcher "
                "tells all facts from the engine's container, without it settings and NVML tell a few."
            )


@command.command("quarantine")
@click.argument("generation")
@click.option("--reason", required=True, help="Why it must not be used; shown to whoever asks.")
@click.option("--descendants", is_flag=True, help="Also those that were built on it, which hold its files too.")
@STORE
def quarantine(generation: str, reason: str, descendants: bool, location: str) -> int:
    """Keep a generation from being restored or built on again. Pods that run on it are not touched.

    \b
    Example:
      warmup-sidecar store quarantine 60e1c2/00000003 --reason "wrong output on node 7"
    """
    from sidecar.caches.inspection import built_on, find

    store = opened(location, "read-write")
    scope, key, name = find(store, generation)
    known, later = store.quarantined(scope, key), built_on(store, scope, key, name)
    for each in (name, *(later if descendants else ())):
        if each in known:
            why = store.quarantine_record(scope, key, each).get("reason", "no reason given")
            click.echo(f"Generation {each} of {scope} key {key} is quarantined already: {why}")
            continue
        store.quarantine(scope, key, each, {"reason": reason, "generation": each, "by": "operator"})
        click.echo(f"Generation {each} of {scope} key {key} is quarantined.")
    left = [] if descendants else [each for each in later if each not in known]
    if left:
        click.echo(
            f"The next start takes one that was built on it and holds its files too: {', '.join(left)}. "
            "If they must not be used either, say it again with --descendants."
        )
    else:
        click.echo("The next start takes another one, or is cold.")
    return EXIT_OK


@command.command("unquarantine")
@click.argument("generation")
@click.option("--descendants", is_flag=True, help="Also those that were built on it, whoever quarantined them.")
@STORE
def unquarantine(generation: str, descendants: bool, location: str) -> int:
    """Let a quarantined or condemned generation be used again.

    \b
    Example:
      warmup-sidecar store unquarantine 60e1c2/00000003 --descendants
    """
    from sidecar.caches.inspection import built_on, find

    store = opened(location, "read-write")
    scope, key, name = find(store, generation, removed=True)
    later, there = built_on(store, scope, key, name), store.generations(scope, key)
    released = [each for each in (name, *(later if descendants else ())) if store.release(scope, key, each)]
    for each in released:
        so = "may be used again" if each in there else "is gone; what pods still have of it may be published again"
        click.echo(f"Generation {each} of {scope} key {key} {so}.")
    if name not in released:
        click.echo(f"Generation {name} of {scope} key {key} was neither quarantined nor condemned.")
    known = store.quarantined(scope, key)
    if left := [each for each in later if each in known]:
        click.echo(
            f"Those that were built on it stay quarantined: {', '.join(left)}. "
            "If they may be used as well, say it again with --descendants."
        )
    return EXIT_OK if released else EXIT_NOT_SO


@command.command("killers")
@click.argument("key")
@click.option("--forget", is_flag=True, help="Forget what is listed, so that the next warm-ups send it again.")
@STORE
@JSON
def killers(key: str, forget: bool, location: str, as_json: bool) -> int:
    """List the warm-up traffic that engines of a key died of, as their pods reported it. The beginning of a key will do.

    \b
    Example:
      warmup-sidecar store killers 60e1c2 --forget
    """
    from sidecar.warmup.reported import listed

    store = opened(location, "read-write" if forget else None)
    keys = [each for each in store.keys("exact") if each.startswith(key)]
    if len(keys) != 1:
        what = f"is the beginning of {len(keys)} keys" if keys else "begins no key of scope exact"
        raise UsageError(f"{key} {what}; `warmup-sidecar store ls` lists them.")
    found = listed(store.deaths("exact", keys[0]))
    if as_json:
        click.echo(json.dumps([{"burst": name, "pod": pod, "at": at} for name, pod, at in found], indent=1))
    for name, pod, at in () if as_json else found:
        click.echo(f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(at))} UTC, pod {pod[:8]}: {name}")
    if forget:
        store.forget_deaths("exact", keys[0])
    if not as_json and not found:
        click.echo("No pod reported that an engine of this key died of warm-up traffic.")
    elif not as_json and forget:
        click.echo("Forgotten: the next warm-ups send it again.")
    return EXIT_OK


for each in (gc, keygen, sign, export, bring):
    command.add_command(each)
