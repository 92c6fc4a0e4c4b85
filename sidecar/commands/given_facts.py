"""Finds the facts that `store explain` explains, and the live cache that they belong to.

What facts mean is known in `caches/fingerprint.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.caches import left_facts
from sidecar.config import Settings
from sidecar.errors import FileUnreadable, UsageError, WarmupError
from sidecar.files import read_json


@dataclass(frozen=True)
class Given:
    """The facts as the daemon goes by them, the live cache, and in words where they come from."""

    facts: Mapping[str, Any]
    live_cache: Path
    source: Path


def given_facts(file: Path | None, settings: Settings) -> Given:
    """Take the file that is named, else the newest of what attempts and runs have left. Raises UsageError."""
    from sidecar.daemon.assembly import users_live_cache

    lives = [settings.live_cache, users_live_cache()]
    places = [*settings.control_dir.glob("attempts/*/facts.json"), *(live / left_facts.NAME for live in lives)]
    chosen = file or max((place for place in places if place.is_file()), key=_written, default=None)
    if chosen is None:
        raise UsageError(
            f"Nothing has reported facts in {settings.control_dir}, and no run left any in {' or '.join(map(str, lives))}: "
            "name a facts.json with --facts, or the live cache of the run with WARMUP_LIVE_CACHE."
        )
    try:
        facts = read_json(chosen)
    except (OSError, FileUnreadable) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{chosen} can't be read ({reason}); name a facts.json with --facts.") from error
    if chosen.name == left_facts.NAME:
        return Given(facts, chosen.absolute().parent, chosen)
    return Given(_as_the_daemon_does(facts, settings), _live_cache(chosen, file is None, settings), chosen)


def _written(place: Path) -> int:
    with suppress(OSError):
        return place.stat().st_mtime_ns
    return 0


def _as_the_daemon_does(facts: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Add what a launcher does not know: the SM versions of its GPUs, and the image that a setting names."""
    from sidecar.daemon.own_facts import image_fact
    from sidecar.supervisor.observers import with_sm

    return {**with_sm(facts), **image_fact(settings)}


def _live_cache(chosen: Path, found_here: bool, settings: Settings) -> Path:
    """Give the live cache that the sidecar beside these facts used: a child's may lie in its user's own cache."""
    for folder in _folders(chosen, found_here, settings):
        with suppress(OSError, WarmupError):
            return Path(str(read_json(folder / "sidecar.json").get("live_cache") or settings.live_cache))
    return settings.live_cache


def _folders(chosen: Path, found_here: bool, settings: Settings) -> Iterator[Path]:
    if found_here:
        yield settings.control_dir
    else:
        yield from [*chosen.resolve().parents][:3]
