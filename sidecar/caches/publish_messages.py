"""What the daemon and the cache worker say to each other about a publish.

They are apart from the other `messages` because making a class of each takes a worker that only publishes some ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.caches.wire import Message

PublishOutcome = Literal["published", "nothing_new", "failed", "read_only", "disabled", "timed_out"]
StoreMode = Literal["read-write", "read-only"]


@dataclass(frozen=True, kw_only=True)
class PublishRequest(Message):
    """What a publish needs to know. Files younger than `settle_s` seconds are taken as still being written.

    `restored` maps scope to the generation this live cache was restored from (see RestoreResult.generations), `packed` are
    the packs that earlier publishes made of this live cache (PublishResult.packed). `suspects` are
    packs that were found damaged by that restore: looked at again, and not built on if they are. `keys_file` are the public
    keys that are trusted, `signing_file` is the key to sign with; both empty: signatures are not looked at.
    """

    store: str
    live_cache: str
    facts: Mapping[str, Any]
    attempt: str
    store_mode: StoreMode = "read-write"
    settle_s: float = 2.0
    restored: Mapping[str, str] = field(default_factory=dict)
    packed: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keys_file: str = ""
    signing_file: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishResult(Message):
    """How a publish ended.

    `files` counts the new generations, `new_files` their delta, `bytes` what was packed. `generation` and `parent`
    are those of the exact scope, else of the toolchain scope; `generations` has both. `skipped` counts files left out
    by reason (unstable, incomplete, ...). `packed` names the packs of what was new.
    """

    outcome: PublishOutcome
    sentence: str
    generation: str | None = None
    parent: str | None = None
    generations: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    new_files: int = 0
    seconds: float = 0.0
    skipped: Mapping[str, int] = field(default_factory=dict)
    packed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Progress(Message):
    """How far the worker is: bytes and files handled so far, and the bytes expected (0 while unknown).

    `waiting` says for whom it waits, and that its cap does not run meanwhile; empty while it works.
    """

    bytes_done: int
    bytes_total: int
    files_done: int
    waiting: str = ""
