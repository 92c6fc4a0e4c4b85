"""The demo's closing table and what it means in sentences, made from the figures of the run and nothing else.

Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sidecar.demo.figures import DemoFigures, StartFigures
from sidecar.demo.measure import CASES
from sidecar.web import words

Row = tuple[str, ...]


def rows(starts: Sequence[StartFigures]) -> list[Row]:
    """Give the table's rows: what was measured, then one cell per start."""
    return [(name, *(cell(start) for start in starts)) for name, cell in _rows()]


def _rows() -> Iterator[tuple[str, Callable[[StartFigures], str]]]:
    yield "engine's CPU seconds to /health", lambda start: _number(start.health_cpu_s)
    yield "wall seconds to /health", lambda start: _number(start.health_wall_s)
    yield "engine's CPU seconds to ready", lambda start: _number(start.ready_cpu_s)
    yield "wall seconds to ready", lambda start: _number(start.ready_wall_s)
    yield "sidecar's own CPU seconds to ready", lambda start: _number(start.sidecar_cpu_s)
    yield "kernels compiled before /health", lambda start: words.count(start.kernels_at_health)
    yield "kernels compiled before ready", lambda start: _kernels_before_ready(start)
    yield "kernels compiled by live requests", lambda start: words.count(start.kernels_after)
    for case in CASES:
        yield f"first TTFT, {case.name}", _first(case.name)
        yield f"later TTFT, {case.name}", _later(case.name)
    yield "restore", lambda start: _moved(start, "restore", "files")
    yield "publish", lambda start: _moved(start, "publish", "new_files")


def _kernels_before_ready(start: StartFigures) -> str:
    return words.NOTHING if start.ready_wall_s is None else words.count(start.kernels_before)


def _number(value: float | None) -> str:
    return words.NOTHING if value is None else f"{value:.1f}"


def _first(name: str) -> Callable[[StartFigures], str]:
    def cell(start: StartFigures) -> str:
        case = start.case(name)
        if case is None:
            return words.NOTHING
        return words.seconds(case.first_s) if case.first_s is not None else "failed"

    return cell


def _later(name: str) -> Callable[[StartFigures], str]:
    def cell(start: StartFigures) -> str:
        case = start.case(name)
        return words.NOTHING if case is None else words.seconds(case.typical_s)

    return cell


def _moved(start: StartFigures, part: str, files: str) -> str:
    found = start.part(part)
    if not found:
        return words.NOTHING
    outcome = words.plain(found.get("outcome", ""))
    if not found.get("bytes"):
        return outcome
    return f"{outcome}: {words.count(found.get(files))} files, {words.size(found['bytes'])}"


def sentences(figures: DemoFigures) -> list[str]:
    """Say what the figures mean, where and when they were made, and what failed."""
    machine = figures.machine
    said = [*_compared(figures.starts)]
    said += [
        f"{start.title}: live request {case.name} failed: {case.error}"
        for start in figures.starts
        for case in start.cases
        if case.error
    ]
    said.append(
        f"Measured {machine.date} with vLLM {machine.engine}, warmup-sidecar {machine.product} and Python "
        f"{machine.python} on {machine.cores} cores of {machine.cpu}, "
        f"{words.size(machine.memory_bytes)} memory, Linux {machine.kernel}; load average "
        f"{machine.load_before:.1f} before and {machine.load_after:.1f} after. CPU seconds are "
        "steadier than wall seconds where other programs run too."
    )
    return said


def _compared(starts: Sequence[StartFigures]) -> Iterator[str]:
    if len(starts) < 2:
        return
    first, second = starts[0], starts[1]
    if first.health_cpu_s and second.health_cpu_s:
        ratio = second.health_cpu_s / first.health_cpu_s
        yield (
            f"The restored start of the engine cost {ratio:.2f} of the empty one's CPU seconds to /health, "
            f"and compiled {words.count(second.kernels_before)} kernels until ready "
            f"({words.count(first.kernels_before)} in the empty one)."
        )
    alone = starts[2] if len(starts) > 2 else None
    name = "log-probabilities"
    warm, cold = second.case(name), alone.case(name) if alone else None
    if warm and warm.first_s is not None and cold and cold.first_s is not None:
        yield (
            f"The first request with log-probabilities waited {words.seconds(warm.first_s)} after ready, and "
            f"{words.seconds(cold.first_s)} at the engine without warm-up."
        )
