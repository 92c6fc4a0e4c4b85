"""What the daemon and the cache worker say to each other: requests, progress and results, as plain JSON.

No file is touched and no decision is made here, so that the daemon can import it cheaply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.caches.publish_messages import Progress as Progress
from sidecar.caches.publish_messages import PublishOutcome as PublishOutcome
from sidecar.caches.publish_messages import PublishRequest as PublishRequest
from sidecar.caches.publish_messages import PublishResult as PublishResult
from sidecar.caches.publish_messages import StoreMode as StoreMode
from sidecar.caches.wire import Message

RestorePlan = Literal["fresh", "keep", "cold"]
RestoreOutcome = Literal["hit", "partial", "miss", "failed", "kept", "disabled", "timed_out"]

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
    "unsigned": "generations that nobody signed",
    "untrusted": "generations whose signature is no trusted key's, or not for them",
    "rolled_back": "generations older than the one that this pod saw before, which is gone from the store",
    "condemned": "generations on which two engines died and none became ready",
    "claimed": "generations that nobody was ready on yet and that are left to another pod",
    "unknown_family": "of families this version does not restore",
    "no_space": "for which the disk has no room",
}


#: What the first generation of a key is claimed as.
FIRST = "first"


@dataclass(frozen=True, kw_only=True)
class CommitEntry(Message):
    """One family to swap in: `staged` takes the place of `live`; both absolute, on one filesystem."""

    family: str
    staged: str
    live: str


@dataclass(frozen=True, kw_only=True)
class FamilyCount(Message):
    """What one family holds: files, bytes, compiled kernels, and the scope it was restored under."""

    files: int
    bytes: int
    scope: str
    kernels: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceCount(Message):
    """What came from one place: packs, their bytes, and the seconds from the first one's beginning to the last one's end."""

    packs: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Claim(Message):
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
class HoldRequest(Message):
    """Claims to keep up until the daemon takes them back or is gone."""

    store: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class RestoreRequest(Message):
    """What a restore needs to know.

    `store` empty: no store. `staging` empty: `<live_cache>/.staging/<attempt>`. `facts` is the launcher's facts.json
    (see `fingerprint`). `host_boot` is the kernel's boot ID: a live cache left by an earlier boot of the machine is
    never kept. `exclude` names families that stay empty. `holder` is the name under which this pod claims a
    generation that nobody was ready on yet; empty, or a store that is used read-only: it never does. `single_flight_s` is
    how many seconds it waits for the first generation of its key while another pod makes it; 0: it does not wait.
    `limit_bytes` is the size limit of the live cache's volume, which no filesystem tells; 0: none is known. `distrusted`
    are families that start empty even where this pod's own files are kept: its engine may have hung on them.
    `keys_file` are the public keys that are trusted, `signing_file` is the key that publishes are signed with; both empty:
    signatures are not looked at. `seen` are the highest signed numbers this pod ever saw, by scope and key. `pack_cache` is a
    directory in which the pods of a node share packs, up to `pack_cache_bytes`; empty: there is none.
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
    limit_bytes: int = 0
    distrusted: tuple[str, ...] = ()
    keys_file: str = ""
    signing_file: str = ""
    seen: Mapping[str, int] = field(default_factory=dict)
    pack_cache: str = ""
    pack_cache_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class RestoreResult(Message):
    """How a restore ended. `commit` and `clear` go into decision.json as they are; `sentence` is for people.

    `generations` maps scope to the generation that was staged; `generation` is the exact one, else the toolchain
    one. `rejected` counts files left out by reason. `differs` says which facts differ from the nearest known key.
    `claims` are to be kept up until the engine is ready or gone; `waited_s` is how long another pod was waited for;
    `damaged` are the digests of packs that did not hold what their manifest says; `signed` the highest number that a
    trusted key signed, by scope and key, where signatures are looked at. `sources` says where packs came from: the
    node's cache, a volume, or a bucket; of a volume that they are unpacked from directly, with the time of that.
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
    signed: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, SourceCount] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecordRequest(Message):
    """One small record for the store: how a boot on a generation ended, that the generation is quarantined or that this
    boot's quarantine of it is taken back, or with which fallback engines of this key are good.

    `name` makes a boot's record unique; a quarantine is named after its generation, a fallback after its text.
    """

    store: str
    scope: Literal["exact", "toolchain"]
    key: str
    generation: str
    kind: Literal["boot", "quarantine", "acquittal", "fallback"]
    name: str
    record: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReachRequest(Message):
    """Look whether a store can be read at all."""

    store: str


@dataclass(frozen=True, kw_only=True)
class RecordResult(Message):
    """How writing a record, or reaching for the store, ended: `trouble` is empty when it went well."""

    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class BootsRequest(Message):
    """The records of earlier boots of a key, `most` of them, those of its newest generations first to be kept.

    With `what` the fallbacks that are remembered for the key instead.
    """

    store: str
    scope: Literal["exact", "toolchain"]
    key: str
    most: int = 60
    what: Literal["boots", "fallbacks"] = "boots"


@dataclass(frozen=True, kw_only=True)
class BootsResult(Message):
    """Records of boots as they stand in the store; empty where there are none or the store is away."""

    records: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limits(Message):
    """What of a store is kept; 0 is no limit. Times in seconds, sizes in bytes.

    `grace_s` is how long nothing at all is removed.
    """

    count: int = 0
    age_s: float = 0.0
    unused_s: float = 0.0
    bytes: int = 0
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class CleanRequest(Message):
    """Clean the store up by these limits, unless somebody began to less than `interval_s` seconds ago."""

    store: str
    interval_s: float
    limits: Limits
    keys_file: str = ""
    signing_file: str = ""


@dataclass(frozen=True, kw_only=True)
class CleanResult(Message):
    """How cleaning up ended; `sentence` is empty when it was not due, and `failed` tells trouble.

    `age_s` is how many seconds ago somebody last began to; None: nobody did, or it is not known. When it was `done`
    it tells the `generations` and the `bytes` of archives that were removed, the bytes that are kept, and how many of
    those are beyond the limit.
    """

    sentence: str = ""
    failed: bool = False
    done: bool = False
    age_s: float | None = None
    generations: int = 0
    bytes: int = 0
    bytes_kept: int = 0
    bytes_over: int = 0
