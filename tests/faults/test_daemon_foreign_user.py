"""A user that no image knows, on a root that can't be written, without HOME; the engine as another user of the same group."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.crowd import watched
from tests.faults.rig import PATIENCE_S, Place, Pod, until

#: What OpenShift's restricted security context gives: a user out of the namespace's range, the root group.
SIDECAR_UID, ENGINE_UID, GROUP = 1000800000, 1000810000, 0


@pytest.fixture
def volume() -> Iterator[Path]:
    """Give the pod's volume: writable for the common group, and reachable for users that can't enter root's own folders."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("other users and mounts need root and unshare(1)")
    made = Path(tempfile.mkdtemp(prefix="pod-", dir="/var/tmp"))
    os.chown(made, -1, GROUP)
    made.chmod(0o2770)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def pod(volume: Path) -> Iterator[Pod]:
    """Give a pod on that volume."""
    with watched(volume, Place.below(volume / "node")) as made:
        made.place.home.rmdir()
        for folder in (made.place.live_cache, made.control, made.directories.store):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o2770)
        yield made


def as_user(uid: int, volume: Path) -> list[str]:
    """Give a command that becomes what follows, as this user, with everything but the volume read-only."""
    mounts = [f"mount --bind {volume} {volume}", *interpreter_mounts(volume), "mount -o remount,bind,ro /"]
    become = f'exec setpriv --reuid {uid} --regid {GROUP} --clear-groups env -u HOME "$@"'
    return ["unshare", "-m", "sh", "-ec", "\n".join([*mounts, become]), "sh"]


def interpreter_mounts(volume: Path) -> list[str]:
    """Open the way to the interpreter for other users where it lies in root's own home, for these processes only."""
    prefix = Path(sys.base_prefix).resolve()
    closed = [folder for folder in prefix.parents if not folder.stat().st_mode & 0o005]
    if not closed:
        return []
    way = volume / "interpreter" / prefix.relative_to(closed[-1])
    way.mkdir(parents=True, exist_ok=True)
    (volume / "interpreter").chmod(0o755)
    return [f"mount --bind {prefix} {way}", f"mount --rbind {volume}/interpreter {closed[-1]}"]


def test_an_unknown_user_on_a_read_only_root_makes_the_pod_ready(pod: Pod, volume: Path):
    daemon = pod.start_daemon(wrapper=as_user(SIDECAR_UID, volume))
    assert Path(f"/proc/{daemon.process.pid}").stat().st_uid == SIDECAR_UID
    mounts = [line.split() for line in Path(f"/proc/{daemon.process.pid}/mountinfo").read_text().splitlines()]
    assert next(fields[5] for fields in mounts if fields[4] == "/").startswith("ro")
    pod.start_container({"HOME": ""}, wrapper=as_user(ENGINE_UID, volume))
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    assert daemon.status()["degraded"] == []
    assert daemon.status()["flagged"] is False
    kernels = list(pod.place.live_cache.rglob("*.cubin"))
    assert {path.stat().st_uid for path in kernels} == {ENGINE_UID}


def test_what_one_user_published_another_restores_for_an_engine_that_can_write_it(pod: Pod, volume: Path):
    daemon = pod.start_daemon(wrapper=as_user(SIDECAR_UID, volume))
    pod.start_container({"HOME": ""}, wrapper=as_user(ENGINE_UID, volume))
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    pod.container.close()
    daemon.stop()
    shutil.rmtree(pod.place.live_cache)
    pod.place.live_cache.mkdir()
    pod.place.live_cache.chmod(0o2770)
    daemon = pod.start_daemon(wrapper=as_user(SIDECAR_UID + 1, volume))
    pod.start_container({"HOME": ""}, wrapper=as_user(ENGINE_UID + 1, volume), bucket_tokens=7)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["restore"]["outcome"] == "hit"
    kernels = list(pod.place.live_cache.rglob("*.cubin"))
    assert {path.stat().st_uid for path in kernels} == {SIDECAR_UID + 1, ENGINE_UID + 1}


def test_child_mode_finds_directories_of_its_own(pod: Pod, volume: Path):
    """The first command of the README, by a user without HOME who can't write where containers have their volumes."""
    wrapper = [*as_user(SIDECAR_UID, volume), "env", f"TMPDIR={volume}"]
    command = pod.engine_command()
    daemon = pod.start_daemon(*command, wrapper=wrapper, live_cache=None, control_dir=None, store=None)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["degraded"] == []
    assert daemon.status()["cache"]["path"].startswith(str(volume))
