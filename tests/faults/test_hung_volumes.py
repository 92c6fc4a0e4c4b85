"""Volumes that hang under what a daemon reads and writes: the engine starts, probes are answered, and a stop ends it."""

from __future__ import annotations

import shutil
import signal
import time

from tests.faults.disk import Mount
from tests.faults.rig import PATIENCE_S, Pod, until

#: Above the deadlines of a live cache and of a profile, one after the other.
LONG_S = 240.0


def test_what_lies_on_a_volume_that_hangs_costs_its_use_and_is_told(pod: Pod) -> None:
    volume = pod.root / "volume"
    volume.mkdir()
    shutil.copy(pod.profile, volume / "profile.yaml")
    (volume / "key").write_text("secret\n")
    mount = Mount(root=volume, faults=("stat:h900:1:0", "open:h900:1:0"))
    settings = {"live_cache": volume / "live", "profile": volume / "profile.yaml", "api_key_file": volume / "key"}
    daemon = pod.launch_daemon(wrapper=mount.command(), warm_budget_s=20, **settings)
    ends = time.monotonic() + LONG_S
    until((pod.control / "launcher.py").exists, "a launcher", LONG_S)
    assert daemon.get("/livez", PATIENCE_S)[0] == 200
    pod.start_container()
    while not daemon.is_ready and time.monotonic() < ends:
        # Often enough, and cheap: deadlines are waited for here.
        time.sleep(0.5)
    told = daemon.told("WARMUP_PROFILE", "WARMUP_API_KEY_FILE", f"The live cache {volume / 'live'} hangs")
    assert daemon.is_ready, told


def test_a_daemon_ends_when_it_is_told_although_its_loop_hangs_in_a_look_at_the_control_directory(pod: Pod) -> None:
    pod.control.mkdir()
    mount = Mount(root=pod.control, faults=("readdir:h900:1:0",), log=pod.root / "disk.log")
    daemon = pod.launch_daemon(wrapper=mount.command())
    until(lambda: (pod.root / "disk.log").exists() and "readdir" in (pod.root / "disk.log").read_text(), "a look")
    assert daemon.get("/livez", 2)[0] == 0
    daemon.kill(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == 0
    assert "something hangs and was not waited for at the end" in daemon.last_lines()
