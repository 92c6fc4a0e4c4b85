"""What the steps of the state machine and the activities of a pod leave in the metrics."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar import lifecycle as lc
from sidecar.caches.client import RestoreResult
from sidecar.caches.families import stored_families
from sidecar.engines.vllm import VllmEngine
from sidecar.handshake import CAUSES
from sidecar.lifecycle import Mode, Phase, Snapshot
from sidecar.lifecycle.states import Suspension
from sidecar.metrics import OTHER, Metrics
from sidecar.metrics.table import RESTART_CAUSES
from sidecar.supervisor import baseline, warming
from sidecar.supervisor.activities import PodActivities
from sidecar.supervisor.observers import _RESTART_CAUSE
from sidecar.supervisor.telling import Teller
from sidecar.warmup.evidence import EvidenceWatcher
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.supervised import make_pod

READY = Snapshot(Mode.LAUNCHER, Phase.READY, warm="converged", verify="passed")


@pytest.mark.parametrize("cause", Suspension)
def test_each_withdrawal_counts_once_under_its_cause(tmp_path: Path, cause: Suspension) -> None:
    pod = make_pod(tmp_path)
    teller = Teller(pod)
    held = replace(READY, phase=Phase.SUSPENDED, suspension=cause)
    event = lc.EngineObserved("stalled")
    teller.stepped(READY, event, held, lc.gate(held))
    teller.stepped(held, event, held, lc.gate(held))
    assert pod.metrics.value("suspensions_total", cause=cause.value) == 1


def test_one_suspension_that_turns_into_another_counts_as_both(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    teller = Teller(pod)
    stalled = replace(READY, phase=Phase.SUSPENDED, suspension=Suspension.STALLED)
    asleep = replace(stalled, suspension=Suspension.ASLEEP)
    teller.stepped(READY, lc.EngineObserved("stalled"), stalled, lc.gate(stalled))
    teller.stepped(stalled, lc.EngineObserved("asleep"), asleep, lc.gate(asleep))
    assert pod.metrics.value("suspensions_total", cause="asleep") == 1


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_of_an_engines_end_has_a_series_of_its_own(cause: str) -> None:
    assert _RESTART_CAUSE.get(cause, cause) in set(RESTART_CAUSES) - {OTHER}


async def test_a_condemned_generation_is_counted(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    pod.store = str(tmp_path)
    pod.restored = RestoreResult(outcome="hit", sentence="", generation="00000001-aa")
    await PodActivities(pod, None).record(lc.Quarantine("00000001-aa", "it killed two engines"))
    assert pod.metrics.value("quarantines_total") == 1


async def test_the_baseline_is_read_from_the_engine_before_ready(tmp_path: Path) -> None:
    async with FakeEngine(Script()) as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(tmp_path, client)
        fake.counters.prompt_tokens = 77
        await baseline.take(pod)
        pod.metrics.observe_phase("ready", 1.0, 1.0)
        fake.counters.prompt_tokens = 80
        pod.metrics.engine_stats((await client.stats()).to_json())
        await client.close()
    assert pod.metrics.value("engine_prompt_tokens_total", phase="warmup") == 77
    assert pod.metrics.value("engine_prompt_tokens_total", phase="serving") == 3
    assert pod.metrics.value("engine_baseline_timestamp_seconds") is not None


async def test_the_check_of_the_output_ends_with_the_baseline_so_that_its_requests_are_no_traffic(
    tmp_path: Path,
) -> None:
    async with FakeEngine(Script()) as fake:
        client = VllmEngine(fake.url, api_key=lambda: None, clock=time.monotonic)
        pod = make_pod(tmp_path, client)
        await warming.verify(pod, lc.Verify(1, canary=True))
        pod.metrics.observe_phase("ready", 1.0, 1.0)
        pod.metrics.engine_stats((await client.stats()).to_json())
        await client.close()
    assert (pod.metrics.value("engine_prompt_tokens_total", phase="warmup") or 0) > 0
    assert pod.metrics.value("engine_prompt_tokens_total", phase="serving") == 0


async def test_an_engine_that_does_not_answer_keeps_nobody_from_ready(tmp_path: Path) -> None:
    client = VllmEngine("http://127.0.0.1:1", api_key=lambda: None, clock=time.monotonic)
    pod = make_pod(tmp_path, client)
    await baseline.take(pod)
    await client.close()
    assert pod.metrics.value("engine_baseline_timestamp_seconds") is None


async def test_the_size_of_the_live_cache_is_known_from_the_last_look(tmp_path: Path) -> None:
    folder = tmp_path / "triton" / "AAAA"
    folder.mkdir(parents=True)
    (folder / "kernel.cubin").write_bytes(b"x" * 100)
    (folder / "kernel.json").write_bytes(b"{}")
    pod = make_pod(tmp_path)
    pod.live_cache, pod.metrics = str(tmp_path), Metrics("0", "launcher", ["triton"])
    watcher = EvidenceWatcher(tmp_path, stored_families())
    await watcher.baseline()
    (folder / "later.cubin").write_bytes(b"x")
    await pod.show_cache(watcher.sizes)
    assert pod.metrics.value("live_cache_bytes", family="triton") == 102
    assert pod.metrics.value("live_cache_files", family="triton") == 2
    assert pod.board.cache["kernels"] == {"triton": 1}


def test_a_check_of_an_engine_that_serves_is_no_start(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    teller, ready = Teller(pod), Snapshot(Mode.LAUNCHER, Phase.READY, restore="hit", served=True)
    checking = replace(ready, phase=Phase.VERIFYING, work=1)
    first = Snapshot(Mode.LAUNCHER, Phase.VERIFYING, restore="hit")
    for before, after in ((first, ready), (ready, checking), (checking, ready)):
        teller.stepped(before, lc.CheckAsked(), after, lc.gate(after))
    shown = pod.metrics.render().decode()
    assert 'warmup_sidecar_time_to_ready_seconds_count{restore="hit"} 1.0' in shown


def test_why_nothing_is_published_of_an_engine_with_bad_output_is_told(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    served = Snapshot(Mode.LAUNCHER, Phase.READY, verify="wrong")
    Teller(pod).stepped(replace(served, phase=Phase.VERIFYING), lc.CheckAsked(), served, lc.gate(served))
    assert pod.board.publish["outcome"] == "disabled"
    assert "known to be bad" in pod.board.publish["sentence"]
