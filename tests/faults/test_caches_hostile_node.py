"""The real worker on a node where things go wrong beside plain errors: hanging disks, jumping clocks, strangers' files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.client import CacheClient, PublishRequest, RestoreRequest
from tests.fakes import live_cache as fake
from tests.faults.disk import Mount, Worker, calls
from tests.own_processes import children

PATIENT_S = 60.0
DAY_S, YEAR_S = 86400.0, 365 * 86400.0
WRITING = {"create", "write", "rename", "link", "fsync", "mkdir", "unlink", "symlink", "chmod", "utime"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    fake.fill(tmp_path / "live")
    return tmp_path


def wishes(root: Path, **changes: Any) -> dict[str, Any]:
    known = {"store": str(root / "store"), "live_cache": str(root / "live"), "facts": fake.facts(), "attempt": "1-1-ab"}
    return {**known, **changes}


def task(root: Path, kind: str, **changes: Any) -> dict[str, Any]:
    return {"task": kind, "request": wishes(root, **changes)}


async def gone() -> None:
    """Wait until this process has no child left, zombies included."""
    for _ in range(500):
        if not children():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still there: {children()}")


@pytest.mark.parametrize("call", ["open", "stat", "read", "readdir"])
async def test_a_store_that_hangs_costs_the_start_no_more_than_its_budget(root: Path, call: str) -> None:
    assert Worker(task(root, "publish"), root).result()["outcome"] == "published"
    client = CacheClient(time.monotonic, Mount(root=root / "store", faults=(f"{call}:h600:1:0",)).worker())
    started = time.monotonic()
    result = await client.restore(RestoreRequest(**wishes(root)), 1.0)
    assert time.monotonic() - started < 10
    assert result.outcome == "timed_out"
    assert "the store is slow or hangs" in result.sentence
    assert result.commit == ()
    await gone()


async def test_a_store_that_hangs_in_the_middle_of_a_publish_shows_nothing_half(root: Path) -> None:
    client = CacheClient(time.monotonic, Mount(root=root / "store", faults=("fsync:h600:1:0",)).worker())
    result = await client.publish(PublishRequest(**wishes(root)), 1.5)
    assert result.outcome == "timed_out"
    assert not list((root / "store").glob("v1/*/*/generations/*/manifest.json"))
    await gone()
    assert Worker(task(root, "publish"), root).result()["outcome"] == "published"


@pytest.mark.parametrize(
    ("folder", "fault", "kind", "outcome", "says"),
    [
        ("store", "read:5:1:0:packs", "restore", "failed", "could not be read"),
        ("store", "readdir:116:1:0", "restore", "failed", "check its volume"),
        ("live", "create:28:3:0", "restore", "failed", "live cache"),
        ("live", "mkdir:30:1:0", "restore", "failed", "live cache"),
        ("store", "write:28:1:0", "publish", "failed", "give it more room"),
        ("store", "mkdir:30:1:0", "publish", "read_only", "mount it writable"),
        ("store", "rename:5:1:0", "publish", "failed", "check its volume"),
    ],
)
def test_the_real_worker_ends_with_an_outcome_and_advice(
    root: Path, folder: str, fault: str, kind: str, outcome: str, says: str
) -> None:
    if kind == "restore":
        assert Worker(task(root, "publish"), root).result()["outcome"] == "published"
    result = Worker(task(root, kind), root, Mount(root=root / folder, faults=(fault,))).result()
    assert result["outcome"] == outcome, result
    assert says in result["sentence"]


@pytest.mark.parametrize(
    "jumps",
    [(DAY_S, -DAY_S), (YEAR_S, 0.0), (0.0, -YEAR_S), (-YEAR_S, YEAR_S, -DAY_S)],
    ids=["day", "on", "back", "both"],
)
def test_a_clock_that_jumps_loses_nothing_and_publishes_nothing_half(root: Path, jumps: tuple[float, ...]) -> None:
    live = root / "live"
    mount = Mount(root=root / "store", clock_jumps=jumps)
    first = Worker(task(root, "publish"), root, mount).result()
    assert first["outcome"] in ("published", "nothing_new")
    assert Worker(task(root, "publish"), root).result()["outcome"] in ("published", "nothing_new")
    before = {path: entry[:2] for path, entry in fake.tree(live / "triton").items() if "tmp" not in path}
    restored = Worker(task(root, "restore"), root, mount).result()
    assert restored["outcome"] == "hit"
    staged = fake.tree(live / ".staging/1-1-ab/triton")
    assert {path: entry[:2] for path, entry in staged.items()} == before


def test_a_clock_that_jumps_takes_no_living_publishers_file_for_an_orphan(root: Path) -> None:
    packs = root / "store/v1/packs"
    living = fake.put(packs / ".pack.1.ab.tmp", b"being written", mtime_ns=time.time_ns())
    dead = fake.put(packs / ".pack.2.cd.tmp", b"left", mtime_ns=time.time_ns() - int(2 * DAY_S * 1e9))
    (packs / ".generation.3.ef.tmp").mkdir()
    os.utime(packs / ".generation.3.ef.tmp", (1, 1))
    for jumps in ((YEAR_S,), (-YEAR_S,)):
        Worker(task(root, "publish"), root, Mount(root=root, clock_jumps=jumps)).result()
    assert living.exists()
    assert not dead.exists()
    assert not (packs / ".generation.3.ef.tmp").exists()


def test_a_restore_writes_nothing_to_the_store(root: Path) -> None:
    assert Worker(task(root, "publish"), root).result()["outcome"] == "published"
    log = root / "calls"
    mount = Mount(root=root / "store", log=log)
    changes = {"store_mode": "read-only", "holder": "pod-1", "single_flight_s": 0.5}
    assert Worker(task(root, "restore", **changes), root, mount).result()["outcome"] == "hit"
    published = Worker(task(root, "publish", store_mode="read-only"), root, mount).result()
    assert (published["outcome"], "WARMUP_STORE_MODE" in published["sentence"]) == ("read_only", True)
    assert [call for call in calls(log) if call[0] in WRITING] == []
    assert calls(log), "the shim saw the store"


GROUP = 4242
# What is imported later might lie where another user can't read.
AS_USER = """
import os, sys
import psutil
from sidecar.caches import choice, holding, publish, restore, worker
uid, worker.UMASK = int(sys.argv[1]), int(sys.argv[2], 8)
os.setgroups([])
os.setresgid(4242, 4242, 4242)
os.setresuid(uid, uid, uid)
sys.exit(worker.main())
"""


class Volume:
    """A volume as Kubernetes mounts it with an fsGroup: its root is the group's, and keeps it for what is made there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir()
        os.chown(made, 0, GROUP)
        made.chmod(0o2770)
        return made

    def does(self, uid: int, umask: str, said: dict[str, Any]) -> dict[str, Any]:
        """Let the worker do a task as a user who shares the group and nothing else."""
        command = (sys.executable, "-c", AS_USER, str(uid), umask)
        return Worker(said, Path("/"), command=command).result()

    def give(self, folder: Path, uid: int) -> None:
        """Let everything in a folder be one user's and the group's."""
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, GROUP, follow_symlinks=False)


