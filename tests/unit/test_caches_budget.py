"""Claims about how much a restore may lay down: by disk, by size limit, by memory; on a real tmpfs where root may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.caches.budget import MEMORY_SPARE, budget, fitting, memory_left, used_bytes
from tests.fakes.live_cache import put

MB = 1_000_000


def disk(tmp_path: Path, kind: str, options: str) -> Path:
    """Write a mountinfo in which everything lies on one filesystem."""
    return put(tmp_path / "mountinfo", f"1 0 0:1 / / rw - {kind} x {options}\n")


def free(size: int) -> object:
    return lambda _path: size


@pytest.mark.parametrize(
    ("sizes", "room", "left_out"),
    [
        ({"a": 5, "b": 300, "c": 20}, 325, ()),
        ({"a": 5, "b": 300, "c": 20}, 324, ("b",)),
        ({"a": 5, "b": 300, "c": 20}, 24, ("b", "c")),
        ({"a": 5, "b": 300, "c": 20}, 4, ("b", "c", "a")),
        ({"b": 7, "a": 7}, 7, ("a",)),
        ({}, 0, ()),
    ],
)
def test_the_largest_families_are_left_out_until_the_rest_fits(
    sizes: dict[str, int], room: int, left_out: tuple[str, ...]
) -> None:
    assert fitting(sizes, room) == left_out
    assert sum(size for name, size in sizes.items() if name not in left_out) <= room or set(left_out) == set(sizes)


@pytest.mark.parametrize(
    ("free_mb", "limit_mb", "expected", "why"),
    [
        (500, 0, 500, "free on its volume"),
        (500, 200, 200, "volume's size limit"),
        (100, 200, 100, "free on its volume"),
    ],
)
def test_the_least_of_disk_and_size_limit_counts(
    tmp_path: Path, free_mb: int, limit_mb: int, expected: int, why: str
) -> None:
    live = tmp_path / "live"
    found = budget(live, limit_mb * MB, lambda _path: free_mb * MB, mountinfo=disk(tmp_path, "ext4", "rw"))
    assert found.bytes == expected * MB
    assert why in found.why


def test_what_lies_in_the_live_cache_already_counts_against_the_size_limit(tmp_path: Path) -> None:
    put(tmp_path / "live/triton/K/k.cubin", os.urandom(3 * MB))
    os.link(tmp_path / "live/triton/K/k.cubin", tmp_path / "live/triton/K/again.cubin")
    used = used_bytes(tmp_path / "live")
    assert 3 * MB <= used < 4 * MB
    info = disk(tmp_path, "ext4", "rw")
    assert budget(tmp_path / "live", 10 * MB, lambda _path: 10**12, mountinfo=info).bytes == 10 * MB - used
    assert budget(tmp_path / "live", 1 * MB, lambda _path: 10**12, mountinfo=info).bytes == 0


def test_files_in_memory_count_against_the_sidecars_own_limit(tmp_path: Path) -> None:
    sized = disk(tmp_path, "tmpfs", "rw,size=8388608k")
    found = budget(tmp_path, 0, lambda _path: 8 * 2**30, lambda: MEMORY_SPARE + 50 * MB, sized)
    assert (found.bytes, "memory limit" in found.why) == (50 * MB, True)
    on_disk = budget(tmp_path, 0, lambda _path: 8 * 2**30, lambda: 0, disk(tmp_path, "xfs", "rw"))
    assert on_disk.bytes == 8 * 2**30


def test_nothing_is_laid_into_memory_that_nobody_has_limited(tmp_path: Path) -> None:
    unsized = disk(tmp_path, "tmpfs", "rw,inode64")
    found = budget(tmp_path, 0, lambda _path: 2**40, lambda: None, unsized)
    assert (found.bytes, "without a size limit" in found.why) == (0, True)
    assert budget(tmp_path, 9 * MB, lambda _path: 2**40, lambda: None, unsized).bytes > 0
    assert budget(tmp_path, 0, lambda _path: 2**40, lambda: MEMORY_SPARE + MB, unsized).bytes == MB
    assert (
        budget(tmp_path, 0, lambda _path: 7 * MB, lambda: None, disk(tmp_path, "tmpfs", "rw,size=9m")).bytes == 7 * MB
    )


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """Mount a memory-backed volume of 4 MiB, as the kubelet does for an emptyDir with medium Memory."""
    place = tmp_path / "memory"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "test", str(place)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only root with CAP_SYS_ADMIN can mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def test_a_memory_backed_volume_has_its_size_for_a_budget_and_nothing_when_it_is_full(tmpfs: Path) -> None:
    assert budget(tmpfs, 0, free_bytes, lambda: None).bytes == 4 * 2**20
    put(tmpfs / "left-by-a-crash", bytes(4 * 2**20))
    assert budget(tmpfs, 0, free_bytes, lambda: None).bytes == 0


V1 = "9:memory:/pod/own\n8:pids:/\n"


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/\n", {"memory.max": "268435456", "memory.current": "100000000", "memory.stat": "anon 5\ninactive_file 30000000\n"},
         268435456 - 70000000),
        ("0::/\n", {"memory.max": "max", "memory.current": "1", "memory.stat": ""}, None),
        ("0::/kube/x\n", {"kube/x/memory.max": "1000", "kube/x/memory.current": "10", "kube/x/memory.stat": ""}, 990),
        (V1, {"memory/pod/own/memory.limit_in_bytes": "1000", "memory/pod/own/memory.usage_in_bytes": "400",
              "memory/pod/own/memory.stat": "total_inactive_file 100\n"}, 700),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "4",
              "memory/memory.stat": ""}, None),
        ("0::/\n", {"memory.max": "garbage", "memory.current": "", "memory.stat": ""}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_the_memory_that_this_container_may_still_take_is_read_from_its_cgroup(
    tmp_path: Path, own: str, files: dict[str, str], left: int | None
) -> None:
    for name, text in files.items():
        put(tmp_path / "cgroup" / name, text)
    put(tmp_path / "own", own)
    assert memory_left(tmp_path / "cgroup", tmp_path / "own") == left
    assert memory_left(tmp_path / "cgroup", tmp_path / "absent") in (left, None)
