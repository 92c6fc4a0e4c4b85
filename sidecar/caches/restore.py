"""Choose what to lay down for an engine and stage it, verified, ready to be committed.

Nothing is put into the live cache here (`commit`, or the launcher), and nothing is written to the store.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches import checking, validity
from sidecar.caches.choice import Choice
from sidecar.caches.commit import sweep
from sidecar.caches.explain import Nearest, nearest, sentence_for
from sidecar.caches.families import BY_NAME, Family, is_kernel, is_left_out, left_out_by_ranks
from sidecar.caches.fingerprint import KeyScope, cuda_majors
from sidecar.caches.live_cache import STAGING_NAME, disk_trouble, read_marker, remove_marker
from sidecar.caches.manifest import Manifest, StoredFile
from sidecar.caches.messages import (
    CommitEntry,
    FamilyCount,
    Progress,
    RestoreOutcome,
    RestoreRequest,
    RestoreResult,
)
from sidecar.caches.normalise import ranks
from sidecar.caches.ownership import SCOPES, Ownership, ownership
from sidecar.caches.staging import StagingArea, bytes_needed
from sidecar.caches.store import Checkpoint, DirectoryStore, no_checkpoint, open_store
from sidecar.caches.unpacking import Unpacking
from sidecar.errors import LiveCacheUnusable, WarmupError

# Left free on the live cache's disk besides what is staged: the engine writes there too.
SPARE_BYTES = 16 * 1024 * 1024
# Reasons that say nothing bad about what was stored.
HARMLESS_REASONS = frozenset({"left_out", "excluded", "claimed"})


def free_bytes(path: Path) -> int:
    """Say how many bytes an ordinary user may still write on the disk of `path`. Raises OSError."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def ignore(_progress: Progress) -> None:
    """Take a progress report and do nothing with it."""


@dataclass(frozen=True, kw_only=True)
class RestoreTools:
    """What a restore takes from outside: a monotonic clock and a sleep (seconds), progress, disk and fault hooks.

    `jobs` is the most processes that unpack at a time; with 1 it is this one, and `checkpoint` hears of every file.
    """

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    on_progress: Callable[[Progress], None] = ignore
    checkpoint: Checkpoint = no_checkpoint
    free: Callable[[Path], int] = free_bytes
    jobs: int = 1


@dataclass
class _Staged:
    """What a restore has staged so far, and what it has left out for which reason."""

    chosen: dict[KeyScope, Manifest] = field(default_factory=dict)
    files: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    damaged: set[str] = field(default_factory=set)


def restore(request: RestoreRequest, tools: RestoreTools) -> RestoreResult:
    """Stage what fits this engine and say what to commit and clear; every failure is an outcome, never an exception.

    What is staged when this returns `hit` or `partial` lies complete and verified under `request.staging`.
    """
    started = tools.clock()
    owned = ownership(request)
    run = _Restore(request, tools, owned)
    try:
        result = run.result()
    except WarmupError as error:
        result = run.failed(str(error))
    except OSError as error:
        result = run.failed(disk_trouble(request.live_cache, "written", error))
    finally:
        run.area.close()
    if not result.commit:
        run.area.remove()
    return _with(result, owned, tools.clock() - started, run.choice)


