"""What comes in by files, with every field of its type: garbage asks for nothing.

No file is opened here but to write what the engine does not depend on.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable

from sidecar.launcher.attempts import FORMAT, Json
from sidecar.launcher.change import is_change
from sidecar.launcher.log import say

#: Seconds, unless sidecar.json or WARMUP_LAUNCHER_<NAME> says otherwise. `grace_s` is for a sidecar that said
#: nothing yet: its daemon is up within 1 s of its process. `alone_s` is for one that died: the kubelet starts
#: a container again at once the first time, and after 10 s the second time. `look_s` is the pause between two looks for
#: caches that nobody knows.
SECONDS = {
    "wait_s": 90.0,
    "grace_s": 5.0,
    "alone_s": 10.0,
    "drain_s": 25.0,
    "settle_s": 2.0,
    "kill_s": 30.0,
    "look_s": 60.0,
}


def best_effort(write: Callable[[str, Json], None], name: str, value: Json) -> None:
    """Write a file that the engine does not depend on."""
    try:
        write(name, value)
    except OSError as error:
        say(f"{name} can't be written, so the sidecar does not learn of it: {error}.")


def durations(settings: Json) -> dict[str, float]:
    """Give every duration: WARMUP_LAUNCHER_<NAME>, else the sidecar's value, else the default."""
    found = dict(SECONDS)
    for name in SECONDS:
        for value in (settings.get(name), os.environ.get(f"WARMUP_LAUNCHER_{name.upper()}")):
            with contextlib.suppress(TypeError, ValueError):
                number = float(value)  # type: ignore[arg-type]
                found[name] = number if math.isfinite(number) and number >= 0 else found[name]
    return found


def listed(found: Json, name: str) -> list[str]:
    """Give a list of words; empty when it isn't one."""
    value = found.get(name)
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def mapped(found: Json, name: str) -> dict[str, str]:
    """Give a mapping of words to words; empty when it isn't one."""
    value = found.get(name)
    if not isinstance(value, dict):
        return {}
    return {key: word for key, word in value.items() if isinstance(word, str)}


def checked_settings(found: Json | None) -> Json | None:
    """Give sidecar.json with every field of its type; None when it isn't one that can be used.

    An empty live cache is one that the sidecar can't use: then the engine keeps its own cache directories.
    """
    if found is None or found.get("format") != FORMAT:
        return None
    if found.get("live_cache") != "" and not os.path.isabs(str(found.get("live_cache"))):
        return None
    umask = str(found.get("umask"))
    return {
        **found,
        "live_cache": str(found["live_cache"]),
        "engine_url": str(found.get("engine_url")),
        "environment": mapped(found, "environment"),
        "directories": [path for path in listed(found, "directories") if os.path.isabs(path)],
        "links": {place: path for place, path in mapped(found, "links").items() if os.path.isabs(path)},
        "extra_roots": [path for path in listed(found, "extra_roots") if os.path.isabs(path)],
        "not_caches": listed(found, "not_caches"),
        "fallbacks": [change for change in found.get("fallbacks") or [] if is_change(change)]
        if isinstance(found.get("fallbacks"), list)
        else [],
        "umask": int(umask, 8) & 0o777 if re.fullmatch(r"[0-7]{1,4}", umask) else 0o007,
    }


def checked_decision(found: Json) -> Json:
    """Give decision.json with every field of its type; what isn't the sidecar's decision asks for nothing."""
    ours = found.get("by") != "sidecar"
    found = {} if ours else found
    entries = found.get("commit") if isinstance(found.get("commit"), list) else []
    return {
        "by": "launcher" if ours else "sidecar",
        "commit": [entry for entry in entries or [] if is_commit(entry)],
        "clear": listed(found, "clear"),
        "environment": mapped(found, "environment"),
        "unset": listed(found, "unset"),
        "append": listed(found, "append"),
        "change": found.get("change") if is_change(found.get("change")) else None,
    }


def is_commit(entry: object) -> bool:
    """Tell whether this names a family, what was staged for it and where it belongs."""
    names = ("family", "staged", "live")
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in names)
