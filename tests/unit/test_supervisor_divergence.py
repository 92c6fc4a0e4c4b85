"""An engine of several ranks that hangs on tactics which were there before it is started once more without them; no other is."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from sidecar import lifecycle as lc
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot
from sidecar.supervisor import divergence, restoring
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.progress import ProgressWatch
from sidecar.warmup.tree_watch import TreeWatch
from tests.fakes.live_cache import put
from tests.unit.supervised import make_pod, told

BUSY = {"gpus": [{"utilization_ratio": 1.0, "memory_used_bytes": 60 << 30}]}
TWO_RANKS = {"argv": ["vllm", "serve", "/models/q", "--tensor-parallel-size", "2"]}
STARTED = 1_800_000_000.0


def hanging(root: Path, phase: Phase = Phase.AWAITING_ENGINE, files: str = "older", **facts: Any) -> Pod:
    """Make a pod whose engine starts on tactics that were there before, or that it writes just now."""
    pod = make_pod(root)
    pod.board.enter(phase)
    pod.board.engine = {**pod.board.engine, "attempt": "a"}
    pod.board.gpu = BUSY
    pod.facts, pod.opened_wall = {**TWO_RANKS, **facts}, STARTED
    if files:
        place = put(Path(pod.live_cache, "flashinfer_autotune/0.6/90a/autotune_configs_dp0_rank0.json"), b"{}")
        at = STARTED + (-3600 if files == "older" else 5)
        os.utime(place, (at, at))
    return pod


async def looked(pod: Pod, *times: float) -> list[lc.Event]:
    posted: list[lc.Event] = []
    watch = ProgressWatch(pod, 120, posted.append)
    for at in times:
        await watch.look(at)
    return posted


async def test_ranks_that_wait_for_each_other_on_restored_tactics_are_started_again_once(tmp_path: Path) -> None:
    pod = hanging(tmp_path)
    assert await looked(pod, 10, 800) == []
    [stuck] = await looked(pod, 10, 911, 2000, 4000)
    assert isinstance(stuck, lc.StartStuck)
    assert stuck.attempt == "a"
    assert "possible autotune divergence" in told(pod)
    assert "started once more without flashinfer_autotune" in told(pod)
    assert pod.left_alone() == ("flashinfer_autotune",), "it is neither restored nor published any more"
    request = restoring._request(pod, lc.Restore(1, "b", "keep"))
    assert request.distrusted == request.exclude == ("flashinfer_autotune",)


async def test_an_engine_whose_files_can_not_be_looked_at_is_not_ended_for_writing_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, posted, answers = hanging(tmp_path), list[lc.Event](), threading.Event()
    watch = ProgressWatch(pod, 120, posted.append)
    await watch.look(10)
    with monkeypatch.context() as hung:
        hung.setattr(watch._looking, "_deadline_s", 0.01)
        hung.setattr(TreeWatch, "look", lambda self, thorough: answers.wait(30) and ({}, {}))
        await watch.look(1000)
        assert "No forward progress" in told(pod)
        assert posted == []
        answers.set()
    await watch.look(1005)
    assert [type(each) for each in posted] == [lc.StartStuck]


def test_the_patience_ends_before_the_engines_own(tmp_path: Path) -> None:
    assert divergence.PATIENCE_S < 1800


ONE_RANK = {"argv": ["vllm", "serve", "/models/q"]}
OTHERS: dict[str, dict[str, Any]] = {
    "of one rank": ONE_RANK,
    "without such files": {"files": ""},
    "that wrote them itself": {"files": "own"},
    "that was ready before": {"phase": Phase.WARMING},
}


@pytest.mark.parametrize("engine", OTHERS)
async def test_an_engine_that_can_not_hang_on_them_is_told_and_left_alone(tmp_path: Path, engine: str) -> None:
    pod = hanging(tmp_path, **OTHERS[engine])
    assert await looked(pod, 10, 2000) == []
    assert "No forward progress" in told(pod)
    assert pod.distrusted == ()


def step(s: Snapshot, event: lc.Event) -> tuple[Snapshot, tuple[lc.Command, ...]]:
    return lc.step(s, event, Policy())


STUCK = lc.StartStuck("a", "it hangs.")


@pytest.mark.parametrize("mode", [Mode.LAUNCHER, Mode.CHILD])
def test_the_next_start_keeps_what_was_compiled_and_counts_no_death(mode: Mode) -> None:
    s, commands = step(
        Snapshot(mode, phase=Phase.AWAITING_ENGINE, attempt="a", had_attempt=True, generation="g"), STUCK
    )
    assert commands == (lc.RestartEngine("a", "it hangs."),)
    s, _ = step(s, lc.AttemptClosed("a", "it was restarted.", counts=False, restarting=True))
    s, commands = step(s, lc.AttemptOpened("b"))
    assert [command.plan for command in commands if isinstance(command, lc.Restore)] == ["keep"]
    assert s.deaths == 0


@pytest.mark.parametrize(
    "changes", [{"served": True}, {"attempt": "b"}, {"mode": Mode.BESIDE}, {"phase": Phase.READY}, {"adopting": True}]
)
def test_an_engine_that_had_traffic_or_is_another_one_is_not_restarted(changes: dict[str, Any]) -> None:
    values = {"mode": Mode.LAUNCHER, "phase": Phase.AWAITING_ENGINE, "attempt": "a", "had_attempt": True, **changes}
    before = Snapshot(**values)
    assert step(before, STUCK) == (before, ())
