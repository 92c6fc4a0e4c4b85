"""A KV cache that is smaller than in earlier boots of the key is told, and by policy given back by one restart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.client import PublishResult, RecordRequest
from sidecar.errors import EngineError
from sidecar.lifecycle import Mode
from sidecar.supervisor import history, renewal, room
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.room import Compared, Room, compared, room_of
from tests.unit.supervised import ATTEMPT, Metered, make_pod, restored, told
from tests.unit.warmup_engine import FACTS

WARM = {"outcome": "ready", "kv_blocks": 5000, "kv_tokens": 80_000, "attempt": "other"}


def test_the_room_is_taken_from_whatever_the_engine_tells() -> None:
    assert room_of(FACTS) == Room(4096, 65_536)
    assert room_of(replace(FACTS, kv_tokens=60_000)) == Room(4096, 60_000)
    assert room_of(replace(FACTS, kv_blocks=None, kv_tokens=60_000)) == Room(0, 60_000)
    assert room_of(replace(FACTS, kv_blocks=None)) is None


def test_a_smaller_cache_than_in_earlier_boots_is_told_with_its_share_and_the_likely_cause() -> None:
    records = [WARM, {**WARM, "kv_blocks": 4000, "kv_tokens": 64_000}, {**WARM, "kv_blocks": 4900}]
    found = compared(Room(4100, 65_600), True, records, "mine")
    assert found.smaller
    assert found.sentence == (
        "KV cache 65,600 tokens, 18 % smaller than the best of 3 earlier boots of this key: a cold boot left less GPU memory, "
        "because compiling is measured as need."
    )
    assert "something else holds GPU memory" in compared(Room(4100, 65_600), False, records, "mine").sentence


def test_as_much_as_before_is_no_finding() -> None:
    found = compared(Room(4950, 79_200), True, [WARM], "mine")
    assert not found.smaller
    assert "as much as in the one earlier boot" in found.sentence
    assert compared(Room(6000, 96_000), True, [WARM], "mine").shortfall == 0.0


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kv_blocks": "5000"},
        {"kv_blocks": -1},
        {"kv_blocks": True},
        {"kv_blocks": 1 << 60},
        {**WARM, "attempt": "mine"},
    ],
)
def test_records_that_say_nothing_and_this_boots_own_are_passed_over(record: dict[str, Any]) -> None:
    assert compared(Room(4100, 65_600), True, [record], "mine").shortfall is None


def test_blocks_are_not_compared_with_tokens() -> None:
    assert compared(Room(0, 65_600), True, [{"kv_blocks": 10}], "mine").shortfall is None


@pytest.mark.parametrize(
    ("outcome", "fields", "cold"),
    [
        ("miss", {}, True),
        ("failed", {}, True),
        ("timed_out", {}, True),
        ("disabled", {}, True),
        ("partial", {"generations": {"toolchain": "g"}}, True),
        ("partial", {"generations": {"exact": "g"}}, False),
        ("hit", {"generations": {"exact": "g"}}, False),
        ("kept", {}, False),
        ("skipped", {}, False),
    ],
)
def test_cold_is_a_start_without_anything_compiled_for_exactly_this_engine(
    tmp_path: Path, outcome: str, fields: dict[str, Any], cold: bool
) -> None:
    pod = make_pod(tmp_path)
    restored(pod, outcome, **fields)
    assert room.started_cold(pod) is cold
    pod.board.restore = {"outcome": "late"}
    assert room.started_cold(pod)


def records(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in root.glob("store/v1/exact/*/boots/*.made.*.json")]


async def _record(pod: Pod, name: str, record: dict[str, Any]) -> None:
    request = RecordRequest(
        store=pod.store, scope="exact", key="e" * 16, generation="g", kind="boot", name=name, record=record
    )
    assert await pod.caches.record(request, 30) == ""


async def test_what_earlier_boots_had_is_read_from_the_store_and_this_boot_is_added(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    restored(pod, "miss")
    await _record(pod, "g.ready.a-1", WARM)
    await room.compare(pod, FACTS, history.read(pod))
    shown = pod.board.engine["kv_cache"]
    assert (shown["tokens"], shown["earlier_boots"], shown["shortfall"]) == (65_536, 1, 0.1808)
    assert "18 % smaller than the one earlier boot" in told(pod)
    assert pod.metrics.value("engine_kv_cache_tokens") == 65_536
    assert pod.metrics.value("engine_kv_cache_shortfall_ratio") == pytest.approx(0.1808)
    await room.record(pod, "00000001-0000000000000000")
    written = records(tmp_path)
    assert [(each["kv_blocks"], each["kv_tokens"], each["cold"]) for each in written] == [(4096, 65_536, True)]


async def test_a_boot_that_made_a_generation_is_no_proof_of_it(tmp_path: Path) -> None:
    from sidecar.caches.store import open_store

    pod = make_pod(tmp_path)
    restored(pod, "miss")
    await room.compare(pod, FACTS, history.read(pod))
    await room.record(pod, "00000001-0123456789abcdef")
    assert not open_store(pod.store, "read-only", lambda _: None).boot_ends("exact", "e" * 16)


async def test_a_store_that_is_away_costs_the_comparison_only(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    restored(pod, "miss")
    pod.store = str(tmp_path / "nowhere")
    await room.compare(pod, FACTS, history.read(pod))
    assert "no earlier boot of this key" in pod.board.engine["kv_cache"]["sentence"]


# --- the restart after a cold boot


class Publishing:
    """Stands for the cache worker: says how a publish ended, and counts."""

    def __init__(self, outcome: str = "published") -> None:
        self.outcome, self.published, self.records = outcome, 0, 0

    async def publish(self, request: object, deadline_s: float) -> PublishResult:
        self.published += 1
        return PublishResult(outcome=self.outcome, sentence="The disk is full.", generations={"exact": "g"})  # type: ignore[arg-type]

    async def record(self, request: object, deadline_s: float) -> str:
        self.records += 1
        return ""


def cold_pod(root: Path, mode: Mode = Mode.LAUNCHER, publishing: Publishing | None = None, **settings: Any) -> Pod:
    """Make a pod whose engine has compiled in a cold start and is good."""
    pod = make_pod(root, Metered(running=0.0, waiting=0.0), mode, **{"restart_after_cold": "once", **settings})
    restored(pod, "miss")
    pod.caches = publishing or Publishing()  # type: ignore[assignment]
    pod.room = Compared(Room(4096, 65_536), cold=True)
    pod.kernels_before = {"triton": 3}
    return pod


async def test_a_cold_engine_is_restarted_once_after_its_caches_were_published(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    assert "started cold" in await renewal.reason(pod)
    assert (pod.caches.published, pod.caches.records) == (1, 1)  # type: ignore[attr-defined]
    assert await renewal.reason(pod) == ""
    assert pod.caches.published == 1  # type: ignore[attr-defined]
    assert "started cold again" in told(pod)


async def test_the_restart_is_remembered_by_the_next_daemon_of_the_pod(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    assert await renewal.reason(pod)
    assert pod.control is not None
    pod.control.close()
    assert await renewal.reason(cold_pod(tmp_path)) == ""


async def test_by_default_nothing_is_restarted(tmp_path: Path) -> None:
    assert await renewal.reason(cold_pod(tmp_path, restart_after_cold="never")) == ""


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "read_only", "disabled"])
async def test_caches_that_are_not_in_the_store_keep_the_engine_running(tmp_path: Path, outcome: str) -> None:
    pod = cold_pod(tmp_path, publishing=Publishing(outcome))
    assert await renewal.reason(pod) == ""
    assert "not published: The disk is full." in told(pod)
    assert pod.control is not None
    assert not pod.control.was_renewed("e" * 16)


async def test_an_engine_with_requests_of_others_is_not_restarted(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    pod.engine = Metered(running=1.0, waiting=0.0)  # type: ignore[assignment]
    assert await renewal.reason(pod) == ""
    assert "requests run that are not the sidecar's" in told(pod)


async def test_an_engine_whose_load_cannot_be_seen_is_not_restarted(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    pod.engine.error = EngineError("no answer")  # type: ignore[attr-defined]
    assert await renewal.reason(pod) == ""


async def test_an_engine_that_was_ready_before_is_never_restarted(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    pod.board.engine = {"ready_after_s": 12.0}
    assert await renewal.reason(pod) == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: setattr(pod, "room", replace(pod.room, cold=False)),
        lambda pod: setattr(pod, "room", None),
        lambda pod: setattr(pod, "room", replace(pod.room, earlier=2, best=Room(4096, 1), shortfall=0.01)),
        lambda pod: setattr(pod, "kernels_before", {}),
        lambda pod: setattr(pod, "facts", {"argv": ["vllm", "serve", "--num-gpu-blocks-override=100"]}),
        lambda pod: setattr(pod, "facts", {"argv": ["vllm", "serve", "--num_gpu_blocks_override", "100"]}),
        lambda pod: setattr(pod, "facts", {"argv": ["sh", "-c", "exec vllm serve m --kv-cache-memory-bytes 9"]}),
    ],
    ids=["warm", "unknown", "as large as before", "compiled nothing", "fixed size", "underscores", "in a shell"],
)
async def test_a_restart_that_gives_nothing_back_is_not_made(tmp_path: Path, change: Any) -> None:
    pod = cold_pod(tmp_path)
    change(pod)
    assert await renewal.reason(pod) == ""
    assert pod.caches.published == 0  # type: ignore[attr-defined]


async def test_without_the_launcher_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path, Mode.BESIDE)
    assert await renewal.reason(pod) == ""
    assert "end the engine's container once" in told(pod)
    assert "end the engine's container once" in pod.board.engine["kv_cache"]["restart"]


async def test_a_restart_that_cannot_be_remembered_is_not_made(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    (tmp_path / "control" / "renewed.json").mkdir()
    assert await renewal.reason(pod) == ""
    assert "can't be remembered" in told(pod)


async def test_a_restart_of_another_model_in_the_same_place_is_another_one(tmp_path: Path) -> None:
    pod = cold_pod(tmp_path)
    assert pod.control is not None
    pod.control.note_renewed("another key", ATTEMPT)
    assert await renewal.reason(pod)
    assert pod.control.was_renewed("another key")
