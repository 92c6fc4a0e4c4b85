"""Records what users send while the pod serves, from the engine's own histograms, for the next pod's random draws.

Only lengths and numbers are kept, never a prompt. What becomes of the record is decided in `warmup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sidecar.aside import FILE_S, beside
from sidecar.engines.protocol import EngineStats
from sidecar.errors import EngineError
from sidecar.supervisor.pod import Pod
from sidecar.warmup import recorded
from sidecar.warmup.recorded import RecordedMix

#: The engine's metrics are read about as often.
SAMPLE_S = 5.0
#: A pod's first record is written after so many requests. Each one that is written is published, as a generation that must
#: be proven, so where there is a record already, only traffic that differs from it is worth another, and only with so many
#: requests; then whenever there are twice as many.
FIRST_REQUESTS, OTHER_REQUESTS, OTHER_DISTANCE = 200.0, 2000.0, 0.2
#: So many samples of how many requests run are kept; a day of them.
SAMPLES_KEPT = 20_000
#: What is beyond the last bucket of an engine whose longest request isn't known. Tokens.
LONGEST = 32_768


class TrafficRecorder:
    """Records one stay in ready. Warm-up's own requests are those up to `begin`."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._before: EngineStats | None = None
        self._running: list[int] = []
        self._earlier: RecordedMix | None = None
        self._known: RecordedMix | None = None
        self._write_at = FIRST_REQUESTS

    async def begin(self) -> bool | None:
        """Take the counters as they are; False where the engine shows no histograms of lengths, None when it did not answer."""
        try:
            self._before = await self._pod.engine.stats()
        except EngineError:
            return None
        with suppress(TimeoutError):
            self._earlier, _ = await beside("recorded traffic", FILE_S, recorded.load, self._path())
        self._known = self._earlier
        self._write_at = FIRST_REQUESTS if self._earlier is None else OTHER_REQUESTS
        return bool(self._before.prompt_lengths and self._before.output_lengths)

    def sample(self) -> None:
        """Note how many requests run now."""
        stats = self._pod.observation.stats if self._pod.observation else None
        if stats is not None and stats.running and len(self._running) < SAMPLES_KEPT:
            self._running.append(max(1, round(stats.running)))

    def found(self) -> RecordedMix | None:
        """Give what was recorded so far, without what earlier pods did; None while it is nothing."""
        before = self._before
        stats = self._pod.observation.stats if self._pod.observation else None
        if before is None or stats is None or stats.identity != before.identity or not self._running:
            return None
        longest = self._longest()
        prompts = recorded.of_buckets(stats.prompt_lengths, before.prompt_lengths, longest)
        outputs = recorded.of_buckets(stats.output_lengths, before.output_lengths, longest)
        if not prompts.total or not outputs.total:
            return None
        return RecordedMix(prompts, outputs, recorded.of_samples(self._running), prompts.total)

    async def write_when_due(self) -> bool:
        """Write the record beside the kernels when there is enough of it; say whether it was written."""
        found = self.found()
        if found is None or found.requests < self._write_at:
            return False
        self._write_at = found.requests * 2
        if self._known is not None and found.differs_from(self._known) < OTHER_DISTANCE:
            return False
        self._known = found.after(self._earlier)
        try:
            await beside("recorded traffic", FILE_S, self._known.save, self._path())
        except OSError as error:
            self._pod.board.tell(f"What users send can't be recorded for the next pod ({error}).", "warning")
            return False
        return True

    async def run(self) -> None:
        """Record until cancelled."""
        if not self._pod.live_cache:
            return
        begun: bool | None = None
        while begun is not False:
            if begun is None:
                begun = await self.begin()
            else:
                self.sample()
                await self.write_when_due()
            await asyncio.sleep(SAMPLE_S)

    def _path(self) -> Path:
        return recorded.mix_path(Path(self._pod.live_cache))

    def _longest(self) -> int:
        limits = self._pod.board.engine.get("limits")
        known = limits.get("max_model_len") if isinstance(limits, Mapping) else None
        return known if isinstance(known, int) and known > 0 else LONGEST
