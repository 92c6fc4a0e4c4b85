"""Open a bucket by its URL, with the settings and credentials that its own tools use: the only place that loads obstore.

What is done with the bucket is in `bucket`, what its answers mean in `bucket_errors`.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.errors import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: A request that moves at most `bucket.PART` bytes: slower than 140 kB a second is as good as not at all.
REQUEST_S = 30
CONNECT_S = 5
#: Five tries within about three seconds of pauses; a start waits for them.
RETRIES = 4
RETRY_S = 40
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2


def client(location: str, environment: Mapping[str, str]) -> ObjectStore:
    """Make a client; nothing is asked of the bucket yet. Raises StoreUnavailable with a sentence."""
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise StoreUnavailable(
            f"The store {location} is a bucket, and the package obstore is not installed: "
            "`pip install 'vllm-warmup-sidecar[bucket]'`, or use a directory."
        ) from error
    pauses = {
        "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
        "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
        "base": 2,
    }
    retries = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S), "backoff": pauses}
    options: dict[str, Any] = {"timeout": timedelta(seconds=REQUEST_S), "connect_timeout": timedelta(seconds=CONNECT_S)}
    try:
        if bundle := environment.get("AWS_CA_BUNDLE"):
            options["root_certificate"] = Path(bundle).read_bytes()
        config: dict[str, Any] = {}
        kind: Any = store.GCSStore if location.startswith("gs://") else store.AzureStore
        if location.startswith("s3://"):
            kind, config = store.S3Store, s3_settings(environment)
            options["allow_http"] = str(config.get("endpoint", "")).startswith("http://")
        opened: ObjectStore = kind.from_url(location, config=config, client_options=options, retry_config=retries)
        return opened
    except (exceptions.BaseError, OSError, ValueError, configparser.Error) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        mend = "name its account in AZURE_STORAGE_ACCOUNT_NAME" if "Account must" in first else "correct WARMUP_STORE"
        if "redential" in first or "service account file" in first or "Access Key" in first:
            mend = "correct its credentials"
        raise StoreUnavailable(f"The store {location} can't be opened ({first:.200}); {mend}.") from error


def s3_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Give what obstore doesn't find by itself: newer names of the endpoint, and the files of AWS' own tools.

    Variables come first, then the web identity or the pod identity of a service account (obstore reads both), then files.
    """
    # SHA-256 of what is sent: a server that gets other bytes refuses them.
    found: dict[str, Any] = {"checksum_algorithm": "SHA256"}
    endpoint = next(
        (
            environment[name]
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            if environment.get(name)
        ),
        "",
    )
    profile = environment.get("AWS_PROFILE", "default")
    home = Path(environment.get("HOME") or "/", ".aws")
    general = _section(environment.get("AWS_CONFIG_FILE") or home / "config", profile, f"profile {profile}")
    if endpoint := endpoint or general.get("endpoint_url", ""):
        found["endpoint"] = endpoint
    if not environment.get("AWS_REGION") and not environment.get("AWS_DEFAULT_REGION"):
        found["region"] = general.get("region") or "us-east-1"
    given = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not any(
        environment.get(name) for name in (*given, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SKIP_SIGNATURE")
    ):
        keys = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials", profile)
        names = {
            "aws_access_key_id": "access_key_id",
            "aws_secret_access_key": "secret_access_key",
            "aws_session_token": "token",
        }
        found |= {names[name]: keys[name] for name in names if name in keys}
    return found


def _section(path: Path | str, *names: str) -> Mapping[str, str]:
    """Read the first of these sections of a file of AWS' tools; empty when there is none."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path, encoding="utf-8")
    return next((dict(parser[name]) for name in names if parser.has_section(name)), {})
