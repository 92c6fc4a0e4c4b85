"""Claims about scanning a live cache and telling what changed."""

from __future__ import annotations

import shutil
from pathlib import Path

from sidecar.caches import families, scan
from tests.fakes import live_cache as fake


def test_a_missing_live_cache_is_an_empty_one(tmp_path: Path) -> None:
    assert set(map(len, scan.scan_live_cache(tmp_path / "nothing").values())) == {0}


def test_new_kernels_are_told_apart_from_other_new_files(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    before = scan.scan_live_cache(tmp_path)
    fake.triton_kernel(tmp_path, "NEW")
    fake.put(tmp_path / "inductor/locks/new.lock", b"")
    found = scan.compare(before, scan.scan_live_cache(tmp_path))
    assert set(found) == {"triton"}
    assert found["triton"].new_kernels == ("NEW/k.cubin",)
    assert len(found["triton"].new) == 3
    assert found["triton"].kernels == 1


def test_a_kernel_that_was_rebuilt_in_place_counts_as_compiled(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    before = scan.scan_live_cache(tmp_path)
    module = tmp_path / "flashinfer/.cache/flashinfer/0.7.2/90a/cached_ops/batch_a/batch_a.so"
    fake.put(module, b"other library", mtime_ns=fake.OLD_NS + 1)
    found = scan.compare(before, scan.scan_live_cache(tmp_path))
    assert found["flashinfer"].kernels == 1
    assert found["flashinfer"].new == ()


def test_nothing_is_reported_when_nothing_changed(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    assert scan.compare(scan.scan_live_cache(tmp_path), scan.scan_live_cache(tmp_path)) == {}


def test_files_that_went_are_reported(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    before = scan.scan_live_cache(tmp_path)
    (tmp_path / "deep_gemm/cache/kernel.gemm.a1/kernel.cubin").unlink()
    assert scan.compare(before, scan.scan_live_cache(tmp_path))["deep_gemm"].gone == (
        "cache/kernel.gemm.a1/kernel.cubin",
    )


def test_a_family_against_its_disk_tells_the_same_as_two_scans(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    triton = families.BY_NAME["triton"]
    root = tmp_path / triton.directory
    fake.triton_kernel(tmp_path, "STAYS")
    fake.triton_kernel(tmp_path, "GOES")
    fake.triton_kernel(tmp_path, "CHANGES")
    before = scan.scan_tree(root)
    assert not scan.changes_since(triton, before, root)
    shutil.rmtree(root / "GOES")
    fake.put(root / "CHANGES/k.cubin", b"another kernel", mtime_ns=fake.OLD_NS + 1)
    fake.triton_kernel(tmp_path, "NEW")
    found = scan.changes_since(triton, before, root)
    assert found == scan.compare({"triton": before}, {"triton": scan.scan_tree(root)})["triton"]
    assert (found.new_kernels, found.changed_kernels) == (("NEW/k.cubin",), ("CHANGES/k.cubin",))
    assert "GOES/k.cubin" in found.gone


def test_a_tree_that_changes_under_the_scan_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    found = scan.scan_tree(tmp_path)
    assert found["dangling"].link == "nowhere"
    assert scan.scan_tree(tmp_path / "dangling") == {}
