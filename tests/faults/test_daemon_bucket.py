"""The whole daemon on a bucket of a real server: what it publishes and restores, and a bucket that can't be used.

What workers do with a bucket is in `test_bucket_faults`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from tests.fakes.object_proxy import ObjectProxy, proxied
from tests.faults.crowd import watched
from tests.faults.rig import PATIENCE_S, Place, Pod, until
from tests.faults.test_golden_fallback import metric
from tests.object_server import ObjectServer


@pytest.fixture
def proxy(bucket: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectProxy]:
    with proxied(object_server.endpoint) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


def compiled(place: Place) -> dict[str, bytes]:
    """Give what the engine compiled, by name."""
    families = (place.live_cache / "triton", place.live_cache / "inductor")
    return {str(path): path.read_bytes() for folder in families for path in folder.rglob("*") if path.is_file()}


def test_a_pod_publishes_to_an_empty_bucket_and_the_next_one_starts_from_it_over_a_slow_network(
    place: Place, tmp_path: Path, bucket: str, proxy: ObjectProxy, object_server: ObjectServer
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with watched(tmp_path / "one", place) as pod:
        daemon = pod.start(store=bucket, store_gc_interval_s=3600)
        assert daemon.status()["restore"]["outcome"] == "miss"
        until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
        until(lambda: metric(daemon, 'store_gc_total{outcome="done"}') == 1, "a bucket that is cleaned up")
        assert metric(daemon, "store_bytes") > 0
        assert 0 <= time.time() - metric(daemon, "store_gc_last_timestamp_seconds") < PATIENCE_S
        kernels = compiled(place)
    with watched(tmp_path / "two", place) as pod:
        assert not compiled(place)
        proxy.does("slow")
        daemon = pod.start(store=bucket)
        restored = daemon.status()["restore"]
        assert restored["outcome"] == "hit"
        assert restored["sources"]["bucket"]["packs"] == 2
        assert "from the bucket" in restored["sentence"]
        assert metric(daemon, 'restore_source_bytes_total{source="bucket"}') > 0
        assert kernels.items() <= compiled(place).items()
        proxy.does(None)
        client = object_server.client(bucket.removeprefix("s3://").partition("/")[0])

        def proven() -> bool:
            names = [str(one["path"]) for batch in obstore.list(client, "warm/v1/exact") for one in batch]
            return any(f"/boots/{restored['generation']}.ready." in name for name in names)

        until(proven, "a record of a boot that was ready on the generation")


def test_an_engine_starts_although_the_bucket_can_not_be_reached_and_is_told_what_to_look_at(
    pod: Pod, bucket: str, proxy: ObjectProxy
) -> None:
    proxy.does("drop")
    daemon = pod.start(store=bucket)
    assert daemon.status()["restore"]["outcome"] == "failed"
    daemon.told("Restore: failed", bucket, "can't be reached; check the endpoint (AWS_ENDPOINT_URL) and the network")
    daemon.told("Publish: failed", "can't be reached")


def test_an_engine_starts_although_the_credentials_are_wrong_and_is_told_which_to_correct(
    pod: Pod, bucket: str, proxy: ObjectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    daemon = pod.start(store=bucket)
    assert daemon.status()["restore"]["outcome"] == "failed"
    said = daemon.told("Restore: failed", "Publish: failed", "correct AWS_SECRET_ACCESS_KEY")
    assert "The store can't be reached, nothing is published meanwhile" in said
    assert metric(daemon, 'source_missing{source="store"}') == 1


def test_a_bucket_that_never_answers_holds_up_the_engine_until_the_deadline_and_warm_up_for_seconds(
    pod: Pod, bucket: str, proxy: ObjectProxy
) -> None:
    proxy.does("silent")
    daemon = pod.start_daemon(store=bucket, restore_timeout_s=2)
    began = time.monotonic()
    pod.start_container()
    pod.engine_pid()
    assert time.monotonic() - began < 15
    assert daemon.status()["restore"]["outcome"] == "timed_out"
    assert "given up after 2 s" in daemon.status()["restore"]["sentence"]
    daemon.wait_until_ready(PATIENCE_S)
    # What earlier boots left in the store is asked for with a deadline of 30 s, and is done without.
    assert time.monotonic() - began < 28