class _Restore:
    def __init__(self, request: RestoreRequest, tools: RestoreTools, owned: Ownership) -> None:
        self._request = request
        self._tools = tools
        self._owned = owned
        self._scopes = [one for one in SCOPES if request.plan != "keep" or one not in owned.own]
        self._staged = _Staged()
        self._total = 0
        self._done = Progress(bytes_done=0, bytes_total=0, files_done=0)
        staging = request.staging or os.path.join(request.live_cache, STAGING_NAME, request.attempt)
        self.area = StagingArea(Path(staging))
        self.choice: Choice | None = None

    def result(self) -> RestoreResult:
        request = self._request
        if request.plan == "cold":
            return self._nothing("disabled", "The engine starts with empty caches, as it was told to.", claimed=True)
        if request.plan == "keep" and not self._scopes:
            return self._kept()
        sweep(request.live_cache, keep_attempt=request.attempt)
        if len(self._owned.own) < len(SCOPES):
            remove_marker(request.live_cache)
        if not request.store:
            sentence = "There is no store (WARMUP_STORE is empty), nothing was restored."
            return self._nothing("disabled", sentence, claimed=False)
        store = open_store(request.store, request.store_mode, self._tools.sleep)
        tools = self._tools
        self.choice = Choice(request, store, self._owned.known, tools.clock, tools.sleep, tools.on_progress)
        for scope in self._scopes:
            found = self.choice.choose(scope, self._staged.rejected)
            if found is not None:
                self._staged.chosen[scope] = found
        near = nearest(store, self._owned.known) if self._misses_exact() else None
        wanted = self._wanted()
        if wanted:
            self._stage(store, self._with_room(wanted))
        return self._ended(near)

    def failed(self, sentence: str) -> RestoreResult:
        return self._nothing("failed", f"{sentence} The engine starts cold.", claimed=bool(self._request.store))

    def _nothing(self, outcome: RestoreOutcome, sentence: str, claimed: bool) -> RestoreResult:
        return RestoreResult(
            outcome=outcome,
            sentence=sentence,
            rejected=dict(self._staged.rejected),
            clear=self._owned.to_clear((), claimed),
        )

    def _kept(self) -> RestoreResult:
        marker = read_marker(self._request.live_cache)
        sweep(self._request.live_cache)
        return RestoreResult(
            outcome="kept",
            sentence="The live cache of this pod's earlier attempt belongs to the same engine and is kept as it is.",
            generations=dict(marker.generations) if marker else {},
        )

    def _misses_exact(self) -> bool:
        return "exact" in self._scopes and "exact" not in self._staged.chosen and not self._staged.rejected

    def _wanted(self) -> list[StoredFile]:
        wanted = []
        for scope, manifest in self._staged.chosen.items():
            for file in manifest.files:
                family = BY_NAME.get(file.family)
                reason = self._refusal(family, scope, file)
                if reason:
                    self._staged.rejected[reason] += 1
                else:
                    wanted.append(file)
        return wanted

    def _refusal(self, family: Family | None, scope: KeyScope, file: StoredFile) -> str:
        if family is None or family.scope != scope:
            return "unknown_family"
        if file.family in self._request.exclude:
            return "excluded"
        return "left_out" if is_left_out(family, file.path) else ""

    def _with_room(self, wanted: list[StoredFile]) -> list[StoredFile]:
        """Leave out the larger scope where both don't fit. Raises LiveCacheUnusable when none does."""
        room = self._tools.free(Path(self._request.live_cache)) - SPARE_BYTES
        if bytes_needed(wanted) <= room:
            return wanted
        scopes = [[file for file in wanted if BY_NAME[file.family].scope == scope] for scope in self._staged.chosen]
        fits = max((files for files in scopes if bytes_needed(files) <= room), key=bytes_needed, default=[])
        self._staged.rejected["no_space"] += len(wanted) - len(fits)
        if not fits:
            needed, room = bytes_needed(wanted) + SPARE_BYTES, room + SPARE_BYTES
            raise LiveCacheUnusable(
                f"The live cache {self._request.live_cache} has {room // 1_000_000} MB free and the restore needs "
                f"{needed // 1_000_000} MB; give its volume more room."
            )
        return fits

    def _stage(self, store: DirectoryStore, wanted: list[StoredFile]) -> None:
        self.area.open()
        self._tools.checkpoint("staging opened")
        self._total = sum(file.size for file in wanted)
        for file in wanted:
            if file.link:
                self.area.link(file)
                self._staged_one(file)
        stored = [file for file in wanted if not file.link]
        jobs = self._tools.jobs
        bad = Unpacking(store, self.area, jobs, self._staged_one, self._advance).run(stored)
        self._advance(sum(1 for file in wanted if file.link), 0)
        for file in wanted:
            if not bad or file not in bad:
                self._staged.files.setdefault(file.family, {})[file.path] = file
                self._staged.bytes += file.size
        self._staged.damaged = {file.pack for file, reason in bad.items() if reason in ("pack", "digest")}
        self._drop_bad(bad)
        self._drop_broken()
        self._drop_ranks()

    def _drop_ranks(self) -> None:
        """Leave out tactics of several ranks unless each rank has its own, after everything damaged is gone."""
        known = ranks(self._request.facts)
        for name, staged in list(self._staged.files.items()):
            gone = left_out_by_ranks(BY_NAME[name], staged, known)
            self.area.drop(name, gone)
            self._forget(name, gone)
            self._staged.rejected["left_out"] += len(gone)

    def _staged_one(self, file: StoredFile) -> None:
        self._tools.checkpoint(f"staged {file.family}/{file.path}")

    def _advance(self, files: int, size: int) -> None:
        done = self._done = Progress(
            bytes_done=self._done.bytes_done + size,
            bytes_total=self._total,
            files_done=self._done.files_done + files,
        )
        self._tools.on_progress(done)

    def _drop_bad(self, bad: Mapping[StoredFile, str]) -> None:
        """Leave out what came damaged: its kernel entry where the family has entries, else the whole family."""
        entries: dict[str, set[str]] = {}
        for file, reason in bad.items():
            self._staged.rejected[reason] += 1
            entries.setdefault(file.family, set()).add(validity.entry_of(BY_NAME[file.family], file.path))
        for name, dropped in entries.items():
            self._drop_entries(BY_NAME[name], dropped)

    def _drop_broken(self) -> None:
        """Leave out entries that were stored whole and can't be used: see `validity`."""
        sizes = {
            name: {path: file.size for path, file in files.items() if not file.link}
            for name, files in self._staged.files.items()
        }
        live, majors = Path(self._request.live_cache), cuda_majors(self._request.facts)
        for name, broken in checking.broken(sizes, self.area.root, live, self._tools.jobs, majors).items():
            for reason in broken.values():
                self._staged.rejected[reason] += 1
            if broken:
                self._drop_entries(BY_NAME[name], set(broken))
                # The first file of each entry has been counted under its own reason.
                self._staged.rejected["same_entry"] -= len(broken)

    def _drop_entries(self, family: Family, dropped: set[str]) -> None:
        staged = self._staged.files.get(family.name, {})
        if family.unit is None:
            self.area.drop_family(family.name)
            gone = list(staged)
        else:
            gone = [path for path in staged if validity.entry_of(family, path) in dropped]
            self.area.drop(family.name, gone)
        self._forget(family.name, gone)
        self._staged.rejected["same_entry"] += len(gone)

    def _forget(self, name: str, gone: Collection[str]) -> None:
        staged = self._staged.files.get(name, {})
        for path in gone:
            self._staged.bytes -= staged.pop(path).size
        if not staged:
            self.area.drop_family(name)
            self._staged.files.pop(name, None)

    def _ended(self, near: Nearest | None) -> RestoreResult:
        staged, live = self._staged, self._request.live_cache
        for name in staged.files:
            self.area.finish(name, live)
        rejected = {reason: count for reason, count in staged.rejected.items() if count}
        commit = tuple(self._entry(name) for name in sorted(staged.files))
        outcome = self._outcome(set(rejected) - HARMLESS_REASONS)
        counts = self._counts()
        return RestoreResult(
            outcome=outcome,
            sentence=sentence_for(outcome, staged.chosen, counts, rejected, near),
            generations={scope: manifest.name for scope, manifest in staged.chosen.items() if self._has(scope)},
            files=sum(map(len, staged.files.values())),
            bytes=staged.bytes,
            rejected=rejected,
            families=counts,
            commit=commit,
            clear=self._owned.to_clear(set(staged.files), claimed=True),
            differs=tuple(str(one) for one in near.differences) if near else (),
            damaged=tuple(sorted(staged.damaged)),
        )

    def _entry(self, name: str) -> CommitEntry:
        live = os.path.join(self._request.live_cache, BY_NAME[name].directory)
        return CommitEntry(family=name, staged=str(self.area.root / name), live=live)

    def _counts(self) -> dict[str, FamilyCount]:
        return {
            name: FamilyCount(
                files=len(files),
                bytes=sum(file.size for file in files.values()),
                scope=BY_NAME[name].scope,
                kernels=sum(1 for path in files if is_kernel(BY_NAME[name], path)),
            )
            for name, files in sorted(self._staged.files.items())
        }

    def _has(self, scope: KeyScope) -> bool:
        return any(BY_NAME[name].scope == scope for name in self._staged.files)

    def _outcome(self, reasons: set[str]) -> RestoreOutcome:
        if self._has("exact") and not reasons - {"quarantined", "condemned", "manifest"}:
            return "hit"
        if self._staged.files:
            return "partial"
        if self._owned.own:
            return "kept"
        return "failed" if reasons - {"quarantined", "condemned"} else "miss"


def _with(result: RestoreResult, owned: Ownership, seconds: float, choice: Choice | None) -> RestoreResult:
    known = owned.known
    generations = result.generations
    return RestoreResult(
        **{
            **vars(result),
            "exact_key": known.exact_key,
            "toolchain_key": known.toolchain_key,
            "generation": generations.get("exact") or generations.get("toolchain"),
            "seconds": seconds,
            "claims": choice.give_back(set(generations.values())) if choice else (),
            "waited_s": choice.waited_s if choice else 0.0,
        }
    )
