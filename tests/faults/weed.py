"""A network volume for real: one SeaweedFS server on this machine, mounted twice through FUSE.

`weed` is no dependency of the project: tests that want it are skipped where it is not on PATH nor in WARMUP_TEST_WEED.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

UP_S = 60.0
DOWN_S = 10.0


@contextlib.contextmanager
def two_mounts(root: Path) -> Iterator[tuple[Path, Path]]:
    """Start the server below `root` and mount it twice; the test is skipped where that can't be."""
    weed = os.environ.get("WARMUP_TEST_WEED") or shutil.which("weed")
    if not weed or not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("two mounts of one volume need `weed` (PATH or WARMUP_TEST_WEED), /dev/fuse and root")
    with contextlib.ExitStack() as stack:
        (root / "data").mkdir(parents=True)
        master, volume, filer = (_free_port() for _ in range(3))
        address = f"127.0.0.1:{filer}"
        server = ["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={root}/data", "-filer"]
        ports = [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
        stack.enter_context(_running([weed, *server, *ports, "-master.telemetry=false"], root))
        _until(lambda: _answers(filer), "the filer")
        mounts = root / "one", root / "two"
        for mount in mounts:
            mount.mkdir()
            own = [f"-cacheDir={mount}.cache", f"-localSocket={mount}.sock"]
            stack.enter_context(_running([weed, "mount", f"-filer={address}", f"-dir={mount}", *own], root))
            stack.callback(subprocess.run, ["umount", "-l", str(mount)], check=False)
            _until(lambda place=mount: os.path.ismount(place), "the mount")
        yield mounts


@contextlib.contextmanager
def _running(command: list[str], root: Path) -> Iterator[None]:
    with open(root / "weed.log", "ab") as log:
        environment = {**os.environ, "HOME": str(root)}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=root, env=environment, start_new_session=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=DOWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(holds, what: str) -> None:
    ends = time.monotonic() + UP_S
    while not holds():
        assert time.monotonic() < ends, f"{what} did not come up"
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _free_port() -> int:
    """Choose a port below the ephemeral ones; weed uses the one 10000 above it, too."""
    for port in range(18000 + os.getpid() % 2000, 22000, 7):
        with contextlib.suppress(OSError):
            for each in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
            if port not in _given:
                _given.add(port)
                return port
    raise AssertionError("no free port")


_given: set[int] = set()
