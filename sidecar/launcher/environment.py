"""The environment and the command that the engine gets: the user's, and what the sidecar adds.

Directories are created here, files are not.
"""

from __future__ import annotations

import contextlib
import os

from sidecar.launcher.attempts import Json, make_shared
from sidecar.launcher.log import say
from sidecar.launcher.output import Listener
from sidecar.launcher.swap import LiveCaches


def engine_environment(
    base: dict[str, str], settings: Json, decision: Json, caches: LiveCaches, listener: Listener
) -> dict[str, str]:
    """Make the engine's environment, and the directories it names.

    What the user has set stays. A variable that would point to where nothing can be written is left out: the
    engine's own default may work.
    """
    for path in settings["directories"]:
        with contextlib.suppress(OSError):
            make_shared(path)
    environment = dict(base)
    for name, value in settings["environment"].items():
        if base.get(name):
            if base[name].rstrip("/") != value:
                listener.note("hint", f"{name} was {base[name]} before, so that family is not in {value}.")
        elif os.path.isabs(value) and not caches.usable(value):
            caches.failed[name] = f"{value} can't be used"
            say(f"{value} can't be written, so {name} is not set.")
        else:
            environment[name] = value
    moved = writable_home(base, settings["live_cache"], caches)
    if moved:
        with contextlib.suppress(OSError):
            make_shared(moved["HOME"])
        pinned = f", and HF_HOME stays at {moved['HF_HOME']}" if "HF_HOME" in moved else ""
        text = f"HOME {base.get('HOME', '')} can't be written; the engine gets {moved['HOME']}{pinned}."
        listener.note("hint", text)
        say(text)
    environment.update(moved)
    environment.update(decision["environment"])
    for name in decision["unset"]:
        environment.pop(name, None)
    return environment


def writable_home(base: dict[str, str], live_cache: str, caches: LiveCaches) -> dict[str, str]:
    """Give a HOME in the live cache where the real one can't be written; weights stay where they are.

    What was downloaded is found by HF_HOME then; without it weights would be downloaded again, and paths in keys change.
    """
    home = base.get("HOME") or os.path.expanduser("~")
    moved = os.path.join(live_cache, "home")
    if not live_cache or os.access(home, os.W_OK | os.X_OK) or not caches.usable(moved):
        return {}
    downloads = base.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    weights = os.path.join(downloads, "huggingface")
    there = os.path.isdir(weights) or os.access(downloads, os.W_OK | os.X_OK)
    pinned = {"HF_HOME": weights} if there and not base.get("HF_HOME") else {}
    return {"HOME": moved, **pinned}


def appended(argv: list[str], words: list[str], caches: LiveCaches) -> list[str]:
    """Give the command with words at its end, where they override; a shell's -c would not see them."""
    if words and os.path.basename(argv[0]) in ("sh", "bash", "dash") and "-c" in argv:
        caches.failed["append"] = f"{' '.join(words)} can't be added to a command that a shell takes apart"
        return argv
    return [*argv, *words]
