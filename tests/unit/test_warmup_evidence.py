"""What counts as compiled: new and rebuilt kernels in real directories, and log lines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sidecar.caches.families import stored_families
from sidecar.warmup.evidence import EvidenceWatcher


def _put(root: Path, path: str, content: bytes = b"x") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """Give a live cache with a kernel in it."""
    _put(tmp_path, "triton/AAAA/kernel.cubin")
    return tmp_path


def _watcher(live: Path, lines: list[str] | None = None) -> EvidenceWatcher:
    return EvidenceWatcher(live, stored_families(), lambda: len(lines or []))


async def test_what_was_there_before_is_no_evidence(live):
    watcher = _watcher(live)
    assert not (await watcher.baseline()).empty
    assert not await watcher.collect()


async def test_new_kernels_are_counted_by_family_and_apart_from_other_files(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    _put(live, "triton/BBBB/kernel.json")
    _put(live, "deep_gemm/cache/kernel.gemm.1/kernel.cu")
    _put(live, "deep_gemm/cache/kernel.gemm.1/kernel.cubin")
    found = await watcher.collect()
    assert found.kernels == {"triton": 1, "deep_gemm": 1}
    assert found.files == {"triton": 1, "deep_gemm": 1}
    assert set(found.names) == {"triton/BBBB/kernel.cubin", "deep_gemm/cache/kernel.gemm.1/kernel.cubin"}
    assert found.compiled == 2


async def test_evidence_is_told_once(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    assert await watcher.collect()
    assert not await watcher.collect()


async def test_a_rebuilt_kernel_is_evidence(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/AAAA/kernel.cubin", b"longer than before")
    assert (await watcher.collect()).kernels == {"triton": 1}


async def test_files_that_are_no_kernels_are_no_evidence(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/AAAA/kernel.json")
    _put(live, "inductor/locks/x.lock")
    found = await watcher.collect()
    assert not found
    assert found.files == {"triton": 1}


async def test_log_lines_about_compiling_are_evidence_where_no_file_can_be_seen(live):
    lines: list[str] = []
    shutil.rmtree(live)
    watcher = _watcher(live, lines)
    lines.append("before the baseline")
    await watcher.baseline()
    lines += ["Triton kernel JIT compilation during inference: a", "the same: b"]
    found = await watcher.collect()
    assert (found.compiled, found.kernels) == (2, {})
    assert not await watcher.collect()


async def test_a_line_without_a_file_beside_files_that_can_be_seen_is_a_kernel_loaded_from_disk(live):
    lines: list[str] = []
    _put(live, "triton/K/k.cubin")
    watcher = _watcher(live, lines)
    await watcher.baseline()
    lines.append("Triton kernel JIT compilation during inference: a")
    found = await watcher.collect()
    assert (found.compiled, found.loaded) == (0, True)


async def test_a_line_and_a_file_of_one_kernel_count_once(live):
    lines: list[str] = []
    watcher = _watcher(live, lines)
    await watcher.baseline()
    lines.append("Triton kernel JIT compilation during inference: a")
    _put(live, "triton/BBBB/kernel.cubin")
    assert (await watcher.collect()).compiled == 1


@pytest.mark.parametrize("missing", [True, False])
async def test_a_live_cache_with_nothing_in_it_is_said_to_be_empty(tmp_path, missing):
    watcher = _watcher(tmp_path / "absent" if missing else tmp_path)
    assert (await watcher.baseline()).empty
    assert (await watcher.collect()).empty


async def test_a_cache_that_cannot_be_read_is_said_so_and_nothing_is_lost(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    # A link to itself can't be read by anybody, not even by root.
    (live / "triton").rename(live / "elsewhere")
    (live / "triton").symlink_to(live / "triton")
    assert "can't be read" in (await watcher.collect()).blind
    (live / "triton").unlink()
    (live / "elsewhere").rename(live / "triton")
    assert (await watcher.collect()).kernels == {"triton": 1}
