"""What one restore without the launcher leaves for the next daemon of the pod, and what is not believed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import lifecycle as lc
from sidecar.caches.client import Claim, CommitEntry, RestoreResult
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot
from sidecar.supervisor import handover

BOOT = "5b1e"
RESULT = RestoreResult(
    outcome="hit",
    sentence="3 files were laid down.",
    toolchain_key="aa",
    generation="00000001-bb",
    generations={"toolchain": "00000001-bb"},
    files=3,
    commit=(CommitEntry(family="triton", staged="/live/.staging/x", live="/live/triton"),),
    clear=("/live/inductor",),
    claims=(Claim(scope="toolchain", key="aa", what="00000001-bb", epoch=1, holder="pod-a"),),
)


def test_the_next_daemon_reads_what_was_restored_and_nothing_that_is_still_to_be_done(tmp_path: Path):
    handover.leave(tmp_path, BOOT, RESULT)
    found = handover.left(tmp_path, BOOT)
    assert found is not None
    assert (found.outcome, found.generation, found.files) == ("hit", "00000001-bb", 3)
    assert (found.commit, found.clear, found.claims) == ((), (), ())
    assert handover.released(tmp_path, BOOT)


def test_nothing_is_believed_after_a_restart_of_the_node(tmp_path: Path):
    handover.leave(tmp_path, BOOT, RESULT)
    assert handover.left(tmp_path, "another") is None
    assert not handover.released(tmp_path, "another")


def test_a_restore_that_was_given_up_leaves_no_older_ones_result(tmp_path: Path):
    handover.leave(tmp_path, BOOT, RESULT)
    handover.leave(tmp_path, BOOT, None)
    assert handover.left(tmp_path, BOOT) is None
    assert handover.released(tmp_path, BOOT)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "host_boot": "5b1e", "result": 7}',
        '{"format": 1, "host_boot": "5b1e"}',
    ],
)
def test_garbage_is_as_good_as_nothing(tmp_path: Path, content: str):
    (tmp_path / "restored.json").write_text(content)
    assert handover.left(tmp_path, BOOT) is None


def test_a_daemon_before_which_was_restored_waits_for_the_engine_and_remembers_the_generation():
    started = lc.Started(engine_runs=True, restore="hit", generation="g")
    after, commands = lc.step(Snapshot(Mode.BESIDE), started, Policy("serve", ("hold",)))
    assert (after.phase, after.restore, after.generation, commands) == (Phase.AWAITING_ENGINE, "hit", "g", ())
