"""The engine's own numbers at the end of a warm-up: from there on they are traffic's.

How they are split is the business of `metrics/engine_series.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sidecar.engines.protocol import EngineStats
from sidecar.errors import EngineError
from sidecar.supervisor.pod import Pod

#: A well engine answers within milliseconds; readiness is not kept waiting for a slow one. Seconds.
DEADLINE_S = 2.0


async def take(pod: Pod) -> None:
    """Read the engine's metrics before ready, so that nothing of warm-up counts as traffic; without an answer some may."""
    if (stats := await _read(pod)) is not None:
        pod.metrics.baseline(stats.to_json(), pod.board.wall())


async def adopt(pod: Pod) -> None:
    """Read the metrics of an engine that an earlier daemon of this pod saw ready: it knew what was whose, this one doesn't."""
    if (stats := await _read(pod)) is not None:
        pod.metrics.adopt(stats.to_json())


async def _read(pod: Pod) -> EngineStats | None:
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            return await pod.engine.stats()
    return None
