"""Claims about the live cache as a place."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sidecar.caches import live_cache
from sidecar.errors import LiveCacheUnusable
from tests.fakes.live_cache import put


def test_a_second_daemon_on_one_live_cache_is_told_so(tmp_path: Path) -> None:
    with (
        live_cache.lock_live_cache(tmp_path / "live"),
        pytest.raises(LiveCacheUnusable, match="in use by another daemon"),
    ):
        live_cache.lock_live_cache(tmp_path / "live")
    live_cache.lock_live_cache(tmp_path / "live").close()


def test_a_live_cache_that_can_not_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LiveCacheUnusable, match="can't be written"):
        live_cache.lock_live_cache(tmp_path / "file" / "live")


def test_new_directories_are_shared_with_the_group(tmp_path: Path) -> None:
    live_cache.make_directory(tmp_path / "a/b")
    assert (tmp_path / "a/b").stat().st_mode & 0o7777 == 0o2775


MOUNTS = """\
23 22 0:40 / /mnt/store rw - nfs4 server:/export rw
24 22 0:41 / /mnt/with\\040space rw - fuse.gcsfuse bucket rw
25 22 0:42 / /run/layers rw - fuse.fuse-overlayfs overlay rw
26 23 253:1 / /mnt/store/local rw - xfs /dev/vdb rw
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/store/cache", "nfs4"),
        ("/mnt/with space/cache", "fuse.gcsfuse"),
        ("/mnt/store/local/cache", None),
        ("/mnt/storehouse", None),
        ("/run/layers/x", None),
        ("/var/cache", None),
    ],
)
def test_a_live_cache_on_a_network_filesystem_is_noticed(tmp_path: Path, path: str, expected: str | None) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert live_cache.network_filesystem(path, tmp_path / "mountinfo") == expected


def test_a_machine_without_mountinfo_is_no_error(tmp_path: Path) -> None:
    assert live_cache.network_filesystem("/", tmp_path / "nothing") is None


def test_the_marker_survives_and_garbage_in_its_place_is_no_marker(tmp_path: Path) -> None:
    marker = live_cache.LiveMarker(
        exact_key="e", toolchain_key="t", attempt="a", host_boot="b", generations={"exact": "00000001-ab"}
    )
    live_cache.write_marker(tmp_path, marker)
    assert live_cache.read_marker(tmp_path) == marker
    for garbage in (b"", b"{}", b'{"format": 1, "generations": 3}', b"[]", os.urandom(64)):
        (tmp_path / live_cache.MARKER_NAME).write_bytes(garbage)
        assert live_cache.read_marker(tmp_path) is None
    live_cache.remove_marker(tmp_path)
    live_cache.remove_marker(tmp_path)


def test_lock_files_that_nobody_holds_go_and_those_of_living_processes_stay(tmp_path: Path) -> None:
    orphan, baton = put(tmp_path / "inductor/ab/x.lock", b""), put(tmp_path / "torch_ext/py311/lock", b"")
    in_folder = put(tmp_path / "inductor/locks/fx", b"")
    kept = put(tmp_path / "inductor/ab/lock.so", b"")
    held, opened = put(tmp_path / "triton/held.lock", b""), put(tmp_path / "torch_ext/py312/lock", b"")
    ours = put(tmp_path / live_cache.LOCK_NAME, b"")
    with open(held) as first, open(opened):
        fcntl.flock(first, fcntl.LOCK_EX)
        found = live_cache.remove_orphan_locks(tmp_path)
    assert set(found.removed) == {str(orphan), str(baton), str(in_folder)}
    assert set(found.held) == {str(held), str(opened)}
    assert kept.exists()
    assert held.exists()
    assert opened.exists()
    assert ours.exists()
    assert not orphan.exists()


def test_a_lock_that_is_a_link_or_a_pipe_is_left_alone(tmp_path: Path) -> None:
    precious = put(tmp_path / "precious", b"keep")
    (tmp_path / "live/nv").mkdir(parents=True)
    (tmp_path / "live/nv/a.lock").symlink_to(precious)
    os.mkfifo(tmp_path / "live/nv/b.lock")
    assert live_cache.remove_orphan_locks(tmp_path / "live").removed == ()
    assert live_cache.remove_orphan_locks(tmp_path / "nowhere") == live_cache.Locks((), ())
    assert precious.read_bytes() == b"keep"


def test_a_live_file_that_can_not_be_read_ends_early_and_says_why(tmp_path: Path) -> None:
    with live_cache.LiveFile(put(tmp_path / "a", b"bytes")) as source:
        assert (source.read(3), source.read(-1), source.trouble) == (b"byt", b"es", "")
    (tmp_path / "folder").mkdir()
    with live_cache.LiveFile(tmp_path / "folder") as source:
        assert source.read(3) == b""
        assert "directory" in source.trouble
    (tmp_path / "loop").symlink_to("loop")
    with live_cache.LiveFile(tmp_path / "loop") as source:
        assert (source.read(3), bool(source.trouble)) == (b"", True)
    with pytest.raises(FileNotFoundError):
        live_cache.LiveFile(tmp_path / "gone")


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "more room"), (errno.EACCES, "common group"), (errno.EIO, "check its volume")],
)
def test_trouble_with_the_live_cache_is_a_sentence_that_says_what_to_do(number: int, says: str) -> None:
    sentence = live_cache.disk_trouble("/live", "read", OSError(number, os.strerror(number)))
    assert says in sentence
    assert sentence.endswith(".")
