"""When a probe asks, and what its answers mean: delays, periods, thresholds, and the startup probe that gates the rest.

Who is asked, and how, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from tests.kubernetes.kubelet.clock import Clock
from tests.kubernetes.kubelet.spec import Probe

ProbeKind = Literal["startup", "readiness", "liveness"]


class Thresholds:
    """Counts answers in a row.

    "Configure Liveness, Readiness and Startup Probes", section "Configure Probes": successThreshold is the least number of
    consecutive successes after a failure, failureThreshold the number of consecutive failures after which it has failed.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._last: bool | None = None
        self._count = 0

    def take(self, good: bool) -> bool | None:
        """Take an answer; give the probe's result where a threshold is reached, None before that."""
        self._count = self._count + 1 if good is self._last else 1
        self._last = good
        wanted = self._probe.success_threshold if good else self._probe.failure_threshold
        return good if self._count >= wanted else None


async def run_probe(
    kind: ProbeKind,
    probe: Probe,
    ask: Callable[[], Awaitable[bool]],
    told: Callable[[bool], None],
    started: asyncio.Event,
    clock: Clock,
) -> None:
    """Ask again and again while one instance of a container runs, and tell every result; until cancelled.

    "Pod Lifecycle", section "Types of probe": with a startup probe, all other probes are disabled until it succeeds; a
    failed startup or liveness probe kills the container, and is not asked again before that; a startup probe is not
    asked again once it has succeeded. "Configure Probes": initialDelaySeconds counts from the container's start, and with a
    startup probe the others' delays begin only when it has succeeded.
    """
    if kind != "startup":
        await started.wait()
    await clock.pause(probe.initial_delay_seconds)
    thresholds = Thresholds(probe)
    while True:
        result = thresholds.take(await ask())
        if result is not None:
            told(result)
            if kind == "startup" or (kind == "liveness" and not result):
                return
        await clock.pause(probe.period_seconds)
