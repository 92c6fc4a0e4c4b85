"""Kernels leave a bucket of a real server as an image and arrive in another bucket, once."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from sidecar.caches import kernel_image
from tests.fakes.bucket_path import BucketPath
from tests.fakes.stored import Stored
from tests.object_server import ObjectServer


def test_an_image_of_a_bucket_is_brought_to_another_once(tmp_path: Path, bucket: str, object_server: ObjectServer) -> None:
    name = bucket.removeprefix("s3://").partition("/")[0]
    here, there = (
        Stored(tmp_path, place=BucketPath(f"s3://{name}", PurePosixPath(store), object_server.client(name)))
        for store in ("here", "there")
    )
    here.publish("a")
    here.publish("b")
    kernel_image.export(here.store, kernel_image.chosen(here.store, ()), tmp_path / "image", "v1", lambda _d, _t: None)
    for outcome in ("imported", "there"):
        found = kernel_image.bring(there.store, tmp_path / "image", lambda _d, _t: None)
        assert [each.outcome for each in found] == [outcome]
    there.restore()
    assert there.kernels() == {"a", "b"}
