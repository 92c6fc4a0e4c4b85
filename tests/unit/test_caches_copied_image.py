"""Claims about images that other tools copied: layers packed anew, indexes around an image, no annotations."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from sidecar.caches import oci_layout
from sidecar.errors import StoreDamaged
from tests.fakes.imaged import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.export()
    return found


def index_of(place: Place) -> dict[str, Any]:
    return dict(json.loads((place.image / "index.json").read_text()))


def list_only(place: Place, *entries: dict[str, Any]) -> None:
    (place.image / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))


def repacked(place: Place, kind: str, pack: Callable[[bytes], bytes]) -> None:
    """Put the layer there in another packing, as copies between registries do, and the image without any annotation."""
    manifest, plain = place.manifest(), gzip.decompress(place.layer().read_bytes())
    manifest["layers"] = [{"mediaType": kind, **place.add_blob(pack(plain))}]
    del manifest["annotations"]
    list_only(place, {"mediaType": oci_layout.MANIFEST, **place.add_blob(json.dumps(manifest).encode())})


def in_frames(data: bytes) -> bytes:
    """Pack into several frames, as `zstd:chunked` and parallel packers do."""
    zstd = zstandard.ZstdCompressor()
    return b"".join(zstd.compress(data[start : start + 50_000]) for start in range(0, len(data), 50_000))


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        ("application/vnd.oci.image.layer.v1.tar", bytes),
        ("application/vnd.oci.image.layer.v1.tar+zstd", in_frames),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip.compress),
    ],
)
def test_a_layer_that_a_copy_packed_anew_is_read(place: Place, kind: str, pack: Callable[[bytes], bytes]) -> None:
    repacked(place, kind, pack)
    assert place.bring() == ["imported", "imported"]
    assert place.restored(place.root / "there").outcome == "hit"


def damaged(data: bytes) -> bytes:
    return b"xxxx" + in_frames(data)[4:]


def test_a_layer_of_zstd_that_can_not_be_unpacked_leaves_nothing_that_can_be_seen(place: Place) -> None:
    repacked(place, "application/vnd.oci.image.layer.v1.tar+zstd", damaged)
    with pytest.raises(StoreDamaged, match="can't be unpacked"):
        place.bring()
    assert place.visible() == []


def test_an_image_in_an_index_beside_what_only_tells_of_it_is_read(place: Place) -> None:
    [image] = index_of(place)["manifests"]
    about = {
        "mediaType": oci_layout.MANIFEST,
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        **place.add_blob(b'{"layers": [{"mediaType": "application/vnd.in-toto+json"}]}'),
    }
    inner = place.add_blob(json.dumps({"manifests": [image, about]}).encode())
    list_only(place, {"mediaType": oci_layout.INDEXES[0], **inner})
    assert place.bring() == ["imported", "imported"]


def test_indexes_that_lie_in_each_other_too_deep_are_refused(place: Place) -> None:
    [found] = index_of(place)["manifests"]
    for _ in range(oci_layout.NESTED + 1):
        found = {"mediaType": oci_layout.INDEXES[0], **place.add_blob(json.dumps({"manifests": [found]}).encode())}
    list_only(place, found)
    with pytest.raises(StoreDamaged, match="which is no image"):
        place.bring()
    assert place.visible() == []


def test_an_index_that_lists_the_same_over_and_over_is_looked_at_once(place: Place) -> None:
    [image] = index_of(place)["manifests"]
    inner = place.add_blob(json.dumps({"manifests": [image] * 50}).encode())
    list_only(place, *[{"mediaType": oci_layout.INDEXES[0], **inner}] * 50)
    assert len(list(oci_layout.layers(place.image))) == 1
