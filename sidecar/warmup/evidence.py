"""What was compiled since the last look: new kernel files in the live cache, and the engine's log lines.

Looks only; whether a warm-up goes on because of it is decided in `runner.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sidecar.caches.families import Family
from sidecar.caches.scan import Tree, compare, scan_live_cache

#: So many names of kernels are kept for each look; more help nobody.
NAMES_KEPT = 50


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look found. `kernels` and other `files` count per family, `names` are `family/path`.

    `jit_lines` counts the engine's log lines about compiling. `empty`: nothing at all lies in the live cache,
    so the engine compiles nothing, or elsewhere. `blind` says why the live cache can't be judged; then
    nothing is proven.
    """

    kernels: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
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

    def __bool__(self) -> bool:
        return self.compiled > 0


class Witness(Protocol):
    """Whatever can say what was compiled."""

    async def baseline(self) -> Evidence:
        """Take what is there now as known. Only `empty` and `blind` of the answer are of interest."""
        ...

    async def collect(self) -> Evidence:
        """Say what is new since the last call of either."""
        ...


class EvidenceWatcher:
    """Compares scans of the live cache's families; both run in a thread, the event loop stays free.

    `jit_lines` gives how many log lines about compiling the engine has printed so far. Kernels of an engine
    that doesn't use this live cache are not seen: such a cache is `empty`.
    """

    def __init__(self, live_cache: Path, families: Sequence[Family], jit_lines: Callable[[], int] = lambda: 0) -> None:
        self._live_cache = live_cache
        self._families = tuple(families)
        self._jit_lines = jit_lines
        self._known: dict[str, Tree] = {}
        self._lines = 0

    async def baseline(self) -> Evidence:
        """Take what is there now as known."""
        self._known = {}
        self._lines = self._jit_lines()
        found, blind = await self._scan()
        self._known = found or {}
        return Evidence(empty=not any(self._known.values()), blind=blind)

    async def collect(self) -> Evidence:
        """Say what is new or changed since the last call; a scan that fails leaves it for the next one."""
        lines = self._jit_lines()
        new_lines, self._lines = max(0, lines - self._lines), lines
        found, blind = await self._scan()
        if found is None:
            return Evidence(jit_lines=new_lines, blind=blind)
        changes = await asyncio.to_thread(compare, self._known, found)
        self._known = found
        kernels, files, names = dict[str, int](), dict[str, int](), list[str]()
        for family, change in changes.items():
            if change.kernels:
                kernels[family] = change.kernels
            others = len(change.new) + len(change.changed) - change.kernels
            if others > 0:
                files[family] = others
            names += [f"{family}/{path}" for path in (*change.new_kernels, *change.changed_kernels)]
        empty = not any(found.values())
        return Evidence(kernels, files, tuple(names[:NAMES_KEPT]), new_lines, empty)

    async def _scan(self) -> tuple[dict[str, Tree] | None, str]:
        try:
            found = await asyncio.to_thread(scan_live_cache, self._live_cache, self._families)
        except OSError as error:
            return None, f"the live cache {self._live_cache} can't be read ({error.strerror or error})"
        return found, ""
