"""Links from places that no variable moves to the live cache, made before the engine starts and taken away after it.

What belongs where is told by the sidecar; nothing that somebody else has put there is touched.
"""

from __future__ import annotations

import contextlib
import os

from sidecar.launcher.log import say


class Links:
    """The links of one engine's start: `links` maps places (`~/…`, `$TMPDIR/…`) to directories of the live cache."""

    def __init__(self, links: dict[str, str], environment: dict[str, str], live_cache: str) -> None:
        self._links = links
        self._environment = environment
        self._live_cache = live_cache
        self._made: dict[str, str] = {}

    def make(self) -> None:
        """Make each link whose place is free or empty; whatever can't be linked is said, and the engine starts."""
        for template, target in self._links.items():
            place = expanded(template, self._environment)
            if not place or not os.path.isdir(target):
                continue
            why = ""
            try:
                why = self._one(place, target)
            except OSError as error:
                why = str(error)
            if why:
                say(f"{place} can't be linked to {target} ({why}), so what the engine compiles there is not kept.")

    def remove(self) -> None:
        """Take our links away: whoever uses these places later may have no live cache."""
        for place, target in self._made.items():
            with contextlib.suppress(OSError):
                if os.readlink(place) == target:
                    os.unlink(place)
        self._made = {}

    def _one(self, place: str, target: str) -> str:
        """Make one link; give the reason why it can't be, or nothing."""
        if os.path.islink(place):
            if os.readlink(place) != target:
                return "it is a link to somewhere else"
            self._made[place] = target
            return ""
        if os.path.lexists(place):
            if not os.path.isdir(place) or os.listdir(place):
                return "there is something already"
        elif outlives(place, self._live_cache):
            return "it is on a volume that outlives this container"
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.isdir(place):
            # Fails where somebody was faster, or where a volume is mounted.
            os.rmdir(place)
        os.symlink(target, place)
        self._made[place] = target
        return ""


def expanded(template: str, environment: dict[str, str]) -> str:
    """Give the place that `~/…` or `$TMPDIR/…` means for the engine; empty when that is not known."""
    home = environment.get("HOME") or os.path.expanduser("~")
    if template.startswith("~/"):
        return os.path.join(home, template[2:]) if os.path.isabs(home) else ""
    if template.startswith("$TMPDIR/"):
        return os.path.join(temporary(environment), template[len("$TMPDIR/") :])
    return template if os.path.isabs(template) else ""


def temporary(environment: dict[str, str]) -> str:
    """Give the directory that Python's tempfile will use in the engine."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        folder = environment.get(name, "")
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return "/tmp"


def outlives(place: str, live_cache: str) -> bool:
    """Tell whether a place is neither in the container's own filesystem nor beside the live cache.

    On a volume of its own a link would be there for pods which have no such live cache.
    """
    while not os.path.exists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    device = os.stat(place).st_dev
    return device not in (os.stat("/").st_dev, os.stat(live_cache).st_dev)
