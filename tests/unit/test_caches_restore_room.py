"""Claims about a restore for which not all has room: what stays out, that it is told, and that nothing is exceeded."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.budget import MEMORY_SPARE, used_bytes
from sidecar.caches.commit import commit
from sidecar.caches.messages import Progress, PublishRequest, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import SPARE_BYTES, RestoreTools, restore
from tests.fakes import live_cache as fake

MIB = 2**20
#: Families of the store, largest first: 6, 3 and 1 MiB.
SIZES = {"vllm_compile": 6, "deep_gemm": 3, "triton": 1}


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "live"


@pytest.fixture
def store(tmp_path: Path, live: Path) -> Path:
    fake.put(live / "vllm/torch_compile_cache/torch_aot_compile/abc/rank_0_0/model", os.urandom(6 * MIB))
    fake.deep_gemm_kernel(live, "big", os.urandom(3 * MIB))
    fake.triton_kernel(live, "K", os.urandom(MIB))
    (tmp_path / "store").mkdir()
    request = PublishRequest(
        store=str(tmp_path / "store"), live_cache=str(live), facts=fake.facts(), attempt="p", settle_s=0
    )
    tools = PublishTools(clock=time.monotonic, now=lambda: time.time() + 60, sleep=time.sleep)
    assert publish(request, tools).outcome == "published"
    shutil.rmtree(live)
    live.mkdir()
    return tmp_path / "store"


def restored(store: Path, live: Path, limit_bytes: int = 0, **tools: Any) -> tuple[RestoreResult, int]:
    """Restore and commit; give the result and the most that ever lay in the live cache."""
    peak = 0

    def look(_told: object) -> None:
        nonlocal peak
        peak = max(peak, used_bytes(live))

    hands = RestoreTools(clock=time.monotonic, sleep=lambda _s: None, on_progress=look, checkpoint=look, **tools)
    request = RestoreRequest(
        store=str(store), live_cache=str(live), facts=fake.facts(), attempt="1", limit_bytes=limit_bytes
    )
    result = restore(request, hands)
    look(Progress(bytes_done=0, bytes_total=0, files_done=0))
    commit(live, result.commit, result.clear)
    return result, peak


@pytest.mark.parametrize(
    ("room_mib", "families"),
    [
        (12, {"vllm_compile", "deep_gemm", "triton"}),
        (9, {"deep_gemm", "triton"}),
        (3, {"triton"}),
    ],
)
def test_a_size_limit_is_never_exceeded_and_the_largest_families_stay_out(
    store: Path, live: Path, room_mib: int, families: set[str]
) -> None:
    limit = SPARE_BYTES + room_mib * MIB
    result, peak = restored(store, live, limit)
    assert set(result.families) == families
    assert result.outcome == ("hit" if len(families) == 3 else "partial")
    assert peak <= limit - SPARE_BYTES
    for name in SIZES.keys() - families:
        assert f"{name} (" in result.sentence
        assert "left of its volume's size limit; give its volume more room." in result.sentence
    assert result.rejected.get("no_space", 0) == sum({"vllm_compile": 1, "deep_gemm": 2, "triton": 3}[name]
                                                     for name in SIZES.keys() - families)  # fmt: skip


def test_a_limit_below_everything_leaves_the_live_cache_empty_and_says_how_much_it_takes(
    store: Path, live: Path
) -> None:
    result, _ = restored(store, live, MIB)
    assert (result.outcome, result.families) == ("failed", {})
    assert "The restore needs 28 MB, and the live cache" in result.sentence
    assert [path for path in live.rglob("*") if path.is_file()] == []


def test_a_memory_backed_volume_is_filled_no_further_than_its_size(tmpfs: Path, store: Path) -> None:
    result, peak = restored(store, tmpfs, memory=lambda: None)
    assert (set(result.families), result.outcome) == ({"deep_gemm", "triton"}, "partial")
    assert "free on its volume" in result.sentence
    assert peak <= 5 * MIB
    assert (tmpfs / "triton/K/k.cubin").stat().st_size > MIB


def test_a_memory_backed_volume_at_its_end_costs_the_restore_and_nothing_else(tmpfs: Path, store: Path) -> None:
    fake.put(tmpfs / "left-by-a-crash", bytes(SPARE_BYTES + 5 * MIB - 65536))
    result, _ = restored(store, tmpfs, memory=lambda: None)
    assert (result.outcome, result.families) == ("failed", {})
    assert "give its volume more room. The engine starts cold." in result.sentence


def test_memory_of_the_sidecar_is_not_overdrawn_where_the_live_cache_lies_in_memory(tmpfs: Path, store: Path) -> None:
    left = MEMORY_SPARE + SPARE_BYTES + 2 * MIB
    result, peak = restored(store, tmpfs, memory=lambda: left)
    assert set(result.families) == {"triton"}
    assert "left of the sidecar's memory limit" in result.sentence
    assert peak <= 2 * MIB


@pytest.fixture
def tmpfs(store: Path, live: Path) -> Iterator[Path]:
    """Mount a memory-backed volume with room for 5 MiB, as the kubelet does for an emptyDir with medium Memory."""
    assert store.is_dir(), "published from a live cache of the same path, before the volume lies on it"
    size = SPARE_BYTES + 5 * MIB
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "test", str(live)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root with CAP_SYS_ADMIN can mount a tmpfs")
    yield live
    subprocess.run(["umount", "-l", str(live)], check=True)
