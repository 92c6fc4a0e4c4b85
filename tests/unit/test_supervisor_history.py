"""Earlier starts as the store's records tell them: what is shown, what is passed over, and what a store that is away costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.client import RecordRequest
from sidecar.supervisor import history, room
from tests.unit.supervised import ATTEMPT, make_pod, restored
from tests.unit.warmup_engine import FACTS

FIVE, SIX = "00000005-5f1c9e2d5f1c9e2d", "00000006-5f1c9e2d5f1c9e2d"


def record(generation: str, outcome: str, **more: Any) -> dict[str, Any]:
    return {"generation": generation, "outcome": outcome, "attempt": "other", **more}


def test_starts_come_by_generation_and_time() -> None:
    found = history.starts(
        [
            record(SIX, "ready", at=30.0, ready_s=9.0),
            record(FIVE, "ready", at=20.0, ready_s=8.0, cold=False),
            record(FIVE, "made", at=10.0, ready_s=99.0, cold=True),
        ],
        "mine",
    )
    assert [(each["outcome"], each["seconds"], each["cold"]) for each in found] == [
        ("made", 99.0, True), ("ready", 8.0, False), ("ready", 9.0, None),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", ["90", -1.0, 0, True, float("inf"), float("nan"), 1e12, None, [90]])
def test_a_time_that_nobody_measured_is_not_known(odd: Any) -> None:
    found = history.starts([record(FIVE, "ready", ready_s=odd, at=odd)], "mine")
    assert found[0]["seconds"] is None


def test_this_start_and_records_of_other_kinds_are_left_out() -> None:
    assert history.starts([{**record(FIVE, "ready"), "attempt": "mine"}, record(FIVE, "lost")], "mine") == []


def test_the_newest_starts_are_kept() -> None:
    many = [record(f"{number:08d}-5f1c9e2d5f1c9e2d", "ready", ready_s=1.0) for number in range(1, 200)]
    found = history.starts(many, "mine")
    assert (len(found), found[-1]["generation"][:8]) == (history.SHOWN, "00000199")


async def test_the_next_start_reads_what_this_one_has_written(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    restored(pod, "miss")
    await room.compare(pod, FACTS, history.read(pod))
    assert pod.board.history == {"key": "e" * 16, "starts": []}
    pod.board.engine = {**pod.board.engine, "ready_after_s": 84.2}
    await room.record(pod, FIVE)
    pod.restored_attempt = "another"
    await history.read(pod)
    assert pod.board.to_json()["history"]["starts"] == [
        {"generation": FIVE, "outcome": "made", "seconds": 84.2, "cold": True, "at": 1000.0}
    ]


async def test_a_store_that_is_away_or_none_at_all_costs_the_history_only(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    assert await history.read(pod) == ()
    restored(pod, "miss")
    pod.store = str(tmp_path / "nowhere")
    assert await history.read(pod) == ()
    assert pod.board.history["starts"] == []


async def test_a_record_of_this_attempt_is_not_an_earlier_start(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    restored(pod, "hit")
    wanted = RecordRequest(
        store=pod.store, scope="exact", key="e" * 16, generation=FIVE, kind="boot",
        name=f"{FIVE}.ready.x", record=record(FIVE, "ready", ready_s=3.0) | {"attempt": ATTEMPT},
    )  # fmt: skip
    assert await pod.caches.record(wanted, 30) == ""
    assert len(await history.read(pod)) == 1
    assert pod.board.history["starts"] == []
