"""What launcher and sidecar each have their own copy of, because neither may import the other, gives equal answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.caches import live_cache, spelling
from sidecar.launcher import locks, mounts
from sidecar.launcher import spelling as launchers_spelling

NOBODY = 64331
#: Holds one file by flock(2), as filelock does, and keeps another open, as torch's FileBaton does.
HOLDER = """
import fcntl, os, sys
held = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX)
shared = os.open(sys.argv[2], os.O_RDWR)
fcntl.flock(shared, fcntl.LOCK_SH)
baton = os.open(sys.argv[3], os.O_WRONLY)
foreign = os.open(sys.argv[4], os.O_RDWR)
fcntl.flock(foreign, fcntl.LOCK_EX)
print("holding", flush=True)
sys.stdin.read()
"""

Removal = Callable[[str], None]


def by_launcher(live: str) -> None:
    locks.remove_orphans(live)


def by_sidecar(live: str) -> None:
    live_cache.remove_orphan_locks(live)


def put(path: Path, mode: int = 0o660) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    path.chmod(mode)


def scene(root: Path) -> Path:
    """Lay down every kind of file that one of the two might take for a lock, or might not."""
    live = root / "live"
    for name in (
        "inductor/ab/x.lock",
        "inductor/locks/no-suffix",
        "inductor/locks/deeper/not-beside-the-locks",
        "torch_ext/py312/ext/lock",
        "flashinfer/.cache/flashinfer/tmp/a.lock",
        ".unknown/x.lock",
        ".unknown/lock",
        ".staging/1-1-aa/triton/x.lock",
        ".trash/1/x.lock",
        "triton/.staging/x.lock",
        "held/x.lock",
        "held/shared.lock",
        "baton/lock",
        "triton/lock.so",
        "triton/block",
        "triton/x.lock.py",
        "triton/lockfile",
        "triton/.lock",
        "triton/LOCK",
        "top.lock",
        "lock",
    ):
        put(live / name)
    # Of another user where the two run as nobody: no lease is given on them, and flock(2) alone has to do.
    put(live / "foreign/free.lock", mode=0o666)
    put(live / "foreign/held.lock", mode=0o666)
    put(live / "unreadable/x.lock", mode=0o000)
    put(live / "closed/x.lock")
    (live / "closed").chmod(0o000)
    (live / "a-directory/x.lock/inner").mkdir(parents=True)
    (live / "a-directory/lock").mkdir()
    put(live / "a-directory/x.lock/y.lock")
    put(root / "outside/precious.lock")
    (live / "linked").mkdir()
    (live / "linked/out.lock").symlink_to(root / "outside/precious.lock")
    (live / "linked/dangling.lock").symlink_to(root / "nowhere")
    (live / "linked/locks").symlink_to(root / "outside", target_is_directory=True)
    os.mkfifo(live / "linked/pipe.lock")
    return live


@contextlib.contextmanager
def held(live: Path) -> Iterator[None]:
    """Let a living process hold what lies in `held` and `baton`, and one of another user's."""
    files = [str(live / name) for name in ("held/x.lock", "held/shared.lock", "baton/lock", "foreign/held.lock")]
    command = [sys.executable, "-c", HOLDER, *files]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0], "the holder did not start"
        assert process.stdout.readline() == b"holding\n"
        yield
        process.communicate()


