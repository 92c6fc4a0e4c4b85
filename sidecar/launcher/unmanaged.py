"""Looks for directories that grow while the engine runs and that nobody carries: caches of compilers nobody knows.

Only names and sizes are looked at, within bounds, beside the engine; what to make of it is the sidecar's business.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import threading
import time
from typing import NamedTuple

from sidecar.launcher.attempts import Attempt, Json
from sidecar.launcher.links import expanded, temporary
from sidecar.launcher.messages import best_effort

#: The engine's start waits so long for the first look.
FIRST_LOOK_S = 0.05
LOOK_S = 2.0
#: Of all places together in one look; more than that is no compiler's cache, or not ours to walk. Each place has its
#: share, so that a large one doesn't hide what comes after it.
ENTRIES = 50_000
SHARE = 2_000
DIRECTORIES = 200
REPORTED = 20
NICENESS = 15
DEPTH = 12
#: Where downloads go that the user put somewhere else (huggingface_hub, datasets, transformers, modelscope, torch.hub and
#: vLLM by their documentation), and what Hugging Face keeps below its own.
DOWNLOADS = (
    "HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_XET_CACHE HF_ASSETS_CACHE HF_DATASETS_CACHE HF_MODULES_CACHE "
    "TRANSFORMERS_CACHE MODELSCOPE_CACHE TORCH_HOME VLLM_ASSETS_CACHE VLLM_MEDIA_CACHE VLLM_LORA_RESOLVER_CACHE_DIR"
).split()
IN_HF_HOME = ("hub", "xet", "assets", "datasets", "modules")


class Size(NamedTuple):
    """What lies in a directory: bytes, files, and whether all of it was seen."""

    bytes: int
    files: int
    whole: bool


class Look:
    """One bounded look at a number of places, passing by known ones; time (in seconds) and entries are shared out."""

    def __init__(self, seconds: float, known: "re.Pattern[str]", places: int = 1) -> None:
        self._end = time.monotonic() + seconds
        self._until = self._end
        self._places = max(1, places)
        self._share = max(ENTRIES // self._places, min(SHARE, ENTRIES))
        self._left = self._share
        self._known = known
        # A home or a /tmp may be shared with others, whose files are not the engine's.
        self._uid = os.geteuid()

    def over(self) -> bool:
        """Count one entry, and tell whether that was one too many."""
        self._left -= 1
        return self._left < 0 or time.monotonic() > self._until

    def next_place(self) -> None:
        """Give the next place its share of entries and of the time that is left."""
        now = time.monotonic()
        self._left, self._until = self._share, now + (self._end - now) / self._places
        self._places = max(1, self._places - 1)

    def size(self, folder: str, newer_than: float = 0.0) -> Size:
        """Measure what lies below a folder; only files that were written after a time, if one is given."""
        total = files = 0
        self._left = self._share
        pending = [(folder, 0)]
        while pending:
            here, depth = pending.pop()
            with contextlib.suppress(OSError), os.scandir(here) as entries:
                for entry in entries:
                    if self.over():
                        return Size(total, files, False)
                    if entry.is_dir(follow_symlinks=False):
                        if depth < DEPTH and not self._known.match(entry.path):
                            pending.append((entry.path, depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        if status.st_uid == self._uid and status.st_ctime >= newer_than:
                            total, files = total + status.st_size, files + 1
        return Size(total, files, True)


class Places:
    """Where unknown caches may grow: below HOME and TMPDIR, where the user moved a family, and configured roots."""

    def __init__(self, settings: Json, environment: dict[str, str], control: str) -> None:
        self._home = os.path.normpath(environment.get("HOME") or os.path.expanduser("~"))
        self._cache = os.path.normpath(environment.get("XDG_CACHE_HOME") or os.path.join(self._home, ".cache"))
        self._temporary = temporary(environment)
        self._extra = settings["extra_roots"]
        self._moved = [
            environment[name]
            for name, value in settings["environment"].items()
            if os.path.isabs(environment.get(name, "")) and environment[name] != value
        ]
        # The live cache is looked at by the sidecar, which knows what belongs there; HOME may have been moved into it.
        ours = [os.path.realpath(path) for path in (settings["live_cache"], control) if path]
        self._ours = [path for path in ours if not within(os.path.realpath(self._home), path)]
        patterns = [fnmatch.translate(self._place(place, environment)) for place in settings["not_caches"]]
        patterns += [re.escape(path) + r"\Z" for path in downloads(environment)]
        #: Places that are known and no caches of compilers; matches nothing when there are none.
        self.known = re.compile("|".join(patterns) or r"(?!)")

    def found(self) -> dict[str, str]:
        """Map each directory to look at to where it was found."""
        found = {path: "extra" for path in self._extra if os.path.isdir(path) and not self._is_ours(path)}
        found.update({path: "moved" for path in self._moved if os.path.isdir(path) and not self._is_ours(path)})
        for folder, where, hidden in (
            (self._cache, "home", False),
            (self._home, "home", True),
            (self._temporary, "tmp", False),
        ):
            for path in subdirectories(folder, hidden):
                if path != self._cache and not self.known.match(path) and not self._is_ours(path):
                    found.setdefault(path, where)
        return dict(list(self._each_once(found).items())[:DIRECTORIES])

    def _each_once(self, found: dict[str, str]) -> dict[str, str]:
        """Leave out links to what is known, or is looked at under another name."""
        real = {path: os.path.realpath(path) for path in found}
        # A configured root is looked at whatever it is.
        links = {path for path, where in found.items() if where != "extra" and os.path.islink(path)}
        seen = {real[path] for path in found if path not in links}
        wider = [os.path.realpath(path) for path in (self._home, self._cache, self._temporary)]
        kept = {}
        for path, where in found.items():
            place = real[path]
            if path in links:
                if place in seen or self.known.match(place) or any(within(each, place) for each in wider):
                    continue
                seen.add(place)
            kept[path] = where
        return kept

    def _place(self, place: str, environment: dict[str, str]) -> str:
        if place.startswith("~/.cache/"):
            return os.path.join(self._cache, place[len("~/.cache/") :])
        return expanded(place, environment)

    def _is_ours(self, path: str) -> bool:
        real = os.path.realpath(path)
        return any(within(ours, real) or within(real, ours) for ours in self._ours)


class Watch(threading.Thread):
    """Looks once before the engine starts, and again while it runs; writes `unmanaged.json` when something grew."""

    def __init__(self, attempt: Attempt, places: Places, every_s: float) -> None:
        super().__init__(daemon=True)
        self._attempt, self._places, self._every_s = attempt, places, every_s
        self._before: dict[str, Size] = {}
        self._seen = threading.Event()
        self._ended = threading.Event()
        # The kernel stamps files by a clock that is a tick behind.
        self._began = time.time() - 0.01
        self._written: list[Json] = []

    def look_before(self) -> None:
        """Start, and give the first look its time."""
        with contextlib.suppress(RuntimeError):
            self.start()
            self._seen.wait(FIRST_LOOK_S)

    def end(self) -> None:
        """Look no more; a look that hangs is not waited for."""
        self._ended.set()

    def run(self) -> None:
        """Look until ended."""
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        with contextlib.suppress(OSError):
            found = self._places.found()
            look = Look(FIRST_LOOK_S, self._places.known, len(found))
            for path in found:
                look.next_place()
                self._before[path] = look.size(path)
        self._seen.set()
        while not self._ended.wait(self._every_s):
            with contextlib.suppress(OSError):
                self._again()

    def _again(self) -> None:
        found = self._places.found()
        look = Look(LOOK_S, self._places.known, len(found))
        grown = [one for path, where in found.items() if (one := self._grown(look, path, where))]
        grown = sorted(grown, key=lambda one: -int(one["bytes"]))[:REPORTED]
        if grown != self._written and not self._ended.is_set():
            self._written = grown
            best_effort(self._attempt.write, "unmanaged.json", {"grown": grown})

    def _grown(self, look: Look, path: str, where: str) -> Json:
        look.next_place()
        before = self._before.get(path)
        now = look.size(path) if before is not None and before.whole else None
        if before is not None and now is not None and now.whole:
            size, files, whole = now.bytes - before.bytes, now.files - before.files, True
        else:
            # Not all of it was seen, then or now: what was written since counts, and it may be more.
            size, files, whole = look.size(path, self._began)
        told = {"path": path, "bytes": size, "files": max(0, files), "where": where, "whole": whole}
        return told if size > 0 else {}


def downloads(environment: dict[str, str]) -> list[str]:
    """List the places to which the user has moved downloads."""
    found = [environment[name] for name in DOWNLOADS if os.path.isabs(environment.get(name, ""))]
    home = environment.get("HF_HOME", "")
    found += [os.path.join(home, name) for name in IN_HF_HOME if os.path.isabs(home)]
    return [os.path.normpath(path) for path in found]


def subdirectories(folder: str, hidden: bool) -> list[str]:
    """List the directories in a folder, and links to one: those with a leading dot, or all."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        # Not `entry.is_dir()`: a link in a circle, or through what may not be read, must not hide all others.
        return sorted(
            entry.path
            for entry in entries
            if (entry.name.startswith(".") or not hidden)
            and (entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path)))
        )
    return []


def within(path: str, root: str) -> bool:
    """Tell whether an absolute path is `root` or lies below it."""
    return (os.path.normpath(path) + "/").startswith(os.path.normpath(root) + "/")
