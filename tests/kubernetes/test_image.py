"""The image of k8s/Containerfile, built by buildah and run by runc as the manifests say: no root, read-only, no capabilities.

Slow: the build takes a minute or two. What it is built on here is Debian's Python, not the image that users pull.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import __version__
from sidecar.kube.injection.shape import Shape, launcher_container, sidecar_container
from tests.kubernetes.rendered import ROOT
from tests.prepare import container_image
from tests.prepare.container_image import buildah

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(container_image.why_not()), reason=container_image.why_not() or "it can be built"),
]

Json = dict[str, Any]

#: What our own layer may take, in bytes: 175 MB when this was written.
OWN_BYTES = 220e6
ASK = "import sys, urllib.request as r; print(r.urlopen('http://127.0.0.1:9797' + sys.argv[1], timeout=5).status)"


class Image:
    """The built image: its root, its configuration, and a way to run a container of a manifest."""

    def __init__(self, scratch: Path) -> None:
        self.name = container_image.build(ROOT)
        self._container = buildah("from", self.name)
        self.root = Path(buildah("mount", self._container))
        self.config: Json = json.loads(buildah("inspect", "--type", "image", self.name))["OCIv1"]["config"]
        self._scratch = scratch

    def close(self) -> None:
        buildah("rm", self._container)

    def bundle(self, container: Json, *args: str) -> Path:
        """Lay down what runc runs: the container's user, rights, environment and mounts; volumes of the pod's group."""
        place = self._scratch / uuid.uuid4().hex
        place.mkdir()
        subprocess.run(["runc", "spec", "--bundle", place], check=True)
        spec = json.loads((place / "config.json").read_text())
        rights = container["securityContext"]
        spec["root"] = {"path": str(self.root), "readonly": rights["readOnlyRootFilesystem"]}
        given = [f"{entry['name']}={entry['value']}" for entry in container["env"]]
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": rights["runAsUser"], "gid": rights["runAsGroup"]},
            "args": [*self.config["Entrypoint"], *(args or container["args"])],
            "env": [*self.config["Env"], *given],
            "capabilities": {},
            "noNewPrivileges": not rights["allowPrivilegeEscalation"],
            "rlimits": [],
        }
        for mount in container["volumeMounts"]:
            volume = self._scratch / "volumes" / mount["name"]
            volume.mkdir(parents=True, exist_ok=True)
            os.chown(volume, 0, rights["runAsGroup"])
            # What the kubelet makes of a volume in a pod with an fsGroup.
            volume.chmod(0o2775)
            bind = {"type": "bind", "source": str(volume), "options": ["rbind", "rw"]}
            spec["mounts"].append({"destination": mount["mountPath"], **bind})
        (place / "config.json").write_text(json.dumps(spec))
        return place

    def run(self, container: Json, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        words = ["runc", "run", "--bundle", str(self.bundle(container, *args)), f"warmup-{uuid.uuid4().hex[:8]}"]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    made = Image(tmp_path_factory.mktemp("bundles"))
    yield made
    made.close()


SIDECAR = sidecar_container(Shape("x"))


def test_the_image_says_its_version_and_finds_the_pod_as_it_should_be(image: Image):
    assert __version__ in image.run(SIDECAR, "--version").stdout
    checked = image.run(SIDECAR, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_it_runs_without_root_and_brings_no_compiler_no_installer_and_no_file_with_more_rights_than_its_caller(
    image: Image,
):
    assert image.config["User"] == "10001:2000"
    ours = image.root / "opt" / "warmup-sidecar"
    assert [path for path in ours.rglob("*") if path.lstat().st_mode & 0o6000 and not path.is_symlink()] == []
    assert not (ours / "bin" / "pip").exists()
    writable = [path for path in ours.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o022]
    assert writable == []


def test_its_own_layer_is_small(image: Image):
    ours = [path.lstat() for path in (image.root / "opt" / "warmup-sidecar").rglob("*")]
    size = sum(each.st_size for each in ours)
    print(f"own layer: {size / 1e6:.0f} MB in {len(ours)} files")
    assert size < OWN_BYTES


def test_the_init_containers_of_old_clusters_end_with_0(image: Image):
    laid = image.run(launcher_container(Shape("x")))
    assert laid.returncode == 0, laid.stderr
    settings = {"image": "vllm/vllm-openai@sha256:" + "1" * 64, "sm": "sm90"}
    restored = image.run(sidecar_container(Shape("x", launcher=False, settings=settings)), "restore")
    assert restored.returncode == 0, restored.stderr


def test_the_daemon_answers_its_probes_on_a_read_only_root_and_ends_within_seconds(image: Image):
    name = f"warmup-{uuid.uuid4().hex[:8]}"
    words = ["runc", "run", "--bundle", str(image.bundle(SIDECAR)), name]
    daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        answers = {path: _asked(name, path, daemon) for path in ("/startupz", "/livez", "/metrics")}
        assert answers == dict.fromkeys(answers, "200")
        subprocess.run(["runc", "kill", name, "TERM"], check=True)
        began = time.monotonic()
        assert daemon.wait(30) == 0
        assert time.monotonic() - began < 10
    finally:
        subprocess.run(["runc", "delete", "--force", name], capture_output=True, check=False)
        daemon.wait(30)


def _asked(name: str, path: str, daemon: subprocess.Popen[bytes]) -> str:
    """Ask from within the container's own network, until there is an answer."""
    said = ""
    for _ in range(60):
        assert daemon.poll() is None, said
        words = ["runc", "exec", name, "python3", "-c", ASK, path]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
        said = done.stderr
        time.sleep(0.5)
    return said