def left(root: Path) -> set[str]:
    """List every name that is there, as root or its owner sees it."""
    with contextlib.suppress(FileNotFoundError):
        (root / "live/closed").chmod(0o770)
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def removed_by(removal: Removal, root: Path, uid: int | None) -> set[str]:
    live = scene(root)
    before = left(root)
    (live / "closed").chmod(0o000)
    if uid is not None:
        for path in (root, *root.rglob("*")):
            if path.parent.name != "foreign":
                os.lchown(path, uid, uid)
    with held(live):
        child = os.fork()
        if not child:
            # Not even pytest may go on in this process.
            code = 1
            with contextlib.suppress(BaseException):
                if uid is not None:
                    os.setgroups([])
                    os.setgid(uid)
                    os.setuid(uid)
                removal(str(live))
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return before - left(root)


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """Give a directory that another user can reach, which pytest's own is not."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


ORPHANS = {
    f"live/{name}"
    for name in (
        "inductor/ab/x.lock",
        "inductor/locks/no-suffix",
        "torch_ext/py312/ext/lock",
        "flashinfer/.cache/flashinfer/tmp/a.lock",
        ".unknown/x.lock",
        ".unknown/lock",
        "foreign/free.lock",
        "triton/.staging/x.lock",
        "triton/.lock",
        "a-directory/x.lock/y.lock",
    )
}


@pytest.mark.parametrize("uid", [None, NOBODY])
def test_launcher_and_sidecar_take_the_same_lock_files_for_orphans(shared_root: Path, uid: int | None) -> None:
    if uid is not None and os.geteuid() != 0:
        pytest.skip("only root can be another user")
    found = {}
    for removal in (by_launcher, by_sidecar):
        root = shared_root / removal.__name__
        root.mkdir()
        found[removal] = removed_by(removal, root, uid)
    assert found[by_launcher] == found[by_sidecar]
    # Root reads what nobody may read, and who owns the files asks for leases.
    closed = {"live/unreadable/x.lock", "live/closed/x.lock"} if uid is None and os.geteuid() == 0 else set()
    assert found[by_launcher] == ORPHANS | closed


def test_of_a_lock_that_was_just_let_go_both_say_that_nobody_holds_it(tmp_path: Path) -> None:
    for number, removal in enumerate((by_launcher, by_sidecar)):
        live = tmp_path / str(number)
        put(live / "triton/x.lock")
        with open(live / "triton/x.lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            removal(str(live))
            assert (live / "triton/x.lock").exists()
        removal(str(live))
        assert not (live / "triton/x.lock").exists()


@pytest.mark.parametrize(
    "text",
    ['{"b": 1, "a": [1.0, 1e0, {"z": null, "y": "\\u00e9"}]}', "[]", "{}", ' {"a":1}\n', '{"a": 1, "a": 2}', '{"a": NaN}',
     '{"a": 1', "x", "", "[::]:80", '"text"', "17", '{"a": 1k}', "[" * 100_000, '{"\\ud800": 1}', '{"a": 1e400, "b": -0}'],
)  # fmt: skip
def test_launcher_and_sidecar_spell_json_alike(text: str) -> None:
    assert launchers_spelling.canonical(text) == spelling.canonical(text)


@pytest.mark.parametrize(
    "kind", sorted(live_cache.NETWORK_TYPES | live_cache.LOCAL_FUSE | {"ext4", "fuse", "fuse.s3fs"})
)
def test_launcher_and_sidecar_take_the_same_filesystems_for_ones_over_a_network(tmp_path: Path, kind: str) -> None:
    table = tmp_path / "mountinfo"
    (tmp_path / "a link").symlink_to("/mnt/with space")
    table.write_text(
        f"24 22 0:41 / /mnt/with\\040space rw - {kind} server rw\n26 24 253:1 / /mnt/with\\040space/local rw - xfs /dev/b rw\n"
        "22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/a rw\ngarbage\n"
    )
    paths = [
        "/mnt/with space",
        "/mnt/with space/x/y",
        "/mnt/with space/local/x",
        "/mnt/with spaces",
        f"{tmp_path}/a link/x",
        "/",
    ]
    told = [mounts.network_filesystem(path, str(table)) for path in paths]
    assert told == [live_cache.network_filesystem(path, table) or "" for path in paths]
    assert told[2:4] == ["", ""]


def test_without_a_table_of_mounts_neither_knows_a_filesystem(tmp_path: Path) -> None:
    assert mounts.network_filesystem("/", str(tmp_path / "none")) == (
        live_cache.network_filesystem("/", tmp_path / "none") or ""
    )
