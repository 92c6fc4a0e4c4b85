"""The swap of the live caches: what the sidecar decided, in whole families, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.handshake import AttemptState, CommitEntry, Decision
from tests.unit.launching import SHELL, Stage, files_in, output, write

OLD, NEW = {"k": "old", "only-old": "x"}, {"k": "new", "only-new": "y"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def ended(stage: Stage, decision: Decision, attempt: str) -> AttemptState:
    """Decide, wait for the engine's end, and give how the attempt stands."""
    assert stage.sidecar.decide(attempt, decision)
    output(stage.launched[-1])
    return stage.sidecar.state(attempt)


def begun(stage: Stage) -> str:
    """Start a launcher whose engine prints what its cache holds."""
    stage.launch(SHELL, "-c", f"cat {stage.live}/triton/k", env={"PATH": "/bin:/usr/bin"})
    return stage.waiting().attempt


def test_a_staged_family_takes_the_place_of_the_live_one_before_the_engine_starts(stage: Stage):
    write(stage.live / "triton", OLD)
    attempt = begun(stage)
    entries = (stage.staged(attempt, "triton", NEW), stage.staged(attempt, "vllm/torch_compile_cache", NEW))
    state = ended(stage, Decision("hit", entries), attempt)
    assert files_in(stage.live / "triton") == NEW
    assert files_in(stage.live / "vllm" / "torch_compile_cache") == NEW
    assert state.exited is not None
    assert state.exited.last_lines == ("new",)
    assert state.started is not None
    assert (state.started.by, state.started.committed) == ("sidecar", ("triton", "vllm/torch_compile_cache"))
    assert not (stage.live / ".trash").exists()
    assert files_in(stage.live / ".staging") == {}


def test_families_to_clear_are_empty_and_the_others_stay(stage: Stage):
    for family in ("triton", "inductor", "deep_gemm"):
        write(stage.live / family, OLD)
    attempt = begun(stage)
    ended(stage, Decision("miss", clear=(f"{stage.live}/inductor", f"{stage.live}/not_there")), attempt)
    assert files_in(stage.live / "inductor") == {}
    assert files_in(stage.live / "triton") == files_in(stage.live / "deep_gemm") == OLD


def test_a_launcher_that_decided_itself_swaps_nothing(stage: Stage):
    write(stage.live / "triton", OLD)
    stage.launch("/bin/true", env={"WARMUP_LAUNCHER_WAIT_S": "0.3"})
    attempt = stage.waiting().attempt
    entry = stage.staged(attempt, "triton", NEW)
    output(stage.launched[-1])
    assert stage.sidecar.decide(attempt, Decision("hit", (entry,))) is False
    assert files_in(stage.live / "triton") == OLD


def test_what_was_not_staged_for_this_attempt_leaves_the_family_empty(stage: Stage):
    attempt = begun(stage)
    others = stage.staged("1-1-00000000", "triton", NEW)
    for family in ("triton", "inductor", "deep_gemm"):
        write(stage.live / family, OLD)
    link = stage.live / ".staging" / attempt / "inductor"
    link.parent.mkdir(parents=True)
    link.symlink_to(stage.root)
    missing = CommitEntry("deep_gemm", f"{stage.live}/.staging/{attempt}/deep_gemm", f"{stage.live}/deep_gemm")
    linked = CommitEntry("inductor", str(link), f"{stage.live}/inductor")
    state = ended(stage, Decision("hit", (others, linked, missing)), attempt)
    assert state.started is not None
    assert set(state.started.failed) == {"triton", "inductor", "deep_gemm"}
    assert state.started.committed == ()
    for family in ("triton", "inductor", "deep_gemm"):
        assert files_in(stage.live / family) == {}


@pytest.mark.parametrize("where", ["{root}/outside", "{live}/../outside", "{live}", "relative", "{live}/triton/../.."])
def test_nothing_outside_the_live_cache_is_touched(stage: Stage, where: str):
    write(stage.root / "outside", OLD)
    write(stage.live / "triton", OLD)
    attempt = begun(stage)
    live = where.format(root=stage.root, live=stage.live)
    entry = CommitEntry("x", stage.staged(attempt, "x", NEW).staged, live)
    state = ended(stage, Decision("hit", (entry,), clear=(live,)), attempt)
    assert files_in(stage.root / "outside") == OLD
    assert files_in(stage.live / "triton") == OLD
    assert state.exited is not None
    assert state.exited.code == 0


def test_garbage_in_a_decision_asks_for_nothing_and_the_engine_starts(stage: Stage):
    write(stage.live / "triton", OLD)
    attempt = begun(stage)
    decision = stage.control / "attempts" / attempt / "decision.json"
    finished = decision.with_name("finished")
    finished.write_text('{"by": "sidecar", "commit": [1, {"family": 3}], "clear": "all", "append": [7], "unset": null}')
    os.link(finished, decision)
    out, _ = output(stage.launched[-1])
    assert out == b"old"


def test_a_family_that_is_a_mount_point_is_emptied_instead(stage: Stage):
    write(stage.live / "triton", {})
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(stage.live / "triton")], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        write(stage.live / "triton", OLD)
        attempt = begun(stage)
        state = ended(stage, Decision("hit", (stage.staged(attempt, "triton", NEW),)), attempt)
        assert state.started is not None
        assert "triton" in state.started.failed
        assert files_in(stage.live / "triton") == {}
    finally:
        subprocess.run(["umount", str(stage.live / "triton")], check=True)


@pytest.mark.parametrize(
    "second",
    [("-o", "remount,ro", "{live}"), ("-t", "tmpfs", "none", "{live}/inner")],
    ids=["read-only", "a mount inside"],
)
def test_a_family_that_cant_even_be_emptied_is_not_used(stage: Stage, second: tuple[str, ...]):
    live = stage.live / "triton"
    write(live, {})
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(live)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        write(live, OLD)
        (live / "inner").mkdir()
        subprocess.run(["mount", *(word.format(live=live) for word in second)], check=True)
        stage.launch(SHELL, "-c", 'echo "[$TRITON_CACHE_DIR]"')
        attempt = stage.waiting().attempt
        assert stage.sidecar.decide(attempt, Decision("hit", clear=(str(live),)))
        assert output(stage.launched[-1])[0] == b"[]\n"
    finally:
        subprocess.run(["umount", str(live / "inner")], capture_output=True)
        subprocess.run(["umount", str(live)], check=True)
