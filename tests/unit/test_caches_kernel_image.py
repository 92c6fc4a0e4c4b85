"""Claims about generations as images: the form is the one that others mount, and what comes back is what left."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import families, kernel_image, oci_layout
from sidecar.caches.commit import commit
from sidecar.caches.fingerprint import BOTH
from sidecar.caches.messages import PublishRequest, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import DirectoryStore, open_store
from sidecar.errors import NotSo, StoreDamaged
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

    def visible(self) -> list[Path]:
        return list((self.root / "there").rglob("manifest.json"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_comes_out_of_an_image_is_what_went_in(place: Place) -> None:
    place.restored(place.root / "here")
    before = fake.tree(place.live)
    place.export()
    assert place.bring() == ["imported", "imported"]
    assert place.bring() == ["there", "there"]
    assert place.restored(place.root / "there").outcome == "hit"
    assert fake.tree(place.live) == before


def test_a_mounted_image_is_a_store_that_pods_restore_from(place: Place) -> None:
    place.export()
    folder = place.unpacked() / kernel_image.STORE_PREFIX
    assert place.restored(folder).outcome == "hit"
    assert (place.live / COMPILED / "cache_key_factors.json").is_file()


def test_the_payload_lies_where_the_labels_say_with_the_times_that_compilers_compare(place: Place) -> None:
    place.restored(place.root / "here")
    before = fake.tree(place.live)
    place.export()
    payload, labels = place.unpacked() / "io.vllm.cache", place.labels()
    variable, _, root = labels["io.kserve.km/cache-root-env"].partition("=")
    assert (variable, root) == ("VLLM_CACHE_ROOT", f"{place.live}/vllm")
    mounts = json.loads(labels["io.kserve.km/cache-mounts"])
    assert {each["env"] for each in mounts} >= {"TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    found = {}
    for each in mounts:
        tree = {f"{each['absPath']}/{path}": file for path, file in fake.tree(payload / each["subPath"]).items()}
        found.update({str(Path(path).relative_to(place.live)): file[:2] for path, file in tree.items()})
    subpath = labels["io.kserve.km/cache-mount-subpath"]
    for own in (subpath, "modelinfos"):
        found.update({f"vllm/{own}/{path}": file[:2] for path, file in fake.tree(payload / own).items()})
    expected = {path: file[:2] for path, file in before.items() if not path.startswith(("warmup_", "."))}
    assert {path: file[0] for path, file in found.items()} == {path: file[0] for path, file in expected.items()}
    with gzip.open(place.layer()) as stream, tarfile.open(fileobj=stream) as tar:
        times = {each.pax_headers.get("mtime") for each in tar if each.name.startswith("io.vllm.cache/") and each.isreg()}
    assert times == {f"{fake.OLD_NS // 10**9}.{fake.OLD_NS % 10**9}"}


def test_labels_and_description_say_what_the_payload_is(place: Place) -> None:
    place.export()
    payload, labels = place.unpacked() / "io.vllm.cache", place.labels()
    files = [path for path in payload.rglob("*") if path.is_file() and not path.is_symlink()]
    assert int(labels["cache.vllm.image/cache-size-bytes"]) == sum(path.stat().st_size for path in files)
    assert labels["io.kserve.km/cache-hash"].split(",") == ["0123456789", "abc"]
    assert labels["cache.vllm.image/entry-count"] == "2"
    assert labels["cache.vllm.image/format"] == "aot_compile,binary"
    [target] = json.loads(labels["cache.vllm.image/summary"])["targets"]
    assert (target["backend"], target["arch"]) == ("cuda", "sm_90")
    described = json.loads((place.root / "unpacked/io.vllm.manifest/manifest.json").read_text())
    [part] = described["vllm"][0]["binary"]
    assert (part["rank"], part["prefix"], part["code_hash"]) == ("rank_0_0", "backbone", "cc")
    assert part["artifact_names"] == ["artifact_compile_range_1_8_subgraph_0"]


def test_every_part_is_named_by_its_digest_and_the_layer_by_what_it_holds(place: Place) -> None:
    place.export()
    for path in (place.image / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    config = json.loads(place.blob(place.manifest()["config"]).read_text())
    plain = hashlib.sha256(gzip.decompress(place.layer().read_bytes())).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{plain}"]


def test_the_same_kernels_make_the_same_image(place: Place) -> None:
    place.export()
    first = (place.image / "index.json").read_text()
    shutil.rmtree(place.image)
    place.export()
    assert (place.image / "index.json").read_text() == first
    # RFC 1952 2.3: when it was packed, which must not be in it.
    assert place.layer().read_bytes()[4:8] == bytes(4)


def test_no_two_families_share_a_place_in_the_payload() -> None:
    places = [kernel_image.payload_folder(family) for family in families.stored_families()]
    assert len(places) == len(set(places))


def damaged(place: Place) -> None:
    path = place.layer()
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")


def cut(place: Place) -> None:
    path = place.layer()
    path.write_bytes(path.read_bytes()[:-900])


def lost(place: Place) -> None:
    place.layer().unlink()


def other_name(place: Place) -> None:
    path = place.image / "index.json"
    path.write_text(path.read_text().replace("sha256:", "sha256:../../"))


def nothing(place: Place) -> None:
    (place.image / "index.json").write_text('{"manifests": []}')


def nested(place: Place) -> None:
    path = place.image / "index.json"
    path.write_text(path.read_text().replace("image.manifest.v1", "image.index.v1"))


def no_json(place: Place) -> None:
    (place.image / "index.json").write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (damaged, "not what its name says"),
        (cut, "not what the image says"),
        (lost, "lacks its part"),
        (other_name, "no SHA-256 digest"),
        (nothing, "lists no image"),
        (nested, "no single image"),
        (no_json, "not valid JSON"),
    ],
)
def test_an_image_that_is_not_whole_leaves_nothing_that_can_be_seen(place: Place, harm: Any, said: str) -> None:
    place.export()
    harm(place)
    with pytest.raises(StoreDamaged, match=said):
        place.bring()
    assert place.visible() == []


def test_an_image_of_another_tool_is_refused_with_the_reason(place: Place) -> None:
    def fill(tar: tarfile.TarFile) -> oci_layout.Image:
        tar.addfile(tarfile.TarInfo("io.vllm.cache/torch_compile_cache/x"))
        return oci_layout.Image(tag="v1", labels={}, annotations={}, architecture="amd64", created="", made_by="mcv")

    oci_layout.write(place.image, fill)
    with pytest.raises(StoreDamaged, match="another tool made it"):
        place.bring()


def test_an_image_holds_the_kernels_of_one_engine(place: Place) -> None:
    place.publish({**FACTS, "argv": ["vllm", "serve", "/models/other"]})
    with pytest.raises(NotSo, match="name one with --key"):
        place.export()
    key = place.here.keys("exact")[0]
    place.export(key[:10])
    assert place.bring() == ["imported", "imported"]
    assert place.there.keys("exact") == [key]


def test_the_toolchain_kernels_of_another_gpu_stay_away(place: Place) -> None:
    key = place.here.keys("exact")[0]
    place.publish({**FACTS, "gpus": [{"name": "NVIDIA B200", "index": 0, "sm": "10.0"}]})
    assert len(place.here.keys("toolchain")) == 2
    place.export(key)
    assert place.bring() == ["imported", "imported"]
    assert [len(place.there.keys(scope)) for scope in BOTH] == [1, 1]


def test_a_folder_that_holds_something_is_not_written_over(place: Place) -> None:
    fake.put(place.image / "mine", b"mine")
    with pytest.raises(FileExistsError):
        place.export()
    assert [path.name for path in place.image.iterdir()] == ["mine"]


def test_a_file_that_is_not_what_its_manifest_says_is_not_handed_on(place: Place) -> None:
    for path in (place.root / "here").rglob("manifest.json"):
        path.write_text(re.sub(r'"sha256":"[0-9a-f]{64}"', f'"sha256":"{"0" * 64}"', path.read_text(), count=1))
    with pytest.raises(StoreDamaged, match="not what its manifest says"):
        place.export()
    assert not place.image.exists()


def test_a_damaged_archive_leaves_no_folder(place: Place) -> None:
    for pack in (place.root / "here/v1/packs").iterdir():
        pack.write_bytes(b"damaged")
    with pytest.raises(StoreDamaged):
        place.export()
    assert [path.name for path in place.root.iterdir() if "image" in path.name] == []
