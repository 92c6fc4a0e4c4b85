"""Claims about images that are damaged or made to do harm: the reason is told, and nothing of them can be seen."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import archive_file, kernel_image, oci_layout
from sidecar.errors import StoreDamaged
from tests.fakes import live_cache as fake
from tests.fakes.imaged import COMPILED, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


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


def pipe(place: Place) -> None:
    os.mkfifo(place.image / "blobs" / "sha256" / ("0" * 64))
    path = place.image / "index.json"
    named = {"digest": f"sha256:{'0' * 64}", "size": 0, "mediaType": oci_layout.MANIFEST}
    path.write_text(json.dumps({"manifests": [named]}))


def list_for_a_word(place: Place) -> None:
    manifest = place.manifest()
    manifest["layers"][0]["mediaType"] = ["application/vnd.oci.image.layer.v1.tar"]
    index = json.loads((place.image / "index.json").read_text())
    index["manifests"][0].update(place.add_blob(json.dumps(manifest).encode()))
    (place.image / "index.json").write_text(json.dumps(index))


def second_one_lost(place: Place) -> None:
    place.again(digest=f"sha256:{'1' * 64}")


def bad_deflate(place: Place) -> None:
    plain = gzip.decompress(place.layer().read_bytes())
    squeezed = zlib.compressobj(wbits=31)
    # RFC 1951 3.2.3: 11 is no block type.
    place.relayer(squeezed.compress(plain[:150_000]) + squeezed.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 9)


def one_member(place: Place, headers: dict[str, str]) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(f"{kernel_image.STORE_PREFIX}{archive_file.INDEX}")
        member.pax_headers = headers
        tar.addfile(member)
    place.relayer(gzip.compress(target.getvalue()))


def words_for_numbers(place: Place) -> None:
    one_member(place, {"GNU.sparse.map": "a,b"})


def long_header(place: Place) -> None:
    one_member(place, {"comment": "x" * (2 << 20)})


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (pipe, "is no file"),
        (second_one_lost, "lacks its part"),
        (bad_deflate, "can't be unpacked"),
        (words_for_numbers, "is no tar"),
        (long_header, "a header of"),
        (damaged, "not what its name says"),
        (cut, "not what the image says"),
        (lost, "lacks its part"),
        (other_name, "no SHA-256 digest"),
        (nothing, "lists no image"),
        (nested, "lists no image"),
        (no_json, "not valid JSON"),
        (list_for_a_word, "a tar is expected"),
    ],
)
def test_an_image_that_is_not_whole_leaves_nothing_that_can_be_seen(place: Place, harm: Any, said: str) -> None:
    fake.put(place.live / COMPILED / "large", random.Random(1).randbytes(300_000))
    place.publish()
    place.export()
    harm(place)
    with pytest.raises(StoreDamaged, match=said):
        place.bring()
    assert place.visible() == []


def test_a_huge_index_is_not_read_into_memory(place: Place) -> None:
    place.export()
    os.truncate(place.image / "index.json", 256 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(StoreDamaged, match="more than"):
            place.bring()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_an_image_with_two_tags_is_taken_once(place: Place) -> None:
    place.export()
    place.again(annotations={oci_layout.REFERENCE: "v2"})
    assert place.bring() == ["imported", "imported"]
