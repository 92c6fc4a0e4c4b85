"""Claims about naming a bucket: which locations are taken, and whose files and variables its credentials come from."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from sidecar.caches.bucket_client import s3_settings
from sidecar.config.caches import CacheSettings


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("/mnt/store, az://container/x", "/mnt/store,az://container/x"),
        ("/mnt/store/", "/mnt/store"),
        ("", ""),
    ],
)
def test_a_store_is_a_directory_or_a_bucket_with_directories_before_it(given: str, taken: str) -> None:
    assert CacheSettings(store=given).store == taken


@pytest.mark.parametrize(
    "given", ["s3://", "ftp://host/x", "s3://bucket,/mnt/store", "relative", ",s3://bucket", "s3://a,s3://b"]
)
def test_a_store_that_is_neither_is_refused(given: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        CacheSettings(store=given)


def test_variables_come_before_the_files_of_the_tools(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[other]\naws_access_key_id = key\naws_secret_access_key = 100%\n")
    (tmp_path / ".aws/config").write_text("[profile other]\nregion = eu-west-1\nendpoint_url = https://files\n")
    environment = {"HOME": str(tmp_path), "AWS_PROFILE": "other"}
    found = s3_settings(environment)
    assert (found["access_key_id"], found["secret_access_key"]) == ("key", "100%")
    assert (found["region"], found["endpoint"]) == ("eu-west-1", "https://files")
    found = s3_settings(
        {**environment, "AWS_ENDPOINT_URL": "https://variable", "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    )
    assert found["endpoint"] == "https://variable"
    assert "access_key_id" not in found
