"""What users send while a pod serves is recorded from the engine's histograms, rarely written, and never in the way."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import EngineError
from sidecar.supervisor.traffic_record import SAMPLE_S, TrafficRecorder
from sidecar.warmup.recorded import Distribution, RecordedMix, load, mix_path
from tests.unit.supervised import Metered, make_pod, observe, told


def lengths(prompts: float, outputs: float | None = None) -> dict[str, Any]:
    """Give counters after so many requests of up to 512 and 64 tokens."""
    return {
        "identity": "1",
        "prompt_lengths": {128.0: 0.0, 512.0: prompts, math.inf: prompts},
        "output_lengths": {64.0: outputs or prompts, math.inf: outputs or prompts},
    }


async def _recording(root: Path) -> TrafficRecorder:
    recorder = TrafficRecorder(make_pod(root, Metered(**lengths(1000))))
    assert await recorder.begin()
    return recorder


async def serve(recorder: TrafficRecorder, requests: float, running: float = 12.0) -> bool:
    observe(recorder._pod, running=running, **lengths(1000 + requests))
    recorder.sample()
    return await recorder.write_when_due()


async def test_traffic_since_ready_is_written_beside_the_kernels(tmp_path: Path) -> None:
    recorder = await _recording(tmp_path)
    assert not await serve(recorder, 199)
    assert await serve(recorder, 200)
    found, _ = load(mix_path(tmp_path / "live"))
    assert found is not None
    assert (found.prompt_tokens, found.concurrency) == (
        Distribution((128, 512), (0.0, 200.0)),
        Distribution((11, 12), (0.0, 2.0)),
    )
    assert (found.requests, found.pods) == (200.0, 1)


async def test_the_same_traffic_is_not_written_again(tmp_path: Path) -> None:
    recorder = await _recording(tmp_path)
    assert await serve(recorder, 200)
    assert not await serve(recorder, 5000)
    again = TrafficRecorder(recorder._pod)
    assert await again.begin()
    assert not await serve(again, 50_000)


async def test_other_traffic_is_written_when_there_is_enough_of_it(tmp_path: Path) -> None:
    other = Distribution((16,), (5000.0,))
    RecordedMix(other, other, other, 5000.0, 3).save(mix_path(tmp_path / "live"))
    recorder = await _recording(tmp_path)
    assert not await serve(recorder, 1999)
    assert await serve(recorder, 2000)
    found, _ = load(mix_path(tmp_path / "live"))
    assert found is not None
    assert (found.pods, found.prompt_tokens) == (4, Distribution((16, 128, 512), (2500.0, 0.0, 2000.0)))


async def test_another_engine_process_has_other_counters(tmp_path: Path) -> None:
    recorder = await _recording(tmp_path)
    observe(recorder._pod, running=1.0, **{**lengths(9000), "identity": "2"})
    recorder.sample()
    assert recorder.found() is None


async def test_an_engine_that_shows_no_lengths_is_not_recorded(tmp_path: Path) -> None:
    assert await TrafficRecorder(make_pod(tmp_path, Metered())).begin() is False
    engine = Metered()
    engine.error = EngineError("no answer")
    pod = make_pod(tmp_path / "live", engine)
    assert await TrafficRecorder(pod).begin() is None


@pytest.mark.looptime
async def test_an_engine_that_does_not_answer_at_once_is_asked_again(tmp_path: Path) -> None:
    engine = Metered()
    engine.error = EngineError("no answer")
    recorder = TrafficRecorder(make_pod(tmp_path, engine))
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(SAMPLE_S / 2)
    assert not running.done()
    engine.error = None
    await asyncio.sleep(2 * SAMPLE_S)
    # What earlier pods recorded is read in a thread, whose time is real.
    await asyncio.wait({running}, timeout=100 * SAMPLE_S)
    assert running.done(), "it shows no lengths, which ends the recording"


async def test_idle_times_say_nothing_about_concurrency(tmp_path: Path) -> None:
    recorder = await _recording(tmp_path)
    await serve(recorder, 0, running=0.0)
    assert recorder.found() is None


async def test_a_disk_that_is_full_costs_a_sentence(tmp_path: Path) -> None:
    recorder = await _recording(tmp_path)
    mix_path(tmp_path / "live").parent.write_text("in the way")
    assert not await serve(recorder, 500)
    assert "can't be recorded" in told(recorder._pod)


async def test_a_record_that_cannot_be_believed_is_begun_anew(tmp_path: Path) -> None:
    path = mix_path(tmp_path / "live")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    recorder = await _recording(tmp_path)
    assert await serve(recorder, 200)
    assert load(path)[0] is not None
