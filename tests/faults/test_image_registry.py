"""An image of kernel caches goes to a real registry and comes back as it was: `docker-registry` and `skopeo` of Debian."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.caches import kernel_image, oci_layout
from tests.fakes.stored import Stored
from tests.ports import unused_port

UP_S = 30.0
MISSING = [name for name in ("docker-registry", "skopeo") if shutil.which(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@contextlib.contextmanager
def registry(root: Path) -> Iterator[str]:
    """Run a registry on a loopback port, and give its address."""
    port = unused_port()
    (root / "registry.yml").write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {root}/data\nhttp:\n  addr: 127.0.0.1:{port}\n"
    )
    with open(root / "registry.log", "wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(root / "registry.yml")],
            stdout=log,
            stderr=log,
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
            start_new_session=True,
        )
    try:
        ends = time.monotonic() + UP_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < ends, (root / "registry.log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def skopeo(*words: str) -> str:
    done = subprocess.run(["skopeo", "--insecure-policy", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_travel_through_a_registry(tmp_path: Path) -> None:
    here, there = Stored(tmp_path), Stored(tmp_path, "there")
    here.publish("a", "b")
    image, copied = tmp_path / "image", tmp_path / "copied"
    digest, _ = kernel_image.export(here.store, kernel_image.chosen(here.store, ()), image, "v1", lambda _d, _t: None)
    with registry(tmp_path) as address:
        skopeo("copy", "--dest-tls-verify=false", f"oci:{image}:v1", f"docker://{address}/kernels:v1")
        assert digest in skopeo("inspect", "--tls-verify=false", f"docker://{address}/kernels:v1")
        skopeo("copy", "--src-tls-verify=false", f"docker://{address}/kernels:v1", f"oci:{copied}:v1")
    assert oci_layout.is_layout(copied)
    assert [each.outcome for each in kernel_image.bring(there.store, copied, lambda _d, _t: None)] == ["imported"]
    there.restore()
    assert there.kernels() == {"a", "b"}
