"""Claims about naming a bucket: which locations are taken, and whose files and variables its credentials come from."""

from __future__ import annotations

import os
from pathlib import Path

import pydantic
import pytest

from sidecar.caches import bucket_client
from sidecar.caches.bucket_client import s3_settings
from sidecar.caches.store import open_store
from sidecar.config.caches import CacheSettings
from sidecar.errors import StoreUnavailable


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


@pytest.fixture
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away what this machine's user has of clouds, and put nobody where they ask for credentials."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The client's own way to a proxy: a port of this machine that nobody listens on.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bucket_client, "RETRIES", 0)


@pytest.mark.usefixtures("_nobody")
@pytest.mark.parametrize(
    ("location", "variables", "says"),
    [
        ("s3://bucket", {}, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket", {}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "/not/there.json"}, "correct its credentials"),
        ("az://container", {}, "name its account in AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, "set AZURE_STORAGE_ACCOUNT_KEY"),
        (
            "az://container",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
            "check the endpoint (AZURE_STORAGE_ACCOUNT_NAME) and the network",
        ),
    ],
)
def test_a_bucket_that_can_not_be_used_says_what_its_own_cloud_wants(
    monkeypatch: pytest.MonkeyPatch, location: str, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailable) as caught:
        open_store(location, "read-only", lambda _s: None)
    assert says in str(caught.value)
    assert location.startswith("s3") or "AWS_" not in str(caught.value)
