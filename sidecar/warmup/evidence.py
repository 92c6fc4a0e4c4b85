"""What was compiled since the last look: new kernel files in the live cache, and the engine's log lines.

Looks only; whether a warm-up goes on because of it is decided in `runner.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from sidecar.aside import TREE_S, Aside
from sidecar.caches.families import Family
from sidecar.caches.scan import compare
from sidecar.warmup.tree_watch import NOTHING, Look, TreeWatch, joined

#: So many names of kernels are kept for each look; more help nobody.
NAMES_KEPT = 200
#: Every folder is listed at most in this share of the time; in between, only folders that changed are.
THOROUGH_SHARE = 0.05
#: File systems stamp files with a clock that ticks every 1 to 10 ms, and is behind by up to one tick. Seconds.
TICK_S = 0.02
#: The identity of what was compiled where nothing names it.
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look found. `kernels` and other `files` count per family, `names` are `family/path`.

    `late` are those of the names whose files were written before `mark` was called last: they belong to the burst
    before. `jit_lines` counts the engine's log lines about compiling. `empty`: nothing at all lies in the live cache,
    so the engine compiles nothing, or elsewhere. `blind` says why the live cache can't be judged; then
    nothing is proven.
    """

    kernels: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    jit_lines: int = 0
    empty: bool = False
    blind: str = ""

    @property
    def compiled(self) -> int:
        """Count the kernels; where log lines tell of more than files do, those."""
        kernels = sum(self.kernels.values())
        return kernels if self.loaded else max(kernels, self.jit_lines)

    @property
    def loaded(self) -> bool:
        """Say whether the engine logged a compilation, and the live cache shows that nothing was compiled for it.

        vLLM 0.25's monitor logs the same line when Triton only loads a kernel from disk: the first use in a process.
        """
        return self.jit_lines > 0 and not (self.kernels or self.empty or self.blind)

    @property
    def identity(self) -> frozenset[str]:
        """Name the kernels of the burst itself: two sizes with different ones are served by different kernels."""
        own = frozenset(self.names) - frozenset(self.late)
        return own or (frozenset((UNNAMED,)) if self and not self.late else own)

    def __bool__(self) -> bool:
        return self.compiled > 0


class Witness(Protocol):
    """Whatever can say what was compiled."""

    def mark(self) -> None:
        """Note that a burst begins now."""
        ...

    async def baseline(self) -> Evidence:
        """Take what is there now as known. Only `empty` and `blind` of the answer are of interest."""
        ...

    async def collect(self, *, thorough: bool = False) -> Evidence:
        """Say what is new since the last call of either; `thorough` spares no cost."""
        ...


class EvidenceWatcher:
    """Compares looks at the live cache's families; they run in a thread, the event loop stays free.

    `jit_lines` gives how many log lines about compiling the engine has printed so far. Kernels of an engine
    that doesn't use this live cache are not seen: such a cache is `empty`. `wall_clock` gives the seconds that files
    are stamped with; without it, late files count for the burst during which they were found.
    """

    def __init__(
        self,
        live_cache: Path,
        families: Sequence[Family],
        jit_lines: Callable[[], int] = lambda: 0,
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._live_cache = live_cache
        self._tree = TreeWatch(live_cache, tuple(families))
        self._looking = Aside[Look]("look for kernels", TREE_S)
        self._late = NOTHING
        self._jit_lines = jit_lines
        self._wall_clock = wall_clock
        self._lines = 0
        self._before_ns = self._marked_ns = 0
        self._thorough_from = 0.0

    def mark(self) -> None:
        """Note that a burst begins now."""
        if self._wall_clock is not None:
            self._before_ns, self._marked_ns = self._marked_ns, int((self._wall_clock() - TICK_S) * 1e9)

    async def baseline(self) -> Evidence:
        """Take what is there now as known."""
        self._tree.forget()
        self._lines = self._jit_lines()
        _, blind = await self._look(thorough=True)
        return Evidence(empty=self._tree.empty, blind=blind)

    async def collect(self, *, thorough: bool = False) -> Evidence:
        """Say what is new or changed since the last call; a look that fails leaves it for the next one."""
        lines = self._jit_lines()
        new_lines, self._lines = max(0, lines - self._lines), lines
        found, blind = await self._look(thorough=thorough)
        if found is None:
            return Evidence(jit_lines=new_lines, blind=blind)
        before, after = found
        kernels, files, names, late = dict[str, int](), dict[str, int](), list[str](), list[str]()
        for family, change in compare(before, after).items():
            if change.kernels:
                kernels[family] = change.kernels
            others = len(change.new) + len(change.changed) - change.kernels
            if others > 0:
                files[family] = others
            for path in (*change.new_kernels, *change.changed_kernels):
                names.append(f"{family}/{path}")
                # A file with an older time is a copy that kept it, and says nothing of when it came.
                if self._before_ns <= after[family][path].mtime_ns < self._marked_ns:
                    late.append(names[-1])
        kept = names[:NAMES_KEPT]
        return Evidence(
            kernels, files, tuple(kept), tuple(each for each in late if each in kept), new_lines, self._tree.empty
        )

    def sizes(self) -> dict[str, dict[str, int]]:
        """Count files, bytes and kernels per family as of the last look, without another one."""
        return self._tree.sizes()

    async def _look(self, *, thorough: bool) -> tuple[Look | None, str]:
        now = asyncio.get_running_loop().time
        began = now()
        thorough = thorough or began >= self._thorough_from
        try:
            look = partial(self._tree.look, thorough=thorough)
            if self._looking.late:
                # A look that came too late knows nothing of what was written since.
                self._late = joined(self._late, await self._looking.resume(look))
            found, self._late = joined(self._late, await self._looking.resume(look)), NOTHING
        except TimeoutError as error:
            return None, (
                f"the live cache {self._live_cache} can't be looked at ({error.strerror}); the disk below it hangs or is "
                "overloaded, so look at the node and at who else writes there"
            )
        except OSError as error:
            return None, (
                f"the live cache {self._live_cache} can't be read ({error.strerror or error}); let engine and sidecar mount "
                "it at the same path, readable for the sidecar's user or group"
            )
        if thorough:
            self._thorough_from = now() + (now() - began) / THOROUGH_SHARE
        return found, ""
