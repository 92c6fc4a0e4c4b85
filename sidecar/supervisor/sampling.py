"""Looks now and then, while the pod serves, whether its output has turned degenerate: one short request at a time.

What follows from bad output is decided by the state machine, which is told of it after the second bad sample in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar import lifecycle
from sidecar.engines.protocol import EngineStats
from sidecar.errors import EngineError
from sidecar.lifecycle import Event, Phase
from sidecar.supervisor.pod import Pod
from sidecar.warmup import verify as output

#: An engine whose KV cache is fuller, or that lets requests wait, is left alone: a sample is nobody's request.
FULL = 0.9
#: Two in a row, each of which was asked for twice with different seeds: odd text happens, and costs no capacity.
BAD_IN_A_ROW = 2
#: Between a bad sample and the next. Seconds.
AGAIN_S = 1.0


async def watch(pod: Pod, post: Callable[[Event], None]) -> None:
    """Take samples until cancelled; return at once where none are wanted."""
    if pod.settings.sample_output_s <= 0:
        return
    bad = 0
    while True:
        await asyncio.sleep(AGAIN_S if bad else pod.settings.sample_output_s)
        wrong = await sample(pod)
        if wrong is None:
            continue
        bad = bad + 1 if wrong else 0
        if bad >= BAD_IN_A_ROW:
            bad = 0
            post(lifecycle.CheckAsked(suspicion=wrong))


async def sample(pod: Pod) -> str | None:
    """Take one sample; say what is bad about it, nothing when it is good, None when none could be taken.

    Errors are bad where the engine's load is known, for a full queue may refuse a request as well; an answer that does not
    come in time may be load, which the watcher judges by the engine's counters.
    """
    if not _has_room(pod):
        return None
    try:
        # What the watcher saw is seconds old, and an engine that fell asleep since may die of a request.
        stats = await pod.engine.stats()
        if not _is_free(stats):
            return None
        # One that is full now is not asked again: a sample is nobody's request.
        result = await output.canary(pod.engine, pod.learnt or await pod.engine.facts(), patience_s=0.0)
    except EngineError:
        return None
    if pod.board.phase is not Phase.READY:
        return None
    pod.metrics.observe_sample(result.outcome)
    if result.outcome == "degenerate" or (result.refuses and stats.waiting is not None):
        pod.board.tell(f"A sample of the output is bad: {result.sentence}", "warning")
        return result.sentence
    return "" if result.outcome == "passed" else None


def _has_room(pod: Pod) -> bool:
    """Say whether a request may be sent: the pod serves, the engine is up, and nobody waits."""
    seen = pod.observation
    if pod.board.phase is not Phase.READY or pod.follows or seen is None or seen.state != "up" or seen.stats is None:
        return False
    return _is_free(seen.stats)


def _is_free(stats: EngineStats) -> bool:
    return not stats.asleep and not stats.waiting and (stats.kv_cache_usage or 0.0) < FULL
