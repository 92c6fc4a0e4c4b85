"""Swap staged families into a live cache that no engine uses, and sweep what earlier attempts left.

This is for the mode without a launcher; the launcher does the same with its own standard-library code. What is
staged is decided in `restore`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sidecar.caches.live_cache import STAGING_NAME, TRASH_NAME, make_directory, remove_marker, remove_orphan_locks
from sidecar.caches.messages import CommitEntry


@dataclass(frozen=True)
class CommitReport:
    """Which families were swapped in, and why the others are empty now."""

    committed: tuple[str, ...]
    failed: dict[str, str]


def _pass_by(_step: str) -> None:
    """Pass a disk step by."""


def commit(
    live_cache: Path | str,
    entries: Iterable[CommitEntry],
    clear: Iterable[str] = (),
    checkpoint: Callable[[str], None] = _pass_by,
) -> CommitReport:
    """Put each staged family into the place of the live one and empty the directories in `clear`.

    Only while no engine uses the live cache. A family whose swap fails is left empty, never half; so is one whose
    swap is cut by a crash. The marker is removed first: write a new one when the engine starts. Never raises OSError.
    """
    root = Path(live_cache)
    committed: list[str] = []
    failed: dict[str, str] = {}
    with contextlib.suppress(OSError):
        remove_marker(root)
    checkpoint("marker removed")
    for folder in clear:
        reason = _emptied(root, Path(folder), checkpoint)
        if reason:
            failed[str(folder)] = reason
    for entry in entries:
        reason = _swapped(root, entry, checkpoint)
        if reason:
            failed[entry.family] = reason
        else:
            committed.append(entry.family)
    sweep_trash(root)
    checkpoint("trash removed")
    # What this pod keeps may hold locks of an engine that was killed, and the next one would wait for them.
    remove_orphan_locks(root)
    return CommitReport(tuple(committed), failed)


def sweep(live_cache: Path | str, keep_attempt: str = "") -> None:
    """Remove what earlier attempts staged or threw away; what can't be removed is left. Never raises OSError."""
    staging = Path(live_cache, STAGING_NAME)
    for name in _names(staging):
        if name != keep_attempt:
            shutil.rmtree(staging / name, ignore_errors=True)
    sweep_trash(Path(live_cache))


def sweep_trash(live_cache: Path) -> None:
    """Remove what was moved out of the live cache. Never raises OSError."""
    trash = live_cache / TRASH_NAME
    for name in _names(trash):
        shutil.rmtree(trash / name, ignore_errors=True)


def _swapped(root: Path, entry: CommitEntry, checkpoint: Callable[[str], None]) -> str:
    live = Path(entry.live)
    reason = _emptied(root, live, checkpoint)
    if reason:
        return reason
    try:
        make_directory(live.parent)
        os.rename(entry.staged, live)
    except OSError as error:
        return f"{error.strerror or error}"
    checkpoint(f"swapped {entry.family}")
    return ""


def _emptied(root: Path, live: Path, checkpoint: Callable[[str], None]) -> str:
    """Move a directory into the trash in one step. Returns the reason when that fails."""
    if not _is_inside(root, live):
        return f"{live} is outside the live cache"
    try:
        make_directory(root / TRASH_NAME)
        os.rename(live, root / TRASH_NAME / f"{live.name}.{secrets.token_hex(8)}")
    except FileNotFoundError:
        return ""
    except OSError as error:
        # A mount point can't be renamed: its contents can still be removed.
        shutil.rmtree(live, ignore_errors=True)
        return f"{error.strerror or error}" if _names(live) else ""
    checkpoint(f"emptied {live.name}")
    return ""


def _is_inside(root: Path, live: Path) -> bool:
    return ".." not in live.parts and live != root and live.is_relative_to(root)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
