"""Claims about generations as images: the form is the one that others mount, and what comes back is what left."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from sidecar.caches import families, kernel_image, oci_layout
from sidecar.caches.fingerprint import BOTH, fingerprint
from sidecar.errors import NotSo, StoreDamaged
from tests.fakes import live_cache as fake
from tests.fakes.imaged import COMPILED, FACTS, Place


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


def test_labels_say_nothing_of_vllm_where_another_engine_made_the_kernels(place: Place) -> None:
    shutil.rmtree(place.live)
    fake.triton_kernel(place.live, "K")
    fake.put(place.live / "tilelang/cache/k/kernel_lib.so", b"library")
    facts = {**FACTS, "argv": ["python3", "-m", "sglang.launch_server"], "packages": {"sglang": {"version": "0.5.23"}}}
    key = fingerprint(facts, str(place.live)).toolchain_key
    place.publish(facts)
    place.export(key)
    labels = place.labels()
    assert labels["io.kserve.km/framework"] == "sglang"
    assert not labels.keys() & {f"io.kserve.km/{name}" for name in ("cache-type", "cache-mount-subpath", "cache-root-env")}
    mounts = {each["absPath"]: each.get("env") for each in json.loads(labels["io.kserve.km/cache-mounts"])}
    assert mounts == {f"{place.live}/triton": "TRITON_CACHE_DIR", f"{place.live}/tilelang": None}


def test_labels_tell_no_place_where_the_facts_are_gone(place: Place) -> None:
    for path in (place.root / "here").rglob("facts.json"):
        path.unlink()
    place.export(place.here.keys("exact")[0])
    assert not place.labels().keys() & {"io.kserve.km/cache-mounts", "io.kserve.km/cache-root-env"}


def test_a_mount_point_is_not_written_over_and_a_link_is_followed(place: Place) -> None:
    place.image = Path("/proc")
    with pytest.raises(OSError, match="name a folder in it"):
        place.export()
    (place.root / "empty").mkdir()
    place.image = place.root / "link"
    place.image.symlink_to("empty")
    place.export()
    assert oci_layout.is_layout(place.root / "empty")


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