@pytest.fixture
def volume() -> Iterator[Volume]:
    if os.geteuid() != 0:
        pytest.skip("other users need root")
    with tempfile.TemporaryDirectory(prefix="group-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Volume(Path(made))


@pytest.mark.parametrize("umask", ["007", "022", "077"])
def test_users_that_share_a_group_publish_onto_each_others_generations(volume: Volume, umask: str) -> None:
    volume.folder("store")
    live = volume.folder("live")
    fake.fill(live)
    volume.give(live, 10001)
    assert volume.does(10001, umask, task(volume.root, "publish"))["outcome"] == "published"
    shutil.rmtree(live)
    volume.folder("live")
    assert volume.does(10002, "007", task(volume.root, "restore"))["outcome"] == "hit"
    shutil.rmtree(live)
    fake.deep_gemm_kernel(volume.folder("live"), "later")
    volume.give(live, 10002)
    second = volume.does(10002, umask, task(volume.root, "publish"))
    assert (second["outcome"], second["parent"][:8]) == ("published", "00000001")
    shutil.rmtree(live)
    volume.folder("live")
    third = volume.does(10003, "007", task(volume.root, "restore"))
    assert (third["outcome"], third["files"]) == ("hit", 26)


def test_files_that_an_engine_keeps_to_itself_cost_their_kernels_and_no_others(volume: Volume) -> None:
    """An engine with umask 077 and no launcher: what it wrote can't be read, which is not the store's fault."""
    volume.folder("store")
    live = volume.folder("live")
    fake.deep_gemm_kernel(live, "open")
    closed = fake.deep_gemm_kernel(live, "closed")
    volume.give(live, 10001)
    (closed / "kernel.cubin").chmod(0o600)
    published = volume.does(10002, "007", task(volume.root, "publish"))
    assert published["outcome"] == "published"
    manifest = json.loads(next((volume.root / "store").glob("v1/*/*/generations/*/manifest.json")).read_text())
    assert {one["path"].split("/")[1] for one in manifest["files"]} == {"kernel.open"}


def test_a_folder_that_an_engine_keeps_to_itself_is_a_sentence_that_says_what_to_do(volume: Volume) -> None:
    volume.folder("store")
    live = volume.folder("live")
    fake.deep_gemm_kernel(live, "closed").chmod(0o700)
    published = volume.does(10002, "007", task(volume.root, "publish"))
    assert published["outcome"] in ("failed", "published", "nothing_new")
    if published["outcome"] == "failed":
        assert "common group" in published["sentence"]
        assert "umask 007" in published["sentence"]
