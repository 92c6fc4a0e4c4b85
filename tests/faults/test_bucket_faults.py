"""Pods that share a bucket: races, damage, and a network and server that are slow, failing, cut, late or refuse.

The server is real and so are the workers; what a directory has to stand is in `test_caches_*`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from sidecar.caches.client import CacheClient, RestoreRequest
from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.store import open_store
from sidecar.errors import StoreReadOnly, StoreUnavailable
from tests.fakes import live_cache as fake
from tests.fakes.object_proxy import Fault, ObjectProxy, proxied
from tests.faults.disk import Worker
from tests.object_server import READER, ObjectServer

GONE = "s3://no-such-bucket-here"


class Fleet:
    """Pods with live caches at one relative path that share one bucket, seen through a proxy."""

    def __init__(self, root: Path, bucket: str, server: ObjectServer, proxy: ObjectProxy) -> None:
        self.root, self.bucket, self.server, self.proxy = root, bucket, server, proxy
        self.client = server.client(bucket.removeprefix("s3://").partition("/")[0])

    def pod(self, name: str) -> Path:
        made = self.root / name / "live"
        made.mkdir(parents=True, exist_ok=True)
        return made

    def start(self, task: str, pod: str, **changes: Any) -> Worker:
        self.pod(pod)
        request = {"store": self.bucket, "live_cache": "live", "facts": fake.facts(), "attempt": "1-1-ab", **changes}
        return Worker({"task": task, "request": request}, self.root / pod)

    def publish(self, pod: str, **changes: Any) -> dict[str, Any]:
        return self.start("publish", pod, **changes).result()

    def restore(self, pod: str, **changes: Any) -> dict[str, Any]:
        return self.start("restore", pod, **changes).result()

    def names(self, kind: str = "") -> list[str]:
        found = (str(one["path"]) for batch in obstore.list(self.client) for one in batch)
        return sorted(name for name in found if kind in name)

    def kernels(self) -> set[str]:
        """Name the DeepGEMM kernels of the newest generation."""
        newest = [name for name in self.names("/toolchain/") if name.endswith("manifest.json")][-1]
        files = json.loads(bytes(obstore.get(self.client, newest).bytes()))["files"]
        return {one["path"].split("/")[1].removeprefix("kernel.") for one in files}

    def check_whole(self) -> None:
        """Check that every pack of every generation is there."""
        packs = {name.rpartition("/")[2].partition(".")[0] for name in self.names("/packs/")}
        for name in self.names("manifest.json"):
            found = json.loads(bytes(obstore.get(self.client, name).bytes()))
            assert {one["digest"] for one in found["packs"]} <= packs


@pytest.fixture
def fleet(tmp_path: Path, bucket: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with proxied(object_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield Fleet(tmp_path, bucket, object_server, proxy)


@pytest.fixture
def published(fleet: Fleet) -> Fleet:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    fake.inductor_kernel(fleet.pod("one"), "caone")
    assert fleet.publish("one")["outcome"] == "published"
    return fleet


def test_what_one_pod_published_another_restores_from_the_bucket(published: Fleet) -> None:
    result = published.restore("two")
    assert result["outcome"] == "hit"
    assert result["sources"]["bucket"]["packs"] == 2
    assert "from the bucket" in result["sentence"]
    staged = published.root / "two/live/.staging/1-1-ab/deep_gemm/cache/kernel.ONE/kernel.cubin"
    assert staged.read_bytes() == (published.root / "one/live/deep_gemm/cache/kernel.ONE/kernel.cubin").read_bytes()
    assert os.listdir(published.root / "two/live/.staging") == ["1-1-ab"]
    assert published.publish("one")["outcome"] == "nothing_new"


def test_eight_pods_that_publish_at_once_make_the_union_of_what_they_had(fleet: Fleet) -> None:
    names = [f"KERNEL{number}" for number in range(8)]
    for name in names:
        fake.deep_gemm_kernel(fleet.pod(name), name)
    outcomes = Counter(one.result()["outcome"] for one in [fleet.start("publish", name) for name in names])
    assert outcomes == {"published": 8}
    assert fleet.kernels() == set(names)
    fleet.check_whole()


def test_a_pod_whose_listing_lags_builds_on_the_newest_generation_all_the_same(fleet: Fleet) -> None:
    fleet.proxy.late_s = 3600
    for name in ("ONE", "TWO", "THREE"):
        fake.deep_gemm_kernel(fleet.pod(name), name)
        assert fleet.publish(name)["outcome"] == "published"
    assert fleet.kernels() == {"ONE", "TWO", "THREE"}
    assert fleet.restore("four")["outcome"] == "partial"


@pytest.mark.parametrize("fault", ["503", "500", "drop", "slow"])
def test_requests_that_fail_or_dawdle_twice_cost_time_and_nothing_else(fleet: Fleet, fault: Fault) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    fake.inductor_kernel(fleet.pod("one"), "caone")
    fleet.proxy.does(fault, 2)
    assert fleet.publish("one")["outcome"] == "published"
    fleet.check_whole()
    for what in ("list-type", "manifest.json", "/packs/"):
        fleet.proxy.does(fault, 2, lambda method, path, what=what: method == "GET" and what in path)
        assert fleet.restore("two")["outcome"] == "hit"


def test_an_answer_that_was_lost_does_not_make_a_publisher_lose_to_itself(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    fleet.proxy.does("lost answer", 1, lambda method, path: method == "PUT" and path.endswith("manifest.json"))
    assert fleet.publish("one")["outcome"] == "published"
    assert len(fleet.names("manifest.json")) == 1


@pytest.mark.parametrize("what", ["manifest.json", "/packs/"])
def test_bodies_that_are_cut_are_asked_for_again(published: Fleet, what: str) -> None:
    published.proxy.does("cut", 2, lambda method, path: method == "GET" and what in path)
    assert published.restore("two")["outcome"] == "hit"


def test_packs_that_never_arrive_whole_cost_warmth_and_are_no_damage(published: Fleet) -> None:
    published.proxy.does("cut", -1, lambda method, path: method == "GET" and "/packs/" in path)
    result = published.restore("two")
    assert result["outcome"] == "failed"
    assert result["rejected"] == {"unreadable": 4}
    assert result["damaged"] == []


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_pack_costs_warmth_once_and_the_next_publish_mends_it(published: Fleet, damage: str) -> None:
    for name in published.names("/packs/"):
        data = bytearray(bytes(obstore.get(published.client, name).bytes()))
        data[len(data) // 2] ^= 0xFF
        if damage == "gone":
            obstore.delete(published.client, name)
        else:
            obstore.put(published.client, name, bytes(data[:10] if damage == "short" else data))
    bad = published.restore("two")
    assert bad["outcome"] == "failed"
    again = published.publish("one", restored=bad["generations"], suspects=bad["damaged"])
    assert again["outcome"] in ("published", "nothing_new"), again
    if damage != "gone":
        # What is missing may only not be seen yet: a young generation is given the time for that.
        assert again["outcome"] == "published"
        assert published.restore("three")["outcome"] == "hit"


async def test_a_bucket_that_never_answers_is_given_up_after_the_deadline(fleet: Fleet) -> None:
    fleet.proxy.does("silent")
    request = RestoreRequest(store=fleet.bucket, live_cache=str(fleet.pod("one")), facts=fake.facts(), attempt="1-1-ab")
    began = time.monotonic()
    result = await CacheClient(time.monotonic).restore(request, 2.0)
    assert result.outcome == "timed_out"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("variables", "location", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "", "correct AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "", "correct AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "", "can't be reached; check the endpoint"),
        ({}, GONE, "there is no such bucket; make it, or correct WARMUP_STORE"),
    ],
)
def test_a_bucket_that_can_not_be_used_is_a_cold_start_with_one_clear_sentence(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], location: str, says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    changes = {"store": location} if location else {}
    for result in (fleet.restore("one", **changes), fleet.publish("one", **changes)):
        assert result["outcome"] == "failed"
        assert says in result["sentence"]


def test_a_clock_that_is_off_is_called_that(fleet: Fleet) -> None:
    fleet.proxy.does("skewed")
    assert "set the clock (NTP)" in fleet.restore("one")["sentence"]


def test_credentials_that_may_only_read_restore_and_publish_nothing(
    published: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in published.server.variables(READER, published.proxy.url).items():
        monkeypatch.setenv(name, value)
    assert published.restore("two", holder="two")["outcome"] == "hit"
    fake.deep_gemm_kernel(published.pod("two"), "TWO")
    result = published.publish("two")
    assert result["outcome"] == "read_only"
    assert "WARMUP_STORE_MODE=read-only" in result["sentence"]


def test_a_server_that_ignores_conditions_is_found_out_and_nothing_is_published(fleet: Fleet) -> None:
    store = open_store(fleet.bucket, "read-write", lambda _s: None)
    put = store._put  # type: ignore[attr-defined]
    store._put = lambda path, data, absent=False: put(path, data)  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="takes no notice of conditions"):
        store.prove_writing()  # type: ignore[attr-defined]


def test_a_quarantine_and_boots_reach_every_pod(published: Fleet) -> None:
    known = fingerprint(fake.facts(), "live")
    [first] = open_store(published.bucket, "read-only", lambda _s: None).generations("toolchain", known.toolchain_key)
    request = {"store": published.bucket, "scope": "toolchain", "key": known.toolchain_key, "generation": first}
    records = (
        ("boot", f"{first}.ready.a", {"outcome": "ready"}),
        ("quarantine", first, {"reason": "two engines died"}),
    )
    for kind, name, record in records:
        task = {"task": "record", "request": {**request, "kind": kind, "name": name, "record": record}}
        assert Worker(task, published.root / "one").result() == {"trouble": ""}
    assert "toolchain" not in published.restore("two")["generations"]


def test_a_store_without_its_library_is_a_sentence(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "obstore", None)
        with pytest.raises(StoreUnavailable, match=r"pip install 'vllm-warmup-sidecar\[bucket\]'"):
            open_store(bucket, "read-only", lambda _s: None)


def test_a_read_only_store_in_a_bucket_is_never_written(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    assert fleet.publish("one", store_mode="read-only")["outcome"] == "read_only"
    assert fleet.restore("one", store_mode="read-only", holder="one")["outcome"] == "miss"
    assert fleet.names() == []
    with pytest.raises(StoreReadOnly):
        open_store(fleet.bucket, "read-only", lambda _s: None).sweep_orphans()
