"""The engine's security context in k8s/ against the launcher: root without any capability can do what a start needs.

Users and groups in other combinations: tests/faults/test_launcher_users.py, whose sidecar and volume are used here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import test_launcher_users as users
from tests.kubernetes.rendered import kustomized, named, pods

#: Gives up every capability and the way to new ones, as a container runtime does for `drop: [ALL]`, and becomes the command.
WITHOUT = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs"]


@pytest.fixture
def volume() -> Iterator[Path]:
    """Give a volume as a pod with fsGroup has it."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can give capabilities up, with setpriv (util-linux)")
    root = Path(tempfile.mkdtemp(prefix="warmup-rights-"))
    for path in (root, root / "run", root / "live", root / "live" / "old"):
        path.mkdir(exist_ok=True)
        os.chown(path, 0, users.GROUP)
        path.chmod(0o2775)
    (root / "live" / "old" / "f").write_text("")
    (root / "live" / "old" / "f").chmod(0o664)
    for name in ("handshake", "launcher"):
        shutil.copytree(users.REPOSITORY / "sidecar" / name, root / "code" / "sidecar" / name)
    for name in ("__init__.py", "errors.py", "files.py"):
        shutil.copy(users.REPOSITORY / "sidecar" / name, root / "code" / "sidecar" / name)
    yield root
    shutil.rmtree(root)


def test_an_engine_with_the_manifests_rights_can_take_over_what_was_restored(volume: Path):
    [pod] = [pod for document in kustomized("base") for pod in pods(document)]
    assert named(pod, "engine")["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    sidecar = users.sidecar_on(volume, users.SIDECAR, [users.GROUP])
    script = f"grep -q 'CapEff:.*0000000000000000' /proc/self/status && {users.ENGINE_SCRIPT}"
    launched = subprocess.run(
        [*WITHOUT, users.PYTHON, str(volume / "run" / "launcher.py"), "--", "/bin/sh", "-c", script],
        cwd="/", env={"PATH": "/bin:/usr/bin", "HOME": "/"}, user=0, group=0, extra_groups=[users.GROUP],
        capture_output=True, text=True, timeout=60, umask=0o022,
    )  # fmt: skip
    out, err = sidecar.communicate(timeout=60)
    assert launched.stdout == "new 0\n", (launched.stderr, err)
    assert json.loads(out) == {"code": 0, "lines": ["new 0"], "failed": {}, "old": []}, err
