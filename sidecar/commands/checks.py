"""What `check` tries on this machine: store, live cache, control directory, profile, key file, port, engine, Kubernetes.

Every check gives findings in sentences; nothing is left behind, and nothing is printed here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from sidecar.commands.command_checks import engine_command
from sidecar.commands.finding import Finding
from sidecar.commands.key_checks import signatures
from sidecar.commands.kubernetes_checks import kubernetes
from sidecar.config import Settings
from sidecar.errors import DaemonUnreachable, NotSo, ProfileError, WarmupError
from sidecar.web.client import DaemonClient, local_url

T = TypeVar("T")

#: A store on a network that hangs must not hang `check` too.
DEADLINE_S = 20.0


def every_check(settings: Settings) -> Iterator[Finding]:
    """Try everything that the settings name, one after the other."""
    for check in (
        _store,
        signatures,
        _live_cache,
        _families,
        _control_dir,
        _profile,
        _api_key,
        _listen,
        _engine,
        engine_command,
        kubernetes,
    ):
        yield from check(settings)


def _store(settings: Settings) -> Iterator[Finding]:
    if not settings.store:
        yield Finding(
            "store",
            "note",
            "No store is set (WARMUP_STORE): nothing is restored or published, every start is cold.",
        )
        return
    *_, last = settings.store.split(",")
    if "://" in last:
        yield _within_deadline(lambda: _bucket(settings)) or Finding(
            "store", "problem", f"{last} does not answer within {DEADLINE_S:g} s; check its endpoint and the network."
        )
        return
    settings = settings.model_copy(update={"store": last})
    advice = "Mount the shared volume there, or name another directory in WARMUP_STORE."
    found = _within_deadline(lambda: _directory(Path(settings.store)))
    if found is None:
        yield Finding(
            "store",
            "problem",
            f"{settings.store} does not answer within {DEADLINE_S:g} s; its server hangs. {advice}",
        )
    elif found:
        yield Finding("store", "problem", f"{settings.store} {found}. {advice}")
    else:
        yield _store_access(settings)


def _bucket(settings: Settings) -> Finding:
    from sidecar.caches.bucket import open_bucket

    location = settings.store.rpartition(",")[2]
    try:
        store = open_bucket(location, settings.store_mode)
        store.check()
        if settings.store_mode == "read-only":
            return Finding("store", "good", f"{location} can be read; nothing is published (store_mode is read-only).")
        store.prove_writing()
    except WarmupError as error:
        return Finding("store", "problem", str(error))
    return Finding("store", "good", f"{location} can be read and written, and its server keeps conditional writes.")


def _store_access(settings: Settings) -> Finding:
    refused = _within_deadline(lambda: _unwritable(Path(settings.store)))
    if settings.store_mode == "read-only":
        return Finding(
            "store", "good", f"{settings.store} can be read; nothing is published (store_mode is read-only)."
        )
    if refused is None:
        return Finding(
            "store",
            "problem",
            f"Writing to {settings.store} takes more than {DEADLINE_S:g} s; its server hangs.",
        )
    if refused:
        return Finding(
            "store",
            "problem",
            f"{settings.store} can be read and not written ({refused}): give uid {os.getuid()} or "
            "one of its groups write access, or set WARMUP_STORE_MODE=read-only.",
        )
    return Finding("store", "good", f"{settings.store} can be read and written.")


def _live_cache(settings: Settings) -> Iterator[Finding]:
    from sidecar.caches.live_cache import filesystem_type, network_filesystem

    path = settings.live_cache
    place = _existing(path)
    kind = filesystem_type(place) or "unknown"
    if network := network_filesystem(place):
        yield Finding(
            "live cache",
            "problem",
            f"{path} lies on a network filesystem ({network}): compilers lock and rename there, "
            "and pods would share it. Set WARMUP_LIVE_CACHE to a local disk such as an emptyDir.",
        )
    if refused := _unwritable(place):
        yield Finding(
            "live cache",
            "problem",
            f"{path} can't be written ({refused}): mount a writable volume there, or set "
            "WARMUP_LIVE_CACHE to a writable directory.",
        )
    elif not network:
        made = "" if place == path else ", and is made at the start"
        yield Finding("live cache", "good", f"{path} is on a local disk ({kind}) and can be written{made}.")
    if settings.store and "://" not in settings.store and _inside(Path(settings.store), path):
        yield Finding(
            "live cache",
            "problem",
            f"The store {settings.store} and the live cache {path} lie in each other; keep them "
            "apart, or published packs are taken for kernels.",
        )


def _families(settings: Settings) -> Iterator[Finding]:
    from sidecar.caches.families import BY_NAME, stored_families

    known = [family.name for family in stored_families()]
    for name in settings.excluded_families:
        if name not in known:
            why = "is never stored" if name in BY_NAME else "is no cache family"
            yield Finding(
                "families", "problem", f"WARMUP_EXCLUDE_FAMILIES: {name} {why}; those that are: {', '.join(known)}."
            )
    for root in settings.watched_roots:
        if _inside(Path(root), settings.live_cache):
            yield Finding(
                "families",
                "note",
                f"WARMUP_EXTRA_ROOTS: {root} and the live cache lie in each other; it is watched anyway.",
            )


def _control_dir(settings: Settings) -> Iterator[Finding]:
    path = settings.control_dir
    place = _existing(path)
    if refused := _unwritable(place):
        yield Finding(
            "control directory",
            "problem",
            f"{path} can't be written ({refused}): mount a volume there that the sidecar and "
            "the engine share, or set WARMUP_CONTROL_DIR.",
        )
        return
    try:
        found = asyncio.run(_ask(DaemonClient(control_dir=path)))
    except DaemonUnreachable:
        made = "" if place == path else ", and is made at the start"
        yield Finding("control directory", "good", f"{path} can be written{made}; no sidecar runs there.")
    except NotSo as error:
        yield Finding("control directory", "problem", str(error))
    else:
        yield Finding("control directory", "note", f"A sidecar runs in {path}: {found}")


async def _ask(client: DaemonClient) -> str:
    async with client:
        return str((await client.status()).get("reason", ""))


def _profile(settings: Settings) -> Iterator[Finding]:
    from sidecar.warmup.choice import choose_profile
    from sidecar.warmup.profiles import list_profiles, load_profile

    try:
        if settings.profile == "auto":
            choice = choose_profile(settings.sm)
            known = ", ".join(each.name for each in list_profiles() if each.profile and not each.profile.only_extended)
            sentence = (
                choice.sentence if settings.sm else f"Chosen by SM version when the engine runs; there are {known}."
            )
            yield Finding("profile", "good", sentence)
        else:
            profile = load_profile(settings.profile)
            yield Finding("profile", "good", f"{profile.name} has {len(profile.steps)} steps: {profile.description}")
    except ProfileError as error:
        yield from (Finding("profile", "problem", line) for line in str(error).splitlines())


def _api_key(settings: Settings) -> Iterator[Finding]:
    path = settings.api_key_file
    if path is None:
        return
    advice = "Mount the secret there, or correct WARMUP_API_KEY_FILE."
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        yield Finding("API key", "problem", f"{path} can't be read ({why}). {advice}")
        return
    if not text or any(character.isspace() for character in text):
        state = "is empty" if not text else "holds more than one word"
        yield Finding("API key", "problem", f"{path} {state}; it must hold the engine's key and nothing else. {advice}")
        return
    yield Finding("API key", "good", f"{path} holds a key.")


def _listen(settings: Settings) -> Iterator[Finding]:
    url = local_url(settings.listen)
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.listen_host, settings.listen_port))
    except (OSError, OverflowError) as error:
        yield _listen_refused(settings, url, error)
    else:
        yield Finding("probes", "good", f"{settings.listen} is free.")


def _listen_refused(settings: Settings, url: str, error: OSError | OverflowError) -> Finding:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        try:
            return Finding(
                "probes",
                "note",
                f"A sidecar already answers at {url}: {asyncio.run(_ask(DaemonClient(url)))}",
            )
        except (DaemonUnreachable, NotSo):
            return Finding(
                "probes",
                "problem",
                f"{settings.listen} is taken by another program; stop it, or set WARMUP_LISTEN and "
                "the pod's probes to a free port.",
            )
    why = getattr(error, "strerror", None) or error
    return Finding(
        "probes",
        "problem",
        f"{settings.listen} can't be opened ({why}); set WARMUP_LISTEN to an address of this "
        "machine and a port from 1024 to 65535.",
    )


def _engine(settings: Settings) -> Iterator[Finding]:
    yield asyncio.run(_look(settings))


async def _look(settings: Settings) -> Finding:
    from sidecar.engines.detect import look, make_engine

    engine = make_engine(settings, lambda: _key(settings), time.monotonic)
    try:
        health = await engine.health()
        if health.state in ("refused", "unreachable"):
            return Finding(
                "engine",
                "note",
                f"Nothing answers at {settings.engine_url} yet ({health.detail}); before the engine "
                "starts that is as it should be.",
            )
        seen = await look(engine)
    finally:
        await engine.close()
    return Finding("engine", "good" if seen.usable else "problem", " ".join(seen.sentences))


def _key(settings: Settings) -> str | None:
    try:
        return settings.api_key_file.read_text(encoding="utf-8").strip() if settings.api_key_file else None
    except (OSError, UnicodeDecodeError):
        return None


def _within_deadline(question: Callable[[], T]) -> T | None:
    """Ask a question about a filesystem; None past the deadline, and the thread that hangs is left behind."""
    import queue
    import threading

    answers: queue.SimpleQueue[T] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(question()), daemon=True).start()
    try:
        return answers.get(timeout=DEADLINE_S)
    except queue.Empty:
        return None


def _directory(path: Path) -> str:
    """Say what is wrong with reading a directory; empty when nothing is."""
    try:
        with os.scandir(path) as entries:
            next(entries, None)
    except FileNotFoundError:
        return "does not exist"
    except NotADirectoryError:
        return "is not a directory"
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return ""


def _unwritable(path: Path) -> str:
    """Try to write a file without a name there; say why it can't be done, or nothing."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"warmup-sidecar check")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _existing(path: Path) -> Path:
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _inside(one: Path, other: Path) -> bool:
    first, second = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return first.is_relative_to(second) or second.is_relative_to(first)
