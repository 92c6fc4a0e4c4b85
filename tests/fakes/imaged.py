"""A live cache, a store that it is published to, an image of that, and another store: for tests of images of kernels.

What an image is to hold is checked by its readers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

from sidecar.caches import kernel_image
from sidecar.caches.commit import commit
from sidecar.caches.messages import PublishRequest, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import DirectoryStore, open_store
from tests.fakes import live_cache as fake

COMPILED = "vllm/torch_compile_cache/0123456789/rank_0_0/backbone"
FACTS = fake.facts(gpus=[{"name": "NVIDIA H200", "index": 0, "sm": "9.0"}])


class Place:
    """A live cache, a store that it is published to, an image of that, and another store."""

    def __init__(self, root: Path) -> None:
        self.root, self.live, self.image = root, root / "live", root / "image"
        fake.fill(self.live)
        fake.put(self.live / COMPILED / "artifact_compile_range_1_8_subgraph_0", b"artifact" * 99)
        factors = {"code_hash": "cc", "env": {"VLLM_TARGET_DEVICE": "cuda"}}
        fake.put(self.live / COMPILED / "cache_key_factors.json", json.dumps(factors))
        self.here, self.there = self.store("here"), self.store("there")
        self.publish()

    def store(self, name: str) -> DirectoryStore:
        (self.root / name).mkdir()
        found = open_store(str(self.root / name), "read-write", lambda _s: None)
        assert isinstance(found, DirectoryStore)
        return found

    def publish(self, facts: dict[str, Any] = FACTS) -> None:
        request = PublishRequest(
            store=str(self.root / "here"), live_cache=str(self.live), facts=facts, attempt="p", settle_s=0
        )
        publish(request, PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None))

    def export(self, *keys: str) -> None:
        places = kernel_image.chosen(self.here, keys)
        kernel_image.export(self.here, places, self.image, "v1", lambda _done, _total: None)

    def bring(self) -> list[str]:
        return [each.outcome for each in kernel_image.bring(self.there, self.image, lambda _done, _total: None)]

    def restored(self, store: Path) -> RestoreResult:
        shutil.rmtree(self.live)
        self.live.mkdir()
        request = RestoreRequest(
            store=str(store),
            store_mode="read-only",
            live_cache=str(self.live),
            facts=FACTS,
            attempt="1-1-00000000",
        )
        result = restore(request, RestoreTools(clock=time.monotonic, sleep=lambda _s: None))
        commit(self.live, result.commit, result.clear)
        return result

    def unpacked(self) -> Path:
        """Unpack the image's layer as a container runtime does."""
        folder = self.root / "unpacked"
        with gzip.open(self.layer()) as stream, tarfile.open(fileobj=stream) as tar:
            tar.extractall(folder, filter="tar")
        return folder

    def manifest(self) -> dict[str, Any]:
        [found] = json.loads((self.image / "index.json").read_text())["manifests"]
        return dict(json.loads(self.blob(found).read_text()))

    def labels(self) -> dict[str, str]:
        return dict(json.loads(self.blob(self.manifest()["config"]).read_text())["config"]["Labels"])

    def layer(self) -> Path:
        [found] = self.manifest()["layers"]
        return self.blob(found)

    def blob(self, descriptor: dict[str, Any]) -> Path:
        return self.image / "blobs" / "sha256" / str(descriptor["digest"]).removeprefix("sha256:")

    def relayer(self, data: bytes) -> None:
        """Put another layer in the place of the image's, with all digests right."""
        manifest = self.manifest()
        manifest["layers"][0].update(self.add_blob(data))
        index = json.loads((self.image / "index.json").read_text())
        index["manifests"][0].update(self.add_blob(json.dumps(manifest).encode()))
        (self.image / "index.json").write_text(json.dumps(index))

    def add_blob(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.image / "blobs" / "sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def again(self, **changes: Any) -> None:
        """List the image once more in its index."""
        index = json.loads((self.image / "index.json").read_text())
        index["manifests"].append({**index["manifests"][0], **changes})
        (self.image / "index.json").write_text(json.dumps(index))

    def visible(self) -> list[Path]:
        return list((self.root / "there").rglob("manifest.json"))
