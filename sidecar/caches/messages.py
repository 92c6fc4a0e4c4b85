"""What the daemon and the cache worker say to each other: requests, progress and results, as plain JSON.

No file is touched and no decision is made here, so that the daemon can import it cheaply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

RestorePlan = Literal["fresh", "keep", "cold"]
RestoreOutcome = Literal["hit", "partial", "miss", "failed", "kept", "disabled", "timed_out"]
PublishOutcome = Literal["published", "nothing_new", "failed", "read_only", "disabled", "timed_out"]
StoreMode = Literal["read-write", "read-only"]

#: Why files of the store are not restored, in words that go on after "12 files": `rejected` of a result counts by these.
REASONS = {
    "digest": "bytes that are not what was published",
    "pack": "in a damaged or missing pack",
    "unreadable": "that the store could not be read for",
    "lost": "whose unpacking was cut short by the death of its process",
    "json": "kernel entries with broken JSON",
    "incomplete": "kernel entries with files missing",
    "empty": "kernel entries with empty files",
    "elsewhere": "kernel entries that name another live cache path",
    "checksum": "kernels that their vendor's list of digests denies",
    "cuda": "libraries built for another CUDA version",
    "same_entry": "dropped together with those",
    "quarantined": "quarantined generations",
    "manifest": "generations with a damaged manifest",
    "condemned": "generations on which two engines died and none became ready",
    "claimed": "generations that nobody was ready on yet and that are left to another pod",
    "unknown_family": "of families this version does not restore",
    "no_space": "for which the disk has no room",
}


#: What the first generation of a key is claimed as.
FIRST = "first"


class _Message:
    """Give a frozen dataclass a JSON form that is checked when it is read back."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this message."""
        found: dict[str, Any] = _plain(self)
        return found

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read a message back; unknown fields are ignored. Raises ValueError with a sentence."""
        message = _decode(cls, data, cls.__name__)
        assert isinstance(message, cls)
        return message


@dataclass(frozen=True, kw_only=True)
class CommitEntry(_Message):
    """One family to swap in: `staged` takes the place of `live`; both absolute, on one filesystem."""

    family: str
    staged: str
    live: str


@dataclass(frozen=True, kw_only=True)
class FamilyCount(_Message):
    """What one family holds: files, bytes, compiled kernels, and the scope it was restored under."""

    files: int
    bytes: int
    scope: str
    kernels: int = 0


@dataclass(frozen=True, kw_only=True)
class Claim(_Message):
    """What one pod does for a key while others wait or go around it.

    `what` is a generation's name (it is being tried) or `first` (the first one is being made); `epoch` counts the
    holders, so that one who lapsed can't be taken for the next.
    """

    scope: Literal["exact", "toolchain"]
    key: str
    what: str
    epoch: int
    holder: str


@dataclass(frozen=True, kw_only=True)
class HoldRequest(_Message):
    """Claims to keep up until the daemon takes them back or is gone."""

    store: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class RestoreRequest(_Message):
    """What a restore needs to know.

    `store` empty: no store. `staging` empty: `<live_cache>/.staging/<attempt>`. `facts` is the launcher's facts.json
    (see `fingerprint`). `host_boot` is the kernel's boot ID: a live cache left by an earlier boot of the machine is
    never kept. `exclude` names families that stay empty. `holder` is the name under which this pod claims a
    generation that nobody was ready on yet; empty, or a store that is used read-only: it never does. `single_flight_s` is
    how many seconds it waits for the first generation of its key while another pod makes it; 0: it does not wait.
    """

    store: str
    live_cache: str
    facts: Mapping[str, Any]
    attempt: str
    plan: RestorePlan = "fresh"
    staging: str = ""
    host_boot: str = ""
    exclude: tuple[str, ...] = ()
    store_mode: StoreMode = "read-write"
    holder: str = ""
    single_flight_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RestoreResult(_Message):
    """How a restore ended. `commit` and `clear` go into decision.json as they are; `sentence` is for people.

    `generations` maps scope to the generation that was staged; `generation` is the exact one, else the toolchain
    one. `rejected` counts files left out by reason. `differs` says which facts differ from the nearest known key.
    `claims` are to be kept up until the engine is ready or gone; `waited_s` is how long another pod was waited for;
    `damaged` are the digests of packs that did not hold what their manifest says.
    """

    outcome: RestoreOutcome
    sentence: str
    exact_key: str = ""
    toolchain_key: str = ""
    generation: str | None = None
    generations: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    rejected: Mapping[str, int] = field(default_factory=dict)
    families: Mapping[str, FamilyCount] = field(default_factory=dict)
    commit: tuple[CommitEntry, ...] = ()
    clear: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    waited_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PublishRequest(_Message):
    """What a publish needs to know. Files younger than `settle_s` seconds are taken as still being written.

    `restored` maps scope to the generation this live cache was restored from (see RestoreResult.generations). `suspects` are
    packs that were found damaged by that restore: looked at again, and not built on if they are.
    """

    store: str
    live_cache: str
    facts: Mapping[str, Any]
    attempt: str
    store_mode: StoreMode = "read-write"
    settle_s: float = 2.0
    restored: Mapping[str, str] = field(default_factory=dict)
    suspects: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublishResult(_Message):
    """How a publish ended.

    `files` counts the new generations, `new_files` their delta, `bytes` what was packed. `generation` and `parent`
    are those of the exact scope, else of the toolchain scope; `generations` has both. `skipped` counts files left out
    by reason (unstable, incomplete, ...).
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


@dataclass(frozen=True, kw_only=True)
class RecordRequest(_Message):
    """One small record for the store: how a boot on a generation ended, or that the generation is quarantined.

    `name` makes a boot's record unique; a quarantine is named after its generation.
    """

    store: str
    scope: Literal["exact", "toolchain"]
    key: str
    generation: str
    kind: Literal["boot", "quarantine"]
    name: str
    record: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordResult(_Message):
    """How writing a record ended: `trouble` is empty when it is in the store."""

    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class Progress(_Message):
    """How far the worker is: bytes and files handled so far, and the bytes expected (0 while unknown).

    `waiting` says for whom it waits, and that its cap does not run meanwhile; empty while it works.
    """

    bytes_done: int
    bytes_total: int
    files_done: int
    waiting: str = ""


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _decode(hint: Any, value: object, where: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_message(hint, value, where)
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal and value in inner:
        return value
    if origin in (Union, UnionType):
        return None if value is None else _decode(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(inner[0], item, where) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {str(name): _decode(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ValueError(f"{where} can't be {value!r:.80}.")


def _decode_message(cls: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object.")
    hints = get_type_hints(cls)
    given: dict[str, object] = {}
    for item in dataclasses.fields(cls):
        if item.name in value:
            given[item.name] = _decode(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no field {item.name}.")
    made: object = cls(**given)
    return made
