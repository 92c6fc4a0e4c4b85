"""Choose what to lay down for an engine and stage it, verified, ready to be committed.

Nothing is put into the live cache here (`commit`, or the launcher), and nothing is written to the store.
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches import budget, checking, validity
from sidecar.caches.bringing import Bringing
from sidecar.caches.choice import Choice
from sidecar.caches.commit import sweep
from sidecar.caches.explain import Nearest, nearest, sentence_for
from sidecar.caches.families import BY_NAME, Family, all_goes, is_kernel, left_out, left_out_by_ranks
from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.fingerprint import KeyScope, cuda_majors
from sidecar.caches.keeping import without_unfit
from sidecar.caches.live_cache import STAGING_NAME, disk_trouble, remove_marker
from sidecar.caches.manifest import Manifest, OnPacks, Pack
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
from sidecar.caches.selection import Selection
from sidecar.caches.staging import StagingArea, bytes_needed
from sidecar.caches.store import Checkpoint, Store, no_checkpoint, open_store
from sidecar.caches.trust import KeyFiles, trust
from sidecar.caches.unpacking import Bad
from sidecar.errors import LiveCacheUnusable, WarmupError

# Left free on the live cache's disk besides what is staged: the engine writes there too.
SPARE_BYTES = 16 * 1024 * 1024
# Reasons that say nothing bad about what was stored.
HARMLESS_REASONS = frozenset({"left_out", "excluded", "claimed"})
# Reasons for which a whole generation was passed over; one that was used after all may be restored in full.
PASSED_OVER = frozenset({"quarantined", "condemned", "manifest", "unsigned", "untrusted"})


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
    now: Callable[[], float] = time.time
    on_progress: Callable[[Progress], None] = ignore
    checkpoint: Checkpoint = no_checkpoint
    free: Callable[[Path], int] = free_bytes
    memory: Callable[[], int | None] = budget.memory_left
    jobs: int = 1


@dataclass
class _Staged:
    """What a restore has staged so far, and what it has left out for which reason."""

    chosen: dict[KeyScope, Manifest] = field(default_factory=dict)
    files: dict[str, Selection] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    damaged: set[str] = field(default_factory=set)


def restore(request: RestoreRequest, tools: RestoreTools) -> RestoreResult:
    """Stage what fits this engine and say what to commit and clear; every failure is an outcome, never an exception.

    What is staged when this returns `hit` or `partial` lies complete and verified under `request.staging`.
    """
    started = tools.clock()
    owned = without_unfit(request, ownership(request), tools.sleep)
    run = _Restore(request, tools, owned)
    try:
        result = run.result()
    except WarmupError as error:
        result = run.failed(str(error))
    except OSError as error:
        result = run.failed(disk_trouble(request.live_cache, "written", error))
    finally:
        run.close()
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
        self._bringing = Bringing(request, self.area, tools.jobs, tools.clock, tools.now)
        self._no_room = ""
        self._room: budget.Budget | None = None

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
        store.trust = trust(KeyFiles(request.keys_file, request.signing_file), tools.now)
        self.choice = Choice(
            request, store, self._owned.known, tools.clock, tools.sleep, tools.on_progress, self._ahead(store)
        )
        for scope in self._scopes:
            found = self.choice.choose(scope, self._staged.rejected)
            if found is not None:
                self._staged.chosen[scope] = found
        near = nearest(store, self._owned.known) if self._misses_exact() else None
        wanted = self._wanted()
        if wanted:
            self._stage(store, self._with_room(wanted))
        return self._ended(near)

    def close(self) -> None:
        """Let go of what is open; what is staged stays."""
        self._bringing.close()
        self.area.close()

    def _ahead(self, store: Store) -> OnPacks:
        """Make what begins to bring packs while their manifest is read."""

        def begin(packs: Sequence[Pack]) -> None:
            with contextlib.suppress(OSError):
                # What is brought takes room for a while, and that is not the room that files are fitted into.
                self._room = self._room or self._measured()
                self._bringing.ahead(store, packs, self._room.bytes - SPARE_BYTES)

        return begin

    def _measured(self) -> budget.Budget:
        tools, live = self._tools, Path(self._request.live_cache)
        return budget.budget(live, self._request.limit_bytes, tools.free, tools.memory)

    def failed(self, sentence: str) -> RestoreResult:
        return self._nothing("failed", f"{sentence} The engine starts cold.", claimed=bool(self._request.store))

    def _nothing(self, outcome: RestoreOutcome, sentence: str, claimed: bool) -> RestoreResult:
        return RestoreResult(
            outcome=outcome,
            sentence=sentence,
            rejected={reason: count for reason, count in self._staged.rejected.items() if count},
            clear=self._owned.to_clear((), claimed),
        )

    def _kept(self) -> RestoreResult:
        sweep(self._request.live_cache)
        clear = self._owned.to_clear((), claimed=False)
        but = ", ".join(sorted(map(os.path.basename, clear)))
        kept = "The live cache of this pod's earlier attempt belongs to the same engine and is kept"
        return RestoreResult(
            outcome="kept",
            sentence=f"{kept} but for {but}, which might make its ranks wait for each other."
            if clear
            else f"{kept} as it is.",
            generations=dict(self._owned.generations),
            clear=clear,
        )

    def _misses_exact(self) -> bool:
        return "exact" in self._scopes and "exact" not in self._staged.chosen and not self._staged.rejected

    def _wanted(self) -> list[Selection]:
        wanted = []
        for scope, manifest in self._staged.chosen.items():
            table = manifest.files.in_order()
            for name, first, last in table.families():
                family = BY_NAME.get(name)
                if family is None or family.scope != scope:
                    self._staged.rejected["unknown_family"] += last - first
                elif name in self._request.exclude or name in self._request.distrusted:
                    self._staged.rejected["excluded"] += last - first
                else:
                    rows = array("I", _travelling(family, table, first, last))
                    self._staged.rejected["left_out"] += last - first - len(rows)
                    wanted.append(Selection(family, table, rows))
        return [files for files in wanted if files.rows]

    def _with_room(self, wanted: list[Selection]) -> list[Selection]:
        """Leave out families, the largest first, until the rest fits. Raises LiveCacheUnusable when none does."""
        live = self._request.live_cache
        room = self._room or self._measured()
        sizes = {files.family.name: bytes_needed([files]) for files in wanted}
        left_out = budget.fitting(sizes, room.bytes - SPARE_BYTES)
        kept = [files for files in wanted if files.family.name not in left_out]
        if not left_out:
            return kept
        self._staged.rejected["no_space"] += sum(map(len, wanted)) - sum(map(len, kept))
        why = f"the live cache {live} has {room.bytes // 1_000_000} MB {room.why}; give its volume more room."
        if not kept:
            needed = sum(sizes.values()) + SPARE_BYTES
            raise LiveCacheUnusable(f"The restore needs {-(-needed // 1_000_000)} MB, and {why}")
        names = ", ".join(f"{name} ({-(-sizes[name] // 1_000_000)} MB)" for name in left_out)
        self._no_room = f"No room for {names}: {why}"
        return kept

    def _stage(self, store: Store, wanted: list[Selection]) -> None:
        self.area.open()
        self._tools.checkpoint("staging opened")
        self._total = sum(files.bytes for files in wanted)
        links = 0
        for files in wanted:
            for row in files.links():
                self.area.link(files.table[row])
                self._staged_one(files.table[row])
                links += 1
        chosen = self._staged.chosen.values()
        bad = self._bringing.run(store, chosen, wanted, self._staged_one, self._advance)
        self._advance(links, 0)
        self._staged.files = {files.family.name: files.without(bad.get(files.family.name, ())) for files in wanted}
        tables = {files.family.name: files.table for files in wanted}
        self._staged.damaged = {
            tables[name].pack(row)
            for name, found in bad.items()
            for row, reason in found.items()
            if reason in ("pack", "digest")
        }
        self._drop_bad(bad, tables)
        self._drop_broken()
        self._drop_ranks()

    def _drop_ranks(self) -> None:
        """Leave out tactics of several ranks unless each rank has its own, after everything damaged is gone."""
        known = ranks(self._request.facts)
        for name, staged in list(self._staged.files.items()):
            paths = left_out_by_ranks(staged.family, staged.paths(), known)
            gone = (
                [row for row, path in zip(staged.rows, staged.paths(), strict=True) if path in paths] if paths else []
            )
            self.area.drop(name, paths)
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

    def _drop_bad(self, bad: Bad, tables: Mapping[str, FileTable]) -> None:
        """Leave out what came damaged: its kernel entry where the family has entries, else the whole family."""
        for name, found in bad.items():
            self._staged.rejected.update(found.values())
            paths = tables[name].paths
            self._drop_entries(BY_NAME[name], frozenset(validity.entry_of(BY_NAME[name], paths[row]) for row in found))

    def _drop_broken(self) -> None:
        """Leave out entries that were stored whole and can't be used: see `validity`."""
        live, majors = Path(self._request.live_cache), cuda_majors(self._request.facts)
        found = checking.broken(self._staged.files, self.area.root, live, self._tools.jobs, majors)
        for name, broken in found.items():
            self._staged.rejected.update(broken.values())
            if broken:
                self._drop_entries(BY_NAME[name], frozenset(broken))
                # The first file of each entry has been counted under its own reason.
                self._staged.rejected["same_entry"] -= len(broken)

    def _drop_entries(self, family: Family, dropped: frozenset[str]) -> None:
        staged = self._staged.files.get(family.name)
        if staged is None:
            return
        if all_goes(family, dropped):
            self.area.drop_family(family.name)
            gone = list(staged.rows)
        else:
            gone = staged.of_entries(dropped)
            self.area.drop(family.name, map(staged.table.paths.__getitem__, gone))
        self._forget(family.name, gone)
        self._staged.rejected["same_entry"] += len(gone)

    def _forget(self, name: str, gone: Collection[int]) -> None:
        staged = self._staged.files[name].without(gone)
        if staged.rows:
            self._staged.files[name] = staged
        else:
            self.area.drop_family(name)
            del self._staged.files[name]

    def _ended(self, near: Nearest | None) -> RestoreResult:
        staged, live = self._staged, self._request.live_cache
        for name in staged.files:
            self.area.finish(name, live)
        rejected = {reason: count for reason, count in staged.rejected.items() if count}
        commit = tuple(self._entry(name) for name in sorted(staged.files))
        outcome = self._outcome(set(rejected) - HARMLESS_REASONS)
        counts = self._counts()
        said = sentence_for(outcome, staged.chosen, counts, rejected, near, self._no_room)
        came: dict[str, str] = {scope: manifest.name for scope, manifest in staged.chosen.items() if self._has(scope)}
        return RestoreResult(
            outcome=outcome,
            sentence=f"{said} {self._bringing.sentence}".rstrip(),
            sources=self._bringing.sources,
            generations={**self._owned.generations, **came},
            files=sum(map(len, staged.files.values())),
            bytes=sum(count.bytes for count in counts.values()),
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
                bytes=files.bytes,
                scope=files.family.scope,
                kernels=sum(1 for path in files.paths() if is_kernel(files.family, path)),
            )
            for name, files in sorted(self._staged.files.items())
        }

    def _has(self, scope: KeyScope) -> bool:
        return any(BY_NAME[name].scope == scope for name in self._staged.files)

    def _outcome(self, reasons: set[str]) -> RestoreOutcome:
        if self._has("exact") and not reasons - PASSED_OVER:
            return "hit"
        if self._staged.files:
            return "partial"
        if self._owned.own:
            return "kept"
        return "failed" if reasons - {"quarantined", "condemned"} else "miss"


def _travelling(family: Family, table: FileTable, first: int, last: int) -> Iterator[int]:
    """Yield the rows of a family that may be restored."""
    is_left_out = left_out(family).fullmatch
    for row, path in enumerate(table.paths.between(first, last), first):
        if not is_left_out(path):
            yield row


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
            "signed": choice.signed if choice else {},
        }
    )
