"""A live cache that is where it should not be, or in which somebody holds a lock: told by the daemon, and the engine starts."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.live_cache import put
from tests.faults.rig import PATIENCE_S, Pod


def mounted_as(kind: str, place: Path, table: Path) -> list[str]:
    """Give a command to whose process `place` looks like a mount of this type; skip where that can't be done."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts need root and unshare(1)")
    lines = Path("/proc/self/mountinfo").read_text() + f"9999 1 0:999 / {place} rw - {kind} server:/cache rw\n"
    table.write_text(lines)
    return ["unshare", "-m", "sh", "-ec", f'mount --bind {table} /proc/$$/mountinfo\nexec "$@"', "sh"]


@pytest.mark.parametrize("kind", ["nfs4", "fuse.s3fs"])
def test_the_daemon_tells_in_log_and_status_that_the_live_cache_lies_on_a_network(pod: Pod, kind: str) -> None:
    live = pod.directories.live_cache
    daemon = pod.start(wrapper=mounted_as(kind, live, pod.root / "mountinfo"))
    [told] = daemon.status()["degraded"]
    assert told.startswith(f"The live cache {live} lies on {kind}, a network filesystem")
    assert "emptyDir" in told
    logged = [json.loads(line) for line in pod.log.read_text().splitlines() if line.startswith("{")]
    assert [each["level"] for each in logged if each["event"] == told] == ["error"]


def test_a_lock_that_somebody_holds_neither_stops_nor_hangs_a_start_and_stays_theirs(pod: Pod) -> None:
    folder = pod.directories.live_cache / "flashinfer/cached_ops"
    held, orphan = put(folder / "held.lock", b""), put(folder / "orphan.lock", b"")
    with held.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        daemon = pod.start_daemon(store=None)
        pod.start_container()
        daemon.wait_until_ready(PATIENCE_S)
        assert held.exists()
        assert not orphan.exists()
        assert daemon.status()["degraded"] == []
